"""The time that a training step takes in Python, with kernels that compute nothing.

The step is that of a converted model: forward, backward, weight decay, momentum SGD, dynamic loss scale. Each
contestant lives in a process of its own. The times are those of the CPU, so that other processes do not count.
"""

import contextlib
import dataclasses
import functools
import statistics
import time

import chainer.links as L
import numpy as np
from chainer import optimizer_hooks, optimizers

import mixprec
from mixprec.benchmark import contestants, host, machine
from mixprec.benchmark.processes import process, run_in
from mixprec.benchmark.replay import Tape

EAGER = "eager, results of kernels replayed on NumPy"
_CHANNELS = 8
_BATCH, _SIZE = 2, 64
_WARM_UP = 3  # the first two calls of a converted model are looked at
_STEPS = 10  # in one turn
_LR = 1e-6  # the recorded gradients are those of every step, and weights have to stay finite


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: who does a step, and what stands for the device.
        milliseconds: median CPU time of a step.
        spread: half of the distance between the quickest and the slowest turn, in milliseconds.
    """

    name: str
    milliseconds: float
    spread: float


def measure(network, *, repeats=15):
    """Times steps of a classifier; the contestants take turns.

    All layers are cut down to 8 channels: what still computes does so on so little that its time is Python's.

    Args:
        network: callable, at the top of a module, from the number of classes to a Chainer link from images
            (N, 3, H, W) to logits. Its convolutions have no groups.
        repeats: number of timed turns; one more is run before.

    Returns:
        list of Row
    """
    with contextlib.ExitStack() as stack:
        processes = {name: stack.enter_context(process()) for name in _BUILDERS}
        for name, own in processes.items():
            run_in(own, _prepare, name, network)
        turns = {name: functools.partial(run_in, own, _turn) for name, own in processes.items()}
        times = contestants.take_turns(turns, repeats, lambda turn: turn())
    return [_row(name, seconds) for name, seconds in times.items()]


def table(rows):
    """Returns the rows as an aligned text table."""
    lines = [f"{'':50}{'ms a step':>10}{'+-':>8}"]
    return "\n".join([*lines, *(f"  {row.name:48}{row.milliseconds:10.2f}{row.spread:8.2f}" for row in rows)])


def as_json(rows, gpu, **settings):
    """Returns rows, those of a GPU and settings as a dict for JSON, with what they were measured on."""
    host_rows = [dataclasses.asdict(row) for row in rows]
    return {"settings": settings, **machine.record(), "rows": host_rows, "gpu": gpu}


def optimizer_of(model, *, lr, init_scale):
    """Returns the optimizer of all contestants: momentum SGD with weight decay, and a dynamic loss scale.

    Args:
        model: a converted model.
        lr: the learning rate.
        init_scale: the loss scale at the start.
    """
    scale = mixprec.DynamicLossScale(init=init_scale)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(lr=lr), scale).setup(model)
    optimizer.add_hook(optimizer_hooks.WeightDecay(contestants.WEIGHT_DECAY))
    return optimizer


def _row(name, seconds):
    return Row(name, statistics.median(seconds) * 1e3, (max(seconds) - min(seconds)) / 2 * 1e3)


# What runs in the process of a contestant

_contestant = []  # a step, and a context manager that gives what is called before each step of a turn


def _prepare(name, network):
    _contestant[:] = _BUILDERS[name](network)


def _turn():
    """Returns the seconds of a step."""
    step, playing = _contestant
    seconds = []
    with playing() as start:
        for _ in range(_STEPS):
            start()
            before = time.thread_time()
            step()
            seconds.append(time.thread_time() - before)
    return statistics.median(seconds)


def _eager_on_numpy(network):
    model = L.Classifier(host.narrow(network(_CHANNELS)))
    mixprec.convert(model)
    optimizer = optimizer_of(model, lr=_LR, init_scale=16.0)
    step = functools.partial(optimizer.update, model, *_batch())
    for _ in range(_WARM_UP):
        step()
    return step, Tape(step).replaying


def _batch():
    x = np.random.RandomState(0).normal(size=(_BATCH, 3, _SIZE, _SIZE)).astype(np.float32)
    return x, np.arange(_BATCH, dtype=np.int32)


_BUILDERS = {EAGER: _eager_on_numpy}
