"""Learning-rate schedules as pure functions of the epoch."""

import math

from chainer.training import extension


class Schedule(extension.Extension):
    """Sets the learning rate before every iteration, from the epoch alone.

    There is nothing to save: a resumed run computes the same values. The first ``warmup_epochs`` rise linearly from one
    iteration's share (Goyal et al. 2017, section 2.2); after that the rate is constant or follows half a cosine to 0
    at the end of training (Loshchilov & Hutter 2017, without restarts).

    Args:
        optimizer: optimizer whose ``attribute`` is set.
        attribute: ``"lr"``, or ``"alpha"`` for the Adam family.
        peak: learning rate at the end of the warm-up.
        kind: ``"constant"`` or ``"cosine"``.
        epochs: length of training in epochs.
        warmup_epochs: length of the warm-up in epochs, may be fractional.
        iteration_epochs: length of one iteration in epochs.
    """

    trigger = 1, "iteration"
    priority = extension.PRIORITY_READER - 1  # after the log, which shows the rate of the iteration that just ran

    def __init__(self, optimizer, attribute, *, peak, kind, epochs, warmup_epochs, iteration_epochs):
        self._optimizer = optimizer
        self._attribute = attribute
        self._peak = peak
        self._kind = kind
        self._epochs = epochs
        self._warmup_epochs = warmup_epochs
        self._iteration_epochs = iteration_epochs

    def rate(self, epoch):
        """Returns the learning rate of the iteration that starts at ``epoch`` (a float)."""
        if epoch < self._warmup_epochs:
            return self._peak * min(1.0, (epoch + self._iteration_epochs) / self._warmup_epochs)
        if self._kind == "constant":
            return self._peak
        progress = (epoch - self._warmup_epochs) / (self._epochs - self._warmup_epochs)
        return self._peak * 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))

    def initialize(self, trainer):
        """Sets the rate of the first iteration, or of the one after a resume."""
        self(trainer)

    def __call__(self, trainer):
        setattr(self._optimizer, self._attribute, self.rate(trainer.updater.epoch_detail))
