"""Training data: image folders, DALI pipelines in Chainer's iterator interface, and a small real data set.

Import from the modules: ``folders`` (what lies on disk), ``dali`` (the iterator), ``batch`` (the converter) and
``digits`` (the data set). DALI itself is imported when the first :class:`~mixprec.data.dali.DaliIterator` is made.
"""
