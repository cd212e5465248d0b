"""The rows of plain Chainer, without mixprec: FP32 without TF32, and mixed16; as it is, and autotuned."""

import contextlib
import functools
import warnings

import chainer
import chainer.functions as F
import numpy as np
from chainer import optimizers
from chainer.backends import cuda

from benchmarks.bars.chainer_step import step_of
from benchmarks.bars.row_worker import BenchmarkRow
from benchmarks.bars.timed_step import LR
from mixprec.app.parts import environment

FP32, NO_CUDNN, CUDNN = "plain Chainer FP32", "plain Chainer FP32, no cuDNN", "plain Chainer FP32, cuDNN"
MIXED16 = "plain Chainer mixed16"
CLASSES = 1000


def bars(specifier):
    """Returns the list of :class:`~benchmarks.bars.row_worker.BenchmarkRow` for a device.

    Args:
        specifier: of the device.
    """
    mixed16 = functools.partial(step, mixed=True)
    if specifier == "@numpy":
        return [
            BenchmarkRow(FP32, functools.partial(step, use_cudnn="never")),
            BenchmarkRow(CUDNN, reason="needs a GPU"),
            BenchmarkRow(MIXED16, functools.partial(mixed16, use_cudnn="never")),
        ]
    reason = "" if cuda.cudnn_enabled else _why_no_cudnn()
    rows = [BenchmarkRow(NO_CUDNN, functools.partial(step, use_cudnn="never"))]
    for name, make in ((CUDNN, step), (MIXED16, mixed16)):
        for end, autotune in (("", False), (", autotuned", True)):
            way = functools.partial(make, use_cudnn="auto", autotune=autotune)
            rows.append(BenchmarkRow(f"{name}{end}", None if reason else way, reason))
    return rows


def base(specifier):
    """Returns the name of the row that others are compared with: plain FP32, on a GPU with cuDNN."""
    return FP32 if specifier == "@numpy" else CUDNN


def step(task, *, mixed=False, **config):
    """Makes a step of plain Chainer: forward, softmax cross entropy, backward, momentum SGD, on one batch of noise.

    Args:
        task: :class:`~benchmarks.bars.row_worker.Task`.
        mixed: whether it is ``chainer.mixed16``, with FP32 updates and Chainer's dynamic loss scale.
        **config: entries of ``chainer.config`` that are in force in a step.

    Returns:
        :class:`~benchmarks.bars.timed_step.Step`
    """
    device = chainer.get_device(task.specifier)
    device.use()
    images = np.random.RandomState(0).normal(size=(task.batch, 3, task.size, task.size))
    images = images.astype(np.float16 if mixed else np.float32)
    x, t = map(device.send, (images, np.arange(task.batch, dtype=np.int32) % CLASSES))
    with chainer.using_config("dtype", chainer.mixed16 if mixed else np.float32):
        model = task.network(CLASSES)
    model.to_device(device)
    optimizer = optimizers.CorrectedMomentumSGD(lr=LR).setup(model)
    if mixed:
        optimizer.use_fp32_update()
        optimizer.loss_scaling()

    def loss():  # L.Classifier would hold it, and all activations with it, until the next step
        return F.softmax_cross_entropy(model(x), t)

    def run():
        with _using(config), np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # mixed16 overflows, and warns of it, while it looks for its loss scale
            optimizer.update(loss)

    return step_of(device, run)


def _why_no_cudnn():
    notes = {component.name: component.note for component in environment.components()}
    return notes["Chainer's cuDNN"]


def _using(config):
    stack = contextlib.ExitStack()
    for name, value in config.items():
        stack.enter_context(chainer.using_config(name, value))
    return stack
