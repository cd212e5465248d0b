"""The rows of Chainer for a task on sequences: plain, and mixprec in each precision."""

import functools

import chainer

import mixprec
from benchmarks.bars.chainer_rows import FP32
from benchmarks.bars.chainer_step import step_of
from benchmarks.bars.row_worker import BenchmarkRow
from benchmarks.bars.sequences import SEQUENCES, batch_of
from benchmarks.bars.timed_step import LR
from mixprec.rewrite.trace import sizes_kept

_PRECISIONS = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16"}


def bars(specifier):
    """Returns the list of :class:`~benchmarks.bars.row_worker.BenchmarkRow` for a device.

    Args:
        specifier: of the device. Plain Chainer uses its cuDNN if it has one.
    """
    rows = [BenchmarkRow(FP32, _step)]
    for end in ("",) if specifier == "@numpy" else ("", ", captured"):
        for name, compute in _PRECISIONS.items():
            make = functools.partial(_step, compute=compute, is_captured=end != "")
            rows.append(BenchmarkRow(f"mixprec {name}{end}", make, group="config"))
    return rows


def _step(task, *, compute=None, is_captured=False):
    """Makes a step; ``compute`` is the precision of mixprec, ``None`` for plain Chainer."""
    device = chainer.get_device(task.specifier)
    device.use()
    model = SEQUENCES[task.arch]()
    model.to_device(device)
    batch = [device.send(arrays) for arrays in batch_of(task.arch, task.batch)[0]]
    optimizer = getattr(chainer.optimizers, model.optimizer)(LR)
    if compute is None:
        optimizer.setup(model)
    else:
        loss_scale = "dynamic" if compute == "float16" else None
        optimizer = mixprec.MixedPrecisionOptimizer(optimizer, loss_scale).setup(model)
        mixprec.convert(model, compute=compute)
    captured = mixprec.capture(optimizer) if is_captured else None
    update = captured or functools.partial(optimizer.update, model)
    step = step_of(device, functools.partial(update, *batch), captured)
    step.kept = sum(sizes_kept([model(*batch)]))
    return step
