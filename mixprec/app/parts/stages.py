"""Progressive resizing: stages of training with different image and batch sizes, and the steps of a run.

Section ``progressive`` of a config defines the earlier stages. The last one, which may be the only one, has
``data.size`` and ``training.batch_size``.
"""

import bisect
import dataclasses
import itertools

from mixprec.app.config.data import Progressive
from mixprec.data.loaders.epochs import Epochs, Stages


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of training.

    Attributes:
        first: its first epoch.
        end: the first epoch of the next one, or the length of training.
        size: height and width of its images in pixels.
        batch_size: images in a forward and backward pass of a process.
    """

    first: int
    end: int
    size: int
    batch_size: int


def stages_of(config):
    """Returns the list of :class:`Stage` of a config, in order."""
    settings, last = config.progressive, config.training.batch_size
    firsts, ends = [0, *settings.until], [*settings.until, config.training.epochs]
    sizes, batch_sizes = [*settings.sizes, config.data.size], [*settings.batch_sizes, last]
    if not settings.batch_sizes:
        batch_sizes = [last] * len(firsts)
    return [Stage(*each) for each in zip(firsts, ends, sizes, batch_sizes, strict=True)]


def largest_stage(config):
    """Returns the :class:`Stage` whose batches have the most pixels, and so need the most memory."""
    return max(stages_of(config), key=lambda stage: stage.batch_size * stage.size**2)


def at_largest(config):
    """Returns a config for that stage alone, to measure the largest needs of a step."""
    stage = largest_stage(config)
    data = dataclasses.replace(config.data, size=stage.size)
    training = dataclasses.replace(config.training, batch_size=stage.batch_size)
    return dataclasses.replace(config, data=data, training=training, progressive=Progressive())


def epochs_of(config, images, ranks=1):
    """Returns the division of batches into epochs: :class:`~mixprec.data.loaders.epochs.Stages`, at least one.

    Args:
        config: :class:`mixprec.app.config.Config`.
        images: number of training images.
        ranks: number of processes that train together.
    """
    found, before = [], 0
    for stage in stages_of(config):
        epochs = Epochs(
            images=images,
            batch_size=stage.batch_size,
            last_batch=config.data.last_batch,
            num_shards=ranks,
            epochs_before=stage.first,
            batches_before=before,
        )
        found.append(epochs)
        before = epochs.begin(stage.end)
    return Stages(tuple(found))


class Steps:
    """The steps of the optimizer in a run, and the times, in epochs, at which they begin.

    The last step of an epoch may have fewer batches than the others.

    Args:
        config: :class:`mixprec.app.config.Config`.
        images: number of training images.
        ranks: number of processes that train together.

    Example:
        With 1,000 images, batches of 100, and of 50 from epoch 2 on::

            steps = Steps(config, 1000) steps.until(2), steps.until(3.5)  # 20, 50.0 steps.start(25)  # 2.25 epochs
    """

    def __init__(self, config, images, ranks=1):
        self._epochs = epochs_of(config, images, ranks).epochs
        self._accumulated = config.training.accumulation_steps
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
