"""What a run shows on the console: a progress bar, and a table with a line for each entry of the log."""

import sys

from chainer.training import extension
from tqdm import tqdm


class ProgressBar(extension.Extension):
    """A bar over the whole training with images/s and the remaining time, on standard error if that is a terminal.

    It also shows the loss scale as it was last logged: to ask the optimizer in every step would let the GPU wait.

    Args:
        images: number of images in an epoch.
        epochs: length of training in epochs.
    """

    trigger = 1, "iteration"

    def __init__(self, images, epochs):
        self._images = images
        self._epochs = epochs
        self._bar = None

    def initialize(self, trainer):
        """Draws the bar where the training begins or goes on."""
        self._bar = tqdm(
            total=self._images * self._epochs,
            initial=self._seen(trainer),
            unit=" images",
            disable=None,  # that is: unless standard error is a terminal
            dynamic_ncols=True,
        )

    def __call__(self, trainer):
        self._bar.update(self._seen(trainer) - self._bar.n)
        if not self._bar.disable:
            self._bar.set_description(f"epoch {trainer.updater.epoch + 1}/{self._epochs}", refresh=False)
            if "loss_scale" in trainer.observation:
                self._bar.set_postfix(loss_scale=f"{trainer.observation['loss_scale']:g}", refresh=False)

    def finalize(self):
        """Removes the bar."""
        if self._bar is not None:
            self._bar.close()

    def _seen(self, trainer):
        return round(trainer.updater.epoch_detail * self._images)


class Lines:
    """The stream for Chainer's PrintReport: whole lines, above the progress bar and without cursor controls."""

    def __init__(self):
        self._pending = ""

    def write(self, text):
        """Takes a part of a line and prints the lines that are complete."""
        *lines, self._pending = (self._pending + text.replace("\033[J", "")).split("\n")
        for line in lines:
            tqdm.write(line, file=sys.stdout)

    def flush(self):
        """Flushes standard output."""
        sys.stdout.flush()
