"""The error of what a CUDA graph cannot record."""


class CaptureError(RuntimeError):
    """While a CUDA graph captures, something would have to be built, measured or allocated: warm up first.

    Example:
        >>> import chainer, chainer.links as L, numpy as np
        >>> import mixprec
        >>> optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(L.Classifier(L.Linear(4, 3)))
        >>> step = mixprec.capture(optimizer, required=True)
        >>> try:
        ...     step(np.ones((8, 4), np.float32), np.zeros(8, np.int32))
        ... except mixprec.graph_capture.CaptureError as error:
        ...     print(error)
        the training step cannot be captured, which is required: it needs a CUDA device
    """
