"""From sources to batches, in Chainer's iterator interface.

``iterator`` has what all loaders have in common, ``epochs`` their accounting; ``dali`` and ``pillow`` are the loaders
of images, ``synthetic`` has random numbers; ``batch`` has the converters. DALI is imported when the first
:class:`~mixprec.data.loaders.dali.DaliIterator` is made.
"""
