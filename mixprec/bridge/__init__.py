"""The stand-ins for ``cupy.cudnn`` and ``cupy.cuda.cudnn``, which CuPy 14 does not have any more.

:mod:`~mixprec.bridge.placing` puts them there while Chainer is imported. Then plain Chainer's own branches for cuDNN
call :mod:`~mixprec.bridge.functions`, which compute by :mod:`mixprec.backends`. Nothing here knows of mixed precision.
"""
