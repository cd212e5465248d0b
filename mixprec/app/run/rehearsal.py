"""The rehearsal: runs each shape of a run through the network once, before the loader starts.

cuDNN's plans are then built, and its engines measured, on an otherwise idle GPU. Without it, this would happen in the
first step, while the loader decodes on the GPU, and in the middle of training for each stage of progressive resizing.
The training command calls :func:`rehearse`.
"""

import contextlib
import dataclasses
import time
from typing import NamedTuple

import numpy as np
from chainer import no_backprop_mode, using_config

from mixprec.activation_memory.network_blocks import unnoticed
from mixprec.app.parts.devices import on_gpu
from mixprec.app.parts.images import random_batch, val_epochs
from mixprec.app.parts.stages import epochs_of, stages_of
from mixprec.graph_capture.called_links import array_of
from mixprec.graph_capture.cuda_graphs import graphs_of
from mixprec.rewrite.example import without_trace
from mixprec.training.evaluation import Evaluator
from mixprec.training.updater import CapturedUpdater, within_budget


class Shape(NamedTuple):
    """The shape of a batch.

    Attributes:
        images: number of its images.
        size: their height and width in pixels.
    """

    images: int
    size: int

    def __str__(self):
        return f"{self.images} x {self.size}x{self.size}"


def rehearse(config, trainer, train, val, ranks, memory=None):
    """Runs forward and backward pass for each shape of training, and the forward pass for each shape of evaluation.

    Batches are random numbers: engines are compared on them, and zeros would hide a wrong one. Nothing is updated. The
    contents of snapshots, and random states, are restored bit for bit. The largest shape comes first, and the memory of
    each is released, so that no more is needed than for a step. Ranks do not wait for each other.

    On a CPU there are no engines, and nothing happens. Nothing happens either at the end of training.

    Args:
        config: :class:`mixprec.app.config.Config`.
        trainer: from :func:`mixprec.app.parts.trainer.build_trainer`, at the position where it starts or resumes.
        train: training images.
        val: validation images, or ``None``.
        ranks: from :mod:`mixprec.distributed.processes`.
        memory: the updater's, from :func:`mixprec.offload`, or ``None``.
    """
    updater, begin = trainer.updater, time.perf_counter()
    steps = training_shapes(config, len(train), ranks.rank, ranks.size, updater.epoch_detail)
    if not steps or not _has_engines(updater.device):
        return
    evaluator, evaluations = None, []
    if val is not None:
        evaluator = trainer.get_extension(Evaluator.default_name)
        one_shape = evaluator.eval_func is not None
        evaluations = evaluation_shapes(config, len(val), one_shape, ranks.rank, ranks.size)
    if ranks.is_first:
        parts = [("training", steps), ("evaluation", evaluations)]
        words = "; ".join(f"{name} {', '.join(map(str, shapes))}" for name, shapes in parts if shapes)
        print(f"rehearsal: engines are chosen for batches of {words}", end="", flush=True)
    for shape in steps:
        batch = random_batch(config, shape.size, shape.images, updater.device)
        pass_of_training(updater, updater.converted(batch, 0), memory)
        del batch
        _give_memory_back(updater.device)
    for shape in evaluations:
        batch = random_batch(config, shape.size, shape.images, updater.device)
        arrays = updater.converter(batch, updater.device)
        pass_of_evaluation(evaluator, updater.get_optimizer("main"), arrays)
        del batch, arrays
        _give_memory_back(updater.device)
    if ranks.is_first:
        print(f", {time.perf_counter() - begin:.1f} s", flush=True)


def training_shapes(config, images, rank=0, ranks=1, since=0.0):
    """Returns the list of each :class:`Shape` in the steps of a run, the most pixels first.

    Args:
        config: :class:`mixprec.app.config.Config`.
        images: number of training images.
        rank: rank of the process.
        ranks: number of processes that train together.
        since: time in epochs from which steps count.
    """
    stages = zip(stages_of(config), epochs_of(config, images, ranks).epochs, strict=True)
    to_come = [(stage, epochs) for stage, epochs in stages if stage.end > since]
    return _largest_first({Shape(count, stage.size) for stage, epochs in to_come for count in _counts(epochs, rank)})


def evaluation_shapes(config, images, one_shape, rank=0, ranks=1):
    """Returns the list of each :class:`Shape` in an evaluation, in the same order.

    Args:
        config: :class:`mixprec.app.config.Config`.
        images: number of validation images.
        one_shape: whether the last batch is filled up.
        rank: rank of the process.
        ranks: number of processes that train together.
    """
    size = config.data.val_size or config.data.size
    epochs = val_epochs(config, images, one_shape=one_shape, ranks=ranks)
    return _largest_first({Shape(count, size) for count in _counts(epochs, rank)})


def pass_of_training(updater, arrays, memory=None):
    """Runs forward and backward pass, and restores everything.

    Args:
        updater: :class:`~mixprec.training.updater.TimedUpdater`.
        arrays: arrays of a batch, the arguments of the model, on the device.
        memory: as for :func:`rehearse`.
    """
    optimizer = updater.get_optimizer("main")
    model = optimizer.target
    lossfun = updater.loss_func or model
    budget = within_budget(None if memory is None else memory.afresh())
    with _unchanged(optimizer), _stream(model, isinstance(updater, CapturedUpdater)), budget:
        loss = lossfun(*arrays)
        model.cleargrads()
        loss.backward(loss_scale=optimizer.loss_scale)


def pass_of_evaluation(evaluator, optimizer, arrays):
    """Runs the forward pass of an evaluation, and restores everything.

    Args:
        evaluator: :class:`~mixprec.training.evaluation.Evaluator`.
        optimizer: :class:`~mixprec.MixedPrecisionOptimizer` of the model.
        arrays: as for :func:`pass_of_training`.
    """
    model = optimizer.target
    stream = _stream(model, evaluator.eval_func is not None)
    with _unchanged(optimizer), stream, using_config("train", False), no_backprop_mode():
        model(*arrays)


def _has_engines(device):
    return on_gpu(device)


def _counts(epochs, rank):
    """The numbers of images in the batches of a rank; all except the last of an epoch are full."""
    if epochs.last_batch == "pad":
        return {epochs.batch_size}
    own, first = dataclasses.replace(epochs, shard=rank), epochs.batches_before
    # A rank without an image in the last batch gets one that does not count.
    return {max(1, own.count(number)) for number in (first, first + own.batches - 1)}


def _largest_first(shapes):
    return sorted(shapes, key=lambda shape: (-shape.images * shape.size**2, shape))


@contextlib.contextmanager
def _unchanged(optimizer):
    """After the block the model, its statistics, and all random states are restored; gradients are cleared."""
    model = optimizer.target
    with contextlib.ExitStack() as stack:
        stack.enter_context(without_trace(model))
        stack.enter_context(unnoticed(model))
        stack.enter_context(optimizer._statistics.kept())
        if on_gpu(model.device):  # CuPy's global functions use another state; NumPy's is restored elsewhere
            random = model.device.xp.random
            stack.callback(random.set_random_state, random.get_random_state())
            random.set_random_state(random.RandomState(0))
        stack.enter_context(np.errstate(over="ignore", invalid="ignore"))
        stack.callback(model.cleargrads)
        yield


def _stream(model, is_captured):
    """The stream of the run: workspaces belong to a stream, and another stream would keep a second one for good."""
    graphs = graphs_of(array_of(model)) if is_captured else None
    return contextlib.nullcontext() if graphs is None else graphs.on_stream()


def _give_memory_back(device):
    if on_gpu(device):
        with device.device:
            device.xp.get_default_memory_pool().free_all_blocks()
