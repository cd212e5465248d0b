"""The output of a run on the console: bars for training and evaluation, and a table with the entries of the log.

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
    """A bar over the whole training with images/s and the remaining time, on standard error if that is a terminal.

    It also shows loss and loss scale. The host waits for neither. The loss is copied to the host in passing, one at a
    time, and shown when it is there, so that it may be a few steps old. The loss scale is the one that was last logged.

    Args:
        images: number of images in an epoch.
        epochs: length of training in epochs.
    """

    trigger = 1, "iteration"

    def __init__(self, images, epochs):
        self._images = images
        self._epochs = epochs
        self._bar = tqdm(disable=True)  # until there is one
        self._coming = None  # the loss that is on its way to the host
        self._shown = {}

    def initialize(self, trainer):
        """Draws the bar where the training begins or goes on."""
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
        """Takes what is there; returns whether something is new."""
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
    """The iterator of an evaluation, with a bar that is there as long as it runs.

    Args:
        iterator: iterator over batches ``(x, t)`` that ends, and has ``reset``.
        images: number of images that it delivers.
        before_batch: called before each batch is delivered.
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
        self._bar.update(min(len(batch[0]), self._images - self._bar.n))  # a padded batch has more than are left
        return batch

    def finalize(self):
        """Ends the iterator and the bar."""
        self._bar.close()
        self._iterator.finalize()


class Table(extensions.PrintReport):
    """A line for each entry of the log; those from before a resume are not printed again.

    Args:
        classes: number of classes: with up to 5 there is no top-5 accuracy.
        validation: whether there is one.
    """

    def __init__(self, classes, validation):
        shown = _VALIDATION[: 3 if classes > TOP else 2] if validation else ()
        super().__init__((*_COLUMNS, *shown, *_OTHERS), log_report="LogReport", out=Lines())

    def initialize(self, trainer):
        """Looks how long the log is already."""
        self._log_len = len(trainer.get_extension("LogReport").log)


class Lines:
    """The stream for Chainer's PrintReport: whole lines, above the bars and without cursor controls."""

    def __init__(self):
        self._pending = ""

    def write(self, text):
        """Takes a part of a line and prints the lines that are complete."""
        *lines, self._pending = (self._pending + text.replace("\033[J", "")).split("\n")
        for line in lines if sys.stdout is not None else ():  # which is None in a service, for example
            with _going_on():
                tqdm.write(line.rstrip(), file=sys.stdout)

    def flush(self):
        """Flushes standard output."""
        if sys.stdout is not None:
            with _going_on():
                sys.stdout.flush()


@contextlib.contextmanager
def _going_on():
    """In a program of the user's the streams are as they are; the log has all that would have been printed."""
    try:
        yield
    except (OSError, ValueError) as error:  # a full disk, a reader that has gone; a file that is closed
        announce("standard output: %s; training goes on, and its log has the rest", one_line(error))


def _bar(images, **settings):
    return tqdm(total=images, unit=" images", disable=bars_are_off(), dynamic_ncols=True, **settings)


def _fetch(value):
    value = value_of(value)
    return value if isinstance(value, HostCopy) else to_host_async(value)
