"""Schedules of learning rate and damping as pure functions of the epoch, and the steps in an epoch.

The trainer calls a :class:`Schedule` after each step, which sets the learning rate of the next step, and a second one
for the damping of K-FAC.
"""

import bisect
import dataclasses
import itertools
import math

from chainer.training import extension


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates:
    """The learning rate over the epochs.

    In the first ``warmup_epochs`` it rises linearly, from ``warmup_start_lr`` or, if that is ``None``, from ``peak``
    divided by the number of warm-up iterations, to ``peak`` (Goyal et al. 2017, arXiv:1706.02677, section 2.2). Then it
    depends on ``settings.kind``; ``progress`` is 0 at the end of the warm-up, or with ``decay_from`` at the start of
    training, and 1 at the end of training:

    ============  ================================================================================================
    ``constant``  ``peak``
    ``cosine``    ``end_lr + (peak - end_lr) * (1 + cos(pi * progress)) / 2`` (Loshchilov & Hutter 2017,
                  arXiv:1608.03983, without restarts)
    ``step``      ``peak * gamma ** n`` after n of the ``milestones`` (He et al. 2015, arXiv:1512.03385, with gamma 0.1)
    ``poly``      ``end_lr + (peak - end_lr) * (1 - progress) ** power`` (You et al. 2017, arXiv:1708.03888, and
                  MLPerf's reference for LARS, with power 2)
    ============  ================================================================================================

    Attributes:
        settings: an object with the attributes ``kind``, ``by``, ``warmup_epochs``, ``warmup_start_lr``, ``end_lr``,
            ``milestones``, ``gamma``, ``power`` and ``decay_from``; its rates are scaled already.
        peak: learning rate at the end of the warm-up.
        epochs: length of training in epochs.
        stages: for each stage of training, in order: the epoch at which it ends, the factor on the rate, and the length
            of an iteration in epochs. The last stage has no end.
    """

    settings: object
    peak: float
    epochs: int
    stages: tuple[tuple[float, float, float], ...]

    def at(self, epoch):
        """Returns the learning rate of the iteration that starts at ``epoch`` (a float)."""
        epoch = math.floor(epoch) if self.settings.by == "epoch" else epoch
        current = (each for each in self.stages if epoch < each[0])
        _, factor, iteration_epochs = next(current, self.stages[-1])
        return factor * self._at(epoch, iteration_epochs)

    def _at(self, epoch, iteration_epochs):
        settings, warmup, start = self.settings, self.settings.warmup_epochs, self.settings.warmup_start_lr
        if epoch < warmup:
            if start is not None:
                return start + (self.peak - start) * epoch / warmup
            return self.peak * min(1.0, (epoch + iteration_epochs) / warmup)
        if settings.kind == "constant":
            return self.peak
        if settings.kind == "step":
            return self.peak * settings.gamma ** sum(epoch >= milestone for milestone in settings.milestones)
        begin = warmup if settings.decay_from == "warmup" else 0.0
        left = 1.0 - min(1.0, (epoch - begin) / (self.epochs - begin))
        share = left**settings.power if settings.kind == "poly" else (1.0 - math.cos(math.pi * left)) / 2
        return settings.end_lr + (self.peak - settings.end_lr) * share


class Schedule(extension.Extension):
    """Sets an attribute, such as the learning rate, before every iteration, from the epoch alone.

    It saves nothing: a resumed run computes the same values.

    Args:
        target: object whose ``attribute`` is set, such as an optimizer.
        attribute: name of the attribute; for a learning rate see :func:`mixprec.app.parts.optimizers.attribute`.
        at: function from the epoch, a float, to the value, such as :meth:`Rates.at`.
    """

    trigger = 1, "iteration"
    priority = extension.PRIORITY_READER - 1  # after the log, which shows the rate of the iteration that just ran

    def __init__(self, target, attribute, at):
        self._target, self._attribute, self._at = target, attribute, at

    def initialize(self, trainer):
        """Sets the value of the first iteration, or of the one after a resume."""
        self(trainer)

    def __call__(self, trainer):
        setattr(self._target, self._attribute, self._at(trainer.updater.epoch_detail))


class Steps:
    """The steps of the optimizer in a run, and the times, in epochs, at which they begin.

    The last step of an epoch may have fewer batches than the others.

    Args:
        epochs: :class:`~mixprec.data.loaders.epochs.Stages`, the batches of the epochs.
        accumulated: batches of a step.

    Example:
        >>> from mixprec.data.loaders.epochs import Epochs, Stages
        >>> steps = Steps(Stages((Epochs(images=1000, batch_size=100),)))
        >>> steps.until(3.5), steps.start(25), steps.in_epoch(0)
        (35.0, 2.5, 10)
    """

    def __init__(self, epochs, accumulated=1):
        self._epochs, self._accumulated = epochs.epochs, accumulated
        self._firsts = [each.epochs_before for each in self._epochs]
        lengths = (following - first for first, following in itertools.pairwise(self._firsts))
        steps = (length * self._in(each) for length, each in zip(lengths, self._epochs, strict=False))
        self._before = list(itertools.accumulate(steps, initial=0))

    def until(self, epoch):
        """Returns the number of steps before a time in epochs; with a fraction if it lies in the middle of a step."""
        stage = bisect.bisect_right(self._firsts, epoch) - 1
        return self._before[stage] + (epoch - self._firsts[stage]) * self._in(self._epochs[stage])

    def start(self, step):
        """Returns the time in epochs, a float, at which a step begins; the first is step 0."""
        stage = bisect.bisect_right(self._before, step) - 1
        epochs = self._epochs[stage]
        epoch, rest = divmod(step - self._before[stage], self._in(epochs))
        return epochs.detail(epochs.begin(epochs.epochs_before + epoch) + rest * self._accumulated)

    def in_epoch(self, epoch):
        """Returns the number of steps in an epoch."""
        return self._in(self._epochs[bisect.bisect_right(self._firsts, epoch) - 1])

    def _in(self, epochs):
        return -(-epochs.batches // self._accumulated)
