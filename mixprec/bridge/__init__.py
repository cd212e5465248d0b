"""Replacements for ``cupy.cudnn`` and ``cupy.cuda.cudnn``, which CuPy 14 has removed.

``placing`` installs them while Chainer is imported. Then plain Chainer's own branches for cuDNN call the functions that
``functions`` collects from ``convolution``, ``batch_norm``, ``pooling_activation``, ``dropout``, ``switches`` and
``not_bridged``; they compute by :mod:`mixprec.backends`. ``cupy_cudnn`` and ``constants`` are the two modules,
``calls`` has helpers, ``chainers_own`` the fallbacks, and ``branches`` turns cuDNN off for RNNs and samplers.
``missing_cupy`` improves the error for a GPU without CuPy. Nothing here depends on mixed precision.
"""
