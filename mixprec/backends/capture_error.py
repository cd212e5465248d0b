"""The error for work that a CUDA graph cannot record."""


class CaptureError(RuntimeError):
    """A step or an evaluation cannot become a CUDA graph; the message names the reason, and the line if known.

    :func:`mixprec.capture` raises it with ``required=True`` and otherwise logs a warning. Code that captures by itself
    gets it if something would have to be built, measured or allocated meanwhile: run the code once before.

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
