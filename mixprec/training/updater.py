"""The updater, with the time it spends on training."""

import time

from chainer import backend
from chainer.training import extension, updaters


class TimedUpdater(updaters.StandardUpdater):
    """Chainer's updater; ``seconds`` sums up its own time, without evaluation and snapshots."""

    seconds = 0.0

    def update(self):
        """Runs one iteration."""
        start = time.perf_counter()
        super().update()
        self.seconds += time.perf_counter() - start

    def wait(self):
        """Waits until a GPU has done what the iterations have asked of it; that time is theirs, too."""
        start = time.perf_counter()
        if isinstance(self.device, backend.GpuDevice):
            self.device.device.synchronize()
        self.seconds += time.perf_counter() - start


class Throughput(extension.Extension):
    """Reports ``images/s`` over the iterations since it was last called; give it the trigger of the log.

    Args:
        images: number of images in an epoch.
    """

    priority = extension.PRIORITY_WRITER + 1  # before evaluation, which would wait for the GPU in its own time

    def __init__(self, images):
        self._images = images
        self._since = (0.0, 0.0)

    def initialize(self, trainer):
        """Starts the clock, at the beginning or after a resume."""
        self._since = (trainer.updater.epoch_detail, trainer.updater.seconds)

    def __call__(self, trainer):
        trainer.updater.wait()
        epoch, seconds = trainer.updater.epoch_detail, trainer.updater.seconds
        trainer.observation["images/s"] = (epoch - self._since[0]) * self._images / (seconds - self._since[1])
        self._since = (epoch, seconds)
