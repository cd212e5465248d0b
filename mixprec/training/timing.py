"""How fast a run will be: the loader alone, and some real steps alone."""

import dataclasses
import itertools
import time

from chainer import backend

_BATCHES = 3  # of the loader
_SECONDS = 3  # after which no more is timed
_WARM_UP = 8  # steps on a GPU: kernels are compiled and plans measured, and the step is captured
_STEPS = 5


@dataclasses.dataclass(frozen=True)
class Timing:
    """What was timed.

    Attributes:
        loader: images/s of the loader, with nothing beside it.
        batches: number of batches that it was timed with.
        steps: images/s of steps, with nothing beside them.
        step: what a step was, in words.
        images: number of training images in an epoch.
        epochs: number of epochs.
    """

    loader: float
    batches: int
    steps: float
    step: str
    images: int
    epochs: int

    def __str__(self):
        rate = min(self.loader, self.steps)
        epoch = self.images / rate
        return (
            f"time, estimated from {self.batches} batches of the loader and {self.step}\n"
            f"  loader alone{self.loader:14.1f} images/s\n"
            f"  steps alone{self.steps:15.1f} images/s\n"
            f"  about {rate:.3g} images/s: an epoch ~ {in_words(epoch)}, all {self.epochs} ~ "
            f"{in_words(self.epochs * epoch)}; evaluation and snapshots come on top"
        )


def measure(trainer, images, epochs):
    """Times batches and steps of a trainer that is not used afterwards.

    On a GPU these are whole steps. On a CPU a batch may take minutes: it is cut to so many images that a step takes
    seconds.

    Args:
        trainer: from :func:`mixprec.training.trainer.build_trainer`.
        images: number of training images in an epoch.
        epochs: number of epochs.

    Returns:
        Timing
    """
    loader, batches, batch = _time_loader(trainer.updater.get_iterator("main"))
    if isinstance(trainer.updater.device, backend.GpuDevice):
        steps, step = _time_updates(trainer.updater, images)
    else:
        steps, step = _time_some_images(trainer.updater, batch)
    return Timing(loader, batches, steps, step, images, epochs)


def in_words(seconds):
    """Returns a time as text, in two units at most."""
    seconds = round(seconds)
    units = [("d", 86400), ("h", 3600), ("min", 60), ("s", 1)]
    for (name, size), (smaller, part) in itertools.pairwise(units):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"


def _time_loader(iterator):
    for _ in range(2):  # the first starts threads or processes; what they have made ahead by then is soon used up
        batch = iterator.next()
    images, batches, seconds, start = 0, 0, 0.0, time.perf_counter()
    while batches < _BATCHES and seconds < _SECONDS:
        batch = iterator.next()
        images, batches, seconds = images + len(batch[0]), batches + 1, time.perf_counter() - start
    return images / seconds, batches, batch


def _time_updates(updater, images):
    for _ in range(_WARM_UP):
        updater.update()
    updater.wait()
    epoch, start = updater.epoch_detail, time.perf_counter()
    for _ in range(_STEPS):
        updater.update()
    updater.wait()
    return (updater.epoch_detail - epoch) * images / (time.perf_counter() - start), f"{_STEPS} steps, loader included"


def _time_some_images(updater, batch):
    optimizer = updater.get_optimizer("main")
    loss = updater.loss_func or optimizer.target
    arrays = updater.converter(batch, updater.device)
    images, seconds = min(2, len(arrays[0])), 0.0
    optimizer.update(loss, *(array[:images] for array in arrays))  # allocates states
    while True:
        start = time.perf_counter()
        optimizer.update(loss, *(array[:images] for array in arrays))
        seconds = time.perf_counter() - start
        if images == len(arrays[0]) or seconds > _SECONDS / 3:
            return images / seconds, f"a step of {images} images"
        images = min(2 * images, len(arrays[0]))
