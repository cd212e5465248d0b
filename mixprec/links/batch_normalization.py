"""The link for batch normalization of NHWC images."""

import chainer
import chainer.links as L
import numpy as np

from mixprec import functions
from mixprec.base import arguments
from mixprec.functions import checks
from mixprec.precision.storage import check_initializers

_AXES = (None, 0, (0,), (0, 1, 2))  # all but the last


class BatchNormalization(L.BatchNormalization):
    """Batch normalization of (..., C), otherwise :class:`chainer.links.BatchNormalization`.

    Parameters and statistics are float32, whatever the dtype of the input. Training, fine-tuning and testing mode are
    Chainer's.

    Args:
        size: C; ``None`` to take it from the first input.
        decay: share of the running statistics that is kept in a step.
        eps: added to the variance.
        dtype: dtype of parameters and statistics. Only ``None`` and float32 are valid, even for inputs in float16,
            whose rounding would swallow small steps of the running statistics.
        use_gamma: whether to scale by a parameter.
        use_beta: whether to shift by a parameter.
        initial_gamma: initializer, array (C,) or number; ``None`` means 1.
        initial_beta: initializer, array (C,) or number; ``None`` means 0.
        axis: axes to average over: ``None``, 0 or ``(0, 1, 2)``, each of which means all but the last. Other axes of
            Chainer's link are invalid, as channels come last.
        initial_avg_mean: initializer, array (C,) or number; ``None`` means 0.
        initial_avg_var: initializer, array (C,) or number; ``None`` means 1.

    Raises:
        TypeError: ``use_gamma`` or ``use_beta`` is not a bool, or an initializer argument is not an initializer.
        ValueError: any other argument is invalid.

    Example:
        >>> import chainer, numpy as np
        >>> from mixprec import links
        >>> bn = links.BatchNormalization(16)
        >>> x = np.ones((8, 7, 7, 16), np.float16)
        >>> y = bn(x, add=x, relu=True)  # relu(normalized + x): the end of a residual block, in one pass
        >>> y.shape, y.dtype.name, bn.gamma.dtype.name
        ((8, 7, 7, 16), 'float16', 'float32')
        >>> with chainer.using_config("train", False):
        ...     y = bn(x)  # by the running statistics
    """

    def __init__(
        self,
        size=None,
        decay=0.9,
        eps=2e-5,
        dtype=None,
        use_gamma=True,
        use_beta=True,
        initial_gamma=None,
        initial_beta=None,
        axis=None,
        initial_avg_mean=None,
        initial_avg_var=None,
    ):
        name = type(self).__name__
        if dtype is not None and arguments.storage_dtype(f"{name}: dtype", dtype) != np.float32:
            raise ValueError(f"{name}: dtype must be float32, as parameters and statistics are; found {dtype}")
        axis = tuple(axis) if isinstance(axis, list) else axis
        if not isinstance(axis, (int, tuple, type(None))) or axis not in _AXES:
            found = arguments.found(axis)
            raise ValueError(f"{name}: axis must be all but the last, (0, 1, 2) in NHWC; found {found}")
        if size is not None:
            (size,) = size if isinstance(size, tuple) and len(size) == 1 else (size,)
            size = checks.whole(name, "size", size, 1)
        decay = checks.number(name, "decay", decay)
        eps = checks.number(name, "eps", eps, 0.0)
        use_gamma, use_beta = checks.flag(name, "use_gamma", use_gamma), checks.flag(name, "use_beta", use_beta)
        initial = {"initial_gamma": initial_gamma, "initial_beta": initial_beta}
        initial |= {"initial_avg_mean": initial_avg_mean, "initial_avg_var": initial_avg_var}
        check_initializers(name, **initial)
        axis = (0, 1, 2) if axis is None else axis
        super().__init__(size, decay, eps, np.float32, use_gamma, use_beta, axis=axis, **initial)

    @property
    def printable_specs(self):
        """Yields what ``str`` shows."""
        yield "size", None if self.avg_mean is None else len(self.avg_mean)
        yield "decay", self.decay
        yield "eps", self.eps
        yield "dtype", np.dtype(np.float32)
        yield "use_gamma", self.gamma is not None
        yield "use_beta", self.beta is not None

    def serialize(self, serializer):
        """Saves or loads parameters, statistics and ``N``; statistics are float32 whatever a file has."""
        super().serialize(serializer)
        for name in ("avg_mean", "avg_var"):
            array = getattr(self, name)
            if array is not None:  # of the file itself, if there was none before
                setattr(self, name, self.device.send(array).astype(np.float32, copy=False))

    def forward(self, x, *, add=None, relu=False, finetune=False, stochastic_depth=0.0):
        """Normalizes, by the statistics of the batch if ``chainer.config.train``.

        Args:
            x: (..., C) in a storage dtype, for images (N, H, W, C).
            add: ``None`` or an array or variable to add, like ``x``.
            relu: whether a ReLU follows, after the addition.
            finetune: in training, whether the running statistics are to become the mean over all batches since
                :meth:`start_finetuning`.
            stochastic_depth: in training, see :func:`~mixprec.functions.batch_normalization`.

        Returns:
            Variable like ``x``.
        """
        if self.avg_mean is None:
            checks.variable(type(self).__name__, "x", x)
            self._initialize_params(x.shape[-1])
        checks.flag(type(self).__name__, "finetune", finetune)
        gamma = self._get_gamma()[0] if self.gamma is None else self.gamma
        beta = self._get_beta()[0] if self.beta is None else self.beta
        if not chainer.config.train:
            return functions.fixed_batch_normalization(
                x, gamma, beta, self.avg_mean, self.avg_var, self.eps, add=add, relu=relu
            )
        running, decay = {"running_mean": self.avg_mean, "running_var": self.avg_var}, self.decay
        if chainer.config.in_recomputing:  # by F.forget: this batch has been counted
            running = {}
        elif finetune:
            self.N += 1
            decay = 1 - 1 / self.N
        return functions.batch_normalization(
            x, gamma, beta, eps=self.eps, decay=decay, **running, add=add, relu=relu, stochastic_depth=stochastic_depth
        )
