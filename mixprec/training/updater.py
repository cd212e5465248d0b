"""The updaters, which measure their training time: one runs eager steps, one a CUDA graph for each step."""

import contextlib
import functools
import time

import chainer
import numpy as np
from chainer import backend
from chainer.dataset import convert
from chainer.training import extension, updaters

from mixprec.activation_memory.planning import DoesNotFit
from mixprec.base import arguments
from mixprec.data.loaders.batch import ToNCHW
from mixprec.graph_capture import capture
from mixprec.training.accumulation import Accumulated


class TimedUpdater(updaters.StandardUpdater):
    """Chainer's updater; ``seconds`` is the total time of its steps, without evaluation and snapshots.

    An iteration is a step of the optimizer. With ``accumulate`` it takes that many batches from the iterator, or fewer
    at the end of an epoch, see :class:`~mixprec.training.accumulation.Accumulated`; batches must then be tuples.

    Args:
        iterator: as for ``StandardUpdater``.
        optimizer: as for ``StandardUpdater``.
        args: all that ``StandardUpdater`` takes: ``converter``, ``device``, ``loss_func``...
        kwargs: as for ``StandardUpdater``.
        accumulate: number of batches in a step.
        ranks: number of processes that train together, each with a shard of the images.
        weighing: :class:`~mixprec.training.accumulation.Weighing`, if the loss is a weighted mean.
        memory: context from :func:`mixprec.offload`, which each step enters; ``None`` for none.
        mixing: :class:`mixprec.data.mixing.Mixing`, which mixes each batch; ``None`` for none. Iterator and converter
            must then be from :mod:`mixprec.data`: the iterator counts batches, and the converter mixes images in the
            iterator's layout.

    Raises:
        TypeError: ``iterator`` is not an iterator, or ``converter`` cannot mix.
        ValueError: ``accumulate`` is not a whole number, 1 or more.
    """

    seconds = 0.0

    def __init__(
        self, iterator, optimizer, *args, accumulate=1, ranks=1, weighing=None, memory=None, mixing=None, **kwargs
    ):
        kinds = chainer.dataset.Iterator, dict
        arguments.instance("iterator", iterator, kinds, "a chainer.dataset.Iterator, or a dict of them")
        self._accumulate = arguments.whole("accumulate", accumulate, 1)
        self._ranks, self._weighing = ranks, weighing
        self._mixing = mixing
        self._memory = memory
        super().__init__(iterator, optimizer, *args, **kwargs)
        if mixing is not None:
            arguments.instance("converter", self.converter, ToNCHW, "one of mixprec.data, with mixing")
        self._began = None  # start of the last iteration, in epochs

    @property
    def previous_epoch_detail(self):
        """The position at the start of the last iteration, in epochs."""
        return super().previous_epoch_detail if self._began is None else self._began

    def update_core(self):
        """Runs one step on the next batches."""
        iterator = self.get_iterator("main")
        self._began = iterator.epoch_detail
        given = self._batches(iterator) if self._sums else self._batch(iterator)
        with within_budget(self._memory):
            if isinstance(given, tuple):
                self._step(*given)
            elif isinstance(given, dict):
                self._step(**given)
            else:
                self._step(given)
        if self.auto_new_epoch and iterator.is_new_epoch:
            self.get_optimizer("main").new_epoch(auto=True)

    def _batch(self, iterator):
        batch = iterator.next()
        return self.converted(batch, getattr(iterator, "delivered", 0) - 1)

    def converted(self, batch, number):
        """Returns the model's arguments for a batch, on the device; ``number``, from 0, seeds the mixing."""
        if self._mixing is None:
            return convert._call_converter(self.converter, batch, self.input_device)
        return self.converter(batch, self.input_device, functools.partial(self._mixing.mix, number=number))

    def _batches(self, iterator):
        batches, images = [], 0
        while not batches or (len(batches) < self._accumulate and not iterator.is_new_epoch):
            batches.append(self._batch(iterator))
            images += iterator.images_of_all if self._ranks > 1 else 0
        if self._ranks == 1:
            return batches
        totals = [np.array(images / self._ranks, np.float32)]
        if self._weighing is not None:
            totals.append(self._weighing.of_ranks(batches))
        return batches, *map(self.device.send, totals)

    @property
    def _sums(self):
        return self._accumulate > 1 or self._ranks > 1

    def _lossfun(self):
        lossfun = self.loss_func or self.get_optimizer("main").target
        return Accumulated(lossfun, self._weighing) if self._sums else lossfun

    def _step(self, *args, **kwargs):
        self.get_optimizer("main").update(self._lossfun(), *args, **kwargs)

    def update(self):
        """Runs one iteration."""
        start = time.perf_counter()
        super().update()
        self.seconds += time.perf_counter() - start

    def wait(self):
        """Waits until a GPU has finished the work of the iterations; this time is included in ``seconds``."""
        start = time.perf_counter()
        if isinstance(self.device, backend.GpuDevice):
            self.device.device.synchronize()
        self.seconds += time.perf_counter() - start


