"""The updaters, with the time they spend on training: one with eager steps, one with a CUDA graph for each."""

import time

from chainer import backend
from chainer.dataset import convert
from chainer.training import extension, updaters

import mixprec


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


class CapturedUpdater(TimedUpdater):
    """Chainer's updater with :func:`mixprec.capture`: after some eager steps each is the launch of one CUDA graph.

    For Chainer's Trainer, whose extensions, observations, schedules, snapshots and evaluation go on as before. On a CPU
    it does what :class:`TimedUpdater` does.

    Args:
        iterator: as for ``StandardUpdater``.
        optimizer: likewise; the one named ``"main"`` is a :class:`mixprec.MixedPrecisionOptimizer`.
        args: all that ``StandardUpdater`` takes: ``converter``, ``device``, ``loss_func``...; the loss function cannot
            be replaced later.
        kwargs: likewise.
        warmup: as for :func:`mixprec.capture`.
        graphs: likewise.
        other_shapes: likewise.
        required: likewise.

    Attributes:
        step: what :func:`mixprec.capture` returned: ``step.why_not``, ``step.replays``, ``step.report()``.

    Raises:
        mixprec.graph_capture.CaptureError: ``required`` is true and no step can be captured.
    """

    def __init__(
        self, iterator, optimizer, *args, warmup=3, graphs=4, other_shapes="capture", required=False, **kwargs
    ):
        super().__init__(iterator, optimizer, *args, **kwargs)
        self.step = mixprec.capture(
            self.get_optimizer("main"),
            self.loss_func,
            warmup=warmup,
            graphs=graphs,
            other_shapes=other_shapes,
            required=required,
        )

    def update_core(self):
        """Runs one step on the next batch."""
        iterator = self.get_iterator("main")
        arrays = convert._call_converter(self.converter, iterator.next(), self.input_device)
        if isinstance(arrays, tuple):
            self.step(*arrays)
        elif isinstance(arrays, dict):
            self.step(**arrays)
        else:
            self.step(arrays)
        if self.auto_new_epoch and iterator.is_new_epoch:
            self.get_optimizer("main").new_epoch(auto=True)


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
