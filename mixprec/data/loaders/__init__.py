"""Loaders: from sources to batches, in Chainer's iterator interface.

Reading order. ``spec`` declares the settings (``typed``); ``epochs``, ``order`` and ``position`` say which images form
which batch; ``iterator`` is the base of the loaders. ``pillow`` with ``pillow_worker`` decodes in processes. ``dali``
builds a ``pipeline`` (``readers``, ``encoded``, ``dali_arithmetic``), hands out ``device_batches``, and finds
``failed_images``. ``augmentation`` has ``random_policies`` (with the folder ``operations``) and ``erasing``, drawn by
``uniforms``. ``loader_choice`` takes DALI or Pillow, ``synthetic`` has random numbers, ``staged`` joins loaders of
several stages, ``batch`` has the converters. DALI is imported when the first
:class:`~mixprec.data.loaders.dali.DaliIterator` is made.
"""
