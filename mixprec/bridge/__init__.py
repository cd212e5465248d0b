"""What Chainer finds in place of the ``cupy.cudnn`` and ``cupy.cuda.cudnn`` that CuPy 14 has no more."""
