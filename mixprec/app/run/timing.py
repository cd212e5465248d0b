"""The expected speed of a run: the loader alone, and some real steps alone. Only the dry run measures it."""

import dataclasses
import itertools
import time

from mixprec.app.parts.devices import on_gpu
from mixprec.app.parts.images import train_iterator
from mixprec.app.parts.stages import at_largest, stages_of

_BATCHES = 3  # batches of the loader
_IMAGES = 32  # largest number of images in such a batch
_SECONDS = 3  # after them nothing more is timed
_LONG = 30  # seconds after which no step on a GPU is started
_WARM_UP = 8  # steps on a GPU: kernels are compiled and plans measured, and the step is captured
_STEPS = 5


@dataclasses.dataclass(frozen=True)
class Timing:
    """The measured times.

    Attributes:
        loader: images/s of the loader alone.
        batches: number of batches that it was timed with.
        steps: images/s of steps alone.
        step: description of a step.
        images: number of training images in an epoch.
        epochs: number of epochs.
        ranks: number of processes that train together, one of which was timed.
        work: all epochs, in units of epochs with images of the largest stage: time is proportional to the number of
            pixels.
        at: description of that size, if there are several.
    """

    loader: float
    batches: int
    steps: float
    step: str
    images: int
    epochs: int
    ranks: int
    work: float
    at: str

    def __str__(self):
        rate = min(self.loader, self.steps) * self.ranks
        epoch = self.images / rate
        beside = "" if self.ranks == 1 else f" by {self.ranks} ranks, if they do not slow each other down"
        return (
            f"time, estimated from {self.batches} batches of the loader and {self.step}\n"
            f"  loader alone{self.loader:14.1f} images/s\n"
            f"  steps alone{self.steps:15.1f} images/s\n"
            f"  about {rate:.3g} images/s{beside}: an epoch{self.at} ~ {in_words(epoch)}, all {self.epochs} ~ "
            f"{in_words(self.work * epoch)}; evaluation and snapshots not included"
        )


def measure(config, trainer, images, ranks=1):
    """Times batches and steps of a trainer, which cannot be used afterwards.

    It takes some seconds for any config. Images and batches are from the largest stage. The loader makes batches of at
    most 32 images. On a GPU whole steps are timed, and none is started after half a minute. On a CPU a step may take
    minutes: the number of its images is reduced so that it takes seconds, with at least two images.

    Args:
        config: :class:`mixprec.app.config.Config`.
        trainer: from :func:`mixprec.app.parts.trainer.build_trainer`.
        images: the training images.
        ranks: number of processes that train together; the others do not run while this one is timed.

    Returns:
        Timing
    """
    largest, has_stages = at_largest(config), bool(config.progressive.until)
    loader, batches, batch = _time_loader(_small_batches(largest, images, trainer.updater.device))
    if on_gpu(trainer.updater.device):
        if has_stages:
            iterator = train_iterator(largest, images, trainer.updater.device, ranks=ranks)
            trainer.updater._iterators["main"] = iterator
        steps, step = _time_updates(trainer.updater, len(images) / ranks)
    else:
        steps, step = _time_some_images(trainer.updater, batch)
    work, at = _work(config, largest.data.size), f" with {largest.data.size} pixels" if has_stages else ""
    return Timing(loader, batches, steps, step, len(images), config.training.epochs, ranks, work, at)


def _work(config, size):
    """The epochs of all stages, as epochs with images of one size."""
    return sum((stage.end - stage.first) * (stage.size / size) ** 2 for stage in stages_of(config))


def in_words(seconds):
    """Returns a time as text, in at most two units."""
    seconds = round(seconds)
    units = [("d", 86400), ("h", 3600), ("min", 60), ("s", 1)]
    for (name, size), (smaller, part) in itertools.pairwise(units):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"


def some_images(config, trainer, images, timing):
    """Returns a few images and their labels on a trainer's device, as its updater would pass them to the model.

    Args:
        config, trainer, images: as for :func:`measure`.
        timing: :class:`Timing`: the number of images is what a step computes in about a second.
    """
    with _small_batches(config, images, trainer.updater.device) as iterator:
        arrays = trainer.updater.converter(iterator.next(), trainer.updater.device)
    count = max(2, int(timing.steps))
    return tuple(array[:count] for array in arrays)


def _small_batches(config, images, device):
    training = dataclasses.replace(config.training, batch_size=min(config.training.batch_size, _IMAGES))
    return train_iterator(dataclasses.replace(config, training=training), images, device)


def _time_loader(iterator):
    with iterator:
        for _ in range(2):  # the first starts threads or processes; batches made ahead by then are soon used up
            batch = iterator.next()
        images, batches, seconds, start = 0, 0, 0.0, time.perf_counter()
        while batches < _BATCHES and seconds < _SECONDS:
            batch = iterator.next()
            images, batches, seconds = images + len(batch[0]), batches + 1, time.perf_counter() - start
    return images / seconds, batches, batch


def _time_updates(updater, images):
    begin, steps = time.perf_counter(), 0
    while steps < _WARM_UP and time.perf_counter() - begin < _LONG:
        updater.update()
        steps += 1
    updater.wait()
    epoch, start, steps = updater.epoch_detail, time.perf_counter(), 0
    while steps == 0 or (steps < _STEPS and time.perf_counter() - begin < _LONG):
        updater.update()
        steps += 1
    updater.wait()
    return (updater.epoch_detail - epoch) * images / (time.perf_counter() - start), f"{steps} steps, loader included"


def _time_some_images(updater, batch):
    optimizer = updater.get_optimizer("main")
    loss = updater.loss_func or optimizer.target
    arrays = updater.converter(batch, updater.device)
    images, is_first = min(2, len(arrays[0])), True
    while True:
        start = time.perf_counter()
        optimizer.update(loss, *(array[:images] for array in arrays))
        seconds = time.perf_counter() - start
        # The first allocates states; if it takes long, it is the only one.
        if seconds > (_SECONDS if is_first else _SECONDS / 3) or (images == len(arrays[0]) and not is_first):
            return images / seconds, f"a step of {images} images"
        images, is_first = images if is_first else min(2 * images, len(arrays[0])), False
