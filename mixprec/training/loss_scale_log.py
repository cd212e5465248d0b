"""Loss scale, skipped steps and gradient norm as entries of the log."""

import math

import numpy as np
from chainer import backend
from chainer.training import extension

from mixprec.backends.transfers import to_host
from mixprec.base import arguments


class LossScaleLog(extension.Extension):
    """Reports ``loss_scale``, ``skipped`` and ``gradient_norm``; give it the trigger of the log.

    These are the loss scale of the next step, the number of skipped steps since training began, and the L2 norm over
    all gradients of the last step, unscaled and before any hook. A norm that is inf or NaN is left out: the step was
    skipped, and JSON has no such number. The norm is computed for the last step only, so a log at the end of an epoch
    is best with full batches: ``data.last_batch: drop``.

    Each call waits for a read from the GPU; so use it once per entry of the log, not in every step.

    Args:
        optimizer: the :class:`~mixprec.MixedPrecisionOptimizer`.

    Raises:
        TypeError: ``optimizer`` is not a :class:`~mixprec.MixedPrecisionOptimizer`.

    Example:
        >>> import tempfile
        >>> import chainer, chainer.links as L, numpy as np
        >>> import mixprec
        >>> from mixprec import training
        >>> model = L.Classifier(L.Linear(4, 3))
        >>> report = mixprec.convert(model)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD()).setup(model)
        >>> data = chainer.datasets.TupleDataset(np.ones((16, 4), np.float32), np.zeros(16, np.int32))
        >>> updater = training.CapturedUpdater(chainer.iterators.SerialIterator(data, 8), optimizer, device=-1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trainer = chainer.training.Trainer(updater, (2, "epoch"), out=folder)
        ...     trainer.extend(training.LossScaleLog(optimizer), trigger=(1, "epoch"))
        ...     log = training.LogReport(trigger=(1, "epoch"))
        ...     trainer.extend(log)
        ...     trainer.run()
        >>> log.log[0]["loss_scale"], log.log[0]["skipped"], log.log[0]["gradient_norm"] > 0
        (65536.0, 0.0, True)
    """

    trigger = 1, "epoch"
    priority = extension.PRIORITY_WRITER  # before the log of the same iteration

    def __init__(self, optimizer):
        self._optimizer = arguments.optimizer("optimizer", optimizer)

    def __call__(self, trainer):
        trainer.observation["loss_scale"] = self._optimizer.loss_scale
        trainer.observation["skipped"] = self._optimizer.skipped
        norm = _norm(array for _, array in self._optimizer.unscaled_gradients())
        if math.isfinite(norm):
            trainer.observation["gradient_norm"] = norm


def _norm(arrays):
    # In FP64 no square of an FP32 number overflows. Only the final sum is read from the device.
    squares = [(array.astype(np.float64) ** 2).sum() for array in arrays]
    if not squares:
        return 0.0
    device = backend.get_device_from_array(*squares)
    return math.sqrt(to_host(device.xp.stack([device.send(square) for square in squares]).sum()))