@contextlib.contextmanager
def within_budget(memory):
    """A context for a step, under :func:`mixprec.offload` if given; an error names the key of the budget."""
    try:
        with contextlib.nullcontext() if memory is None else memory:
            yield
    except DoesNotFit as error:
        raise DoesNotFit(f"memory.budget: {error}; raise it, or lower training.batch_size", error.least) from None


class CapturedUpdater(TimedUpdater):
    """Chainer's updater with :func:`mixprec.capture`: after some eager steps, each step launches one CUDA graph.

    For Chainer's Trainer; extensions, observations, schedules, snapshots and evaluation work as before. On a CPU it
    does what :class:`TimedUpdater` does.

    Args:
        iterator: as for ``StandardUpdater``.
        optimizer: as for ``StandardUpdater``; the optimizer ``"main"`` must be a
            :class:`mixprec.MixedPrecisionOptimizer`.
        args: all that ``StandardUpdater`` takes: ``converter``, ``device``, ``loss_func``...; the loss function cannot
            be replaced later.
        kwargs: as for ``StandardUpdater``; also ``accumulate``, ``ranks``, ``weighing``, ``memory`` and ``mixing`` of
            :class:`TimedUpdater`.
        warmup, graphs, other_shapes, required, second_stream: as for :func:`mixprec.capture`.

    Attributes:
        step: the result of :func:`mixprec.capture`: ``step.why_not``, ``step.replays``, ``step.report()``.

    Raises:
        mixprec.graph_capture.CaptureError: ``required`` is true and no step can be captured.

    Example:
        >>> import chainer, chainer.links as L, numpy as np
        >>> import mixprec
        >>> from mixprec import training
        >>> model = L.Classifier(L.Linear(4, 3))
        >>> report = mixprec.convert(model)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD()).setup(model)
        >>> data = chainer.datasets.TupleDataset(np.ones((16, 4), np.float32), np.zeros(16, np.int32))
        >>> updater = training.CapturedUpdater(chainer.iterators.SerialIterator(data, 8), optimizer, device=-1)
        >>> trainer = chainer.training.Trainer(updater, (2, "epoch"))
        >>> trainer.run()
        >>> updater.iteration, updater.step.replays  # on a GPU graphs are launched after the first steps
        (4, 0)
    """

    def __init__(
        self,
        iterator,
        optimizer,
        *args,
        warmup=3,
        graphs=4,
        other_shapes="capture",
        required=False,
        second_stream=False,
        **kwargs,
    ):
        super().__init__(iterator, optimizer, *args, **kwargs)
        self._stage = None
        self.step = capture(
            self.get_optimizer("main"),
            self._lossfun() if self._sums else self.loss_func,
            warmup=warmup,
            graphs=graphs,
            other_shapes=other_shapes,
            required=required,
            second_stream=second_stream,
        )

    def _step(self, *args, **kwargs):
        stage = getattr(self.get_iterator("main"), "stage", None)
        if stage != self._stage:  # the last stage's graph would keep its memory, and is not launched again
            self.step.reset()
            self._stage = stage
        self.step(*args, **kwargs)


class Throughput(extension.Extension):
    """Reports ``images/s`` over the iterations since it was last called; give it the trigger of the log.

    Args:
        images: number of images in an epoch.
    """

    priority = extension.PRIORITY_WRITER + 1  # before evaluation, which would otherwise wait for the GPU

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
