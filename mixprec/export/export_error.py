"""Errors for models that cannot become an ONNX graph, and for weights that cannot be used."""

from mixprec.base.messages import OneLineError


class ExportError(OneLineError):
    """A model cannot become an ONNX graph; the message is one line and names the function and its link.

    Example:
        >>> import chainer, chainer.functions as F, numpy as np
        >>> from mixprec import export
        >>> model = chainer.Sequential(F.fft)
        >>> try:
        ...     export.onnx(model, np.ones((1, 4), np.float32))
        ... except export.ExportError as error:
        ...     print(str(error).partition(":")[0])
        FFT of / cannot be exported
    """


class WeightsError(OneLineError):
    """Weights that do not fit, or an unusable file of weights; the message is one line and names the cause.

    Example:
        >>> import chainer.links as L
        >>> from mixprec import export
        >>> try:
        ...     export.load_torchvision(L.BatchNormalization(4), export.torchvision(L.BatchNormalization(8)))
        ... except export.WeightsError as error:
        ...     print(error)
        running_mean has shape (8,); BatchNormalization here has (4,)
    """
