"""Progressive resizing: stages of training with different image and batch sizes, and the steps of a run.

Section ``progressive`` of a config defines the earlier stages. The last one, which may be the only one, has
``data.size`` and ``training.batch_size``.
"""

import dataclasses

from mixprec.app.config.data import Progressive
from mixprec.data.loaders.epochs import Epochs, Stages
from mixprec.training.schedule import Steps


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


def steps_of(config, images, ranks=1):
    """Returns the :class:`~mixprec.training.schedule.Steps` of a run; arguments are as for :func:`epochs_of`."""
    return Steps(epochs_of(config, images, ranks), config.training.accumulation_steps)
