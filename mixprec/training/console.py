"""Console output of a run: progress bars for training and evaluation, and a table with the entries of the log.

:func:`mixprec.app.parts.trainer.build_trainer` adds these extensions.
"""

import contextlib
import math
import sys

from chainer import dataset
from chainer.training import extension, extensions
from tqdm import tqdm

from mixprec.backends.transfers import HostCopy, to_host_async
from mixprec.base.announcements import announce
from mixprec.base.messages import one_line
from mixprec.base.standard_streams import bars_are_off
from mixprec.training.label_accuracy import TOP
from mixprec.training.log_report import value_of

_COLUMNS = ("epoch", "main/loss", "main/accuracy")
_VALIDATION = ("validation/main/loss", "validation/main/accuracy", "validation/main/accuracy_top5")
_OTHERS = ("lr", "loss_scale", "skipped", "images/s")


class ProgressBar(extension.Extension):
    """A progress bar for the whole training with images/s and remaining time, on standard error if it is a terminal.

    It also shows loss and loss scale, without making the host wait. The loss is copied to the host asynchronously and
    shown when it arrives, so it may be a few steps old. The loss scale is the last logged one.

    Args:
        images: number of images in an epoch.
        epochs: length of training in epochs.
    """

    trigger = 1, "iteration"

    def __init__(self, images, epochs):
        self._images = images
        self._epochs = epochs
        self._bar = tqdm(disable=True)  # until there is one
        self._coming = None  # the loss in transfer to the host
        self._shown = {}

    def initialize(self, trainer):
        """Draws the bar at the current position, also after a resume."""
        self._bar = _bar(self._images * self._epochs, initial=self._seen(trainer))

    def __call__(self, trainer):
        self._bar.update(self._seen(trainer) - self._bar.n)
        if self._bar.disable:
            return
        epoch = min(math.floor(trainer.updater.epoch_detail) + 1, self._epochs)
        self._bar.set_description(f"epoch {epoch}/{self._epochs}", refresh=False)
        if self._look(trainer.observation):
            self._bar.set_postfix(self._shown, refresh=False)

    def finalize(self):
        """Removes the bar."""
        self._bar.close()

    def _look(self, observation):
        """Takes values that have arrived; returns whether any is new."""
        before = dict(self._shown)
        if self._coming is None and "main/loss" in observation:
            self._coming = _fetch(observation["main/loss"])
        if self._coming is not None and self._coming.done:
            self._shown["loss"] = f"{float(self._coming.value):.4g}"
            self._coming = None
        if "loss_scale" in observation:
            self._shown["loss_scale"] = f"{observation['loss_scale']:g}"
        return self._shown != before

    def _seen(self, trainer):
        return round(trainer.updater.epoch_detail * self._images)


class Shown(dataset.Iterator):
    """The iterator of an evaluation, with a progress bar while it runs.

    Args:
        iterator: finite iterator over batches ``(x, t)``, with a method ``reset``.
        images: number of images that it delivers.
        before_batch: function that is called before each batch is delivered.
    """

    def __init__(self, iterator, images, before_batch=lambda: None):
        self._iterator = iterator
        self._images = images
        self._before_batch = before_batch
        self._bar = tqdm(disable=True)  # until there is one

    def reset(self):
        """Rewinds, and draws a new bar."""
        self._bar.close()
        self._iterator.reset()
        self._bar = _bar(self._images, desc="validation", leave=False)

    def __next__(self):
        try:
            batch = next(self._iterator)
            self._before_batch()
        except BaseException:
            self._bar.close()
            raise
        self._bar.update(min(len(batch[0]), self._images - self._bar.n))  # a padded batch has more
        return batch

    def finalize(self):
        """Ends the iterator and the bar."""
        self._bar.close()
        self._iterator.finalize()


class Table(extensions.PrintReport):
    """Prints a line for each entry of the log; entries from before a resume are not printed again.

    Args:
        classes: number of classes; with 5 or fewer there is no top-5 accuracy.
        validation: whether there is a validation.
    """

    def __init__(self, classes, validation):
        shown = _VALIDATION[: 3 if classes > TOP else 2] if validation else ()
        super().__init__((*_COLUMNS, *shown, *_OTHERS), log_report="LogReport", out=Lines())

    def initialize(self, trainer):
        """Reads the current length of the log."""
        self._log_len = len(trainer.get_extension("LogReport").log)


class Lines:
    """The stream for Chainer's PrintReport: whole lines, above the bars and without cursor controls."""

    def __init__(self):
        self._pending = ""

    def write(self, text):
        """Takes a part of a line and prints complete lines."""
        *lines, self._pending = (self._pending + text.replace("\033[J", "")).split("\n")
        for line in lines if sys.stdout is not None else ():  # None in a service, for example
            with _going_on():
                tqdm.write(line.rstrip(), file=sys.stdout)

    def flush(self):
        """Flushes standard output."""
        if sys.stdout is not None:
            with _going_on():
                sys.stdout.flush()


@contextlib.contextmanager
def _going_on():
    """A context that survives errors of standard output in a user's program; the log has everything, too."""
    try:
        yield
    except (OSError, ValueError) as error:  # a full disk, a reader that has ended; a closed file
        announce("standard output: %s; training goes on, and its log has the rest", one_line(error))


def _bar(images, **settings):
    return tqdm(total=images, unit=" images", disable=bars_are_off(), dynamic_ncols=True, **settings)


def _fetch(value):
    value = value_of(value)
    return value if isinstance(value, HostCopy) else to_host_async(value)
