"""The time that a training step takes in Python, eager and as a CUDA graph, without what launches themselves take.

The step is that of a converted model: forward, backward, weight decay, momentum SGD, dynamic loss scale. Each
contestant lives in a process of its own. The times are those of the CPU, so that other processes do not count.
"""

import contextlib
import dataclasses
import functools
import statistics

import chainer
import chainer.links as L
import numpy as np
from chainer import optimizer_hooks, optimizers

import mixprec
from benchmarks import contestants, host, machine, recording
from benchmarks.processes import Worker
from benchmarks.replay import Tape
from mixprec.graph_capture.verification import Verification

EAGER = "eager: NumPy, with kernels that compute nothing"
CAPTURED = "captured: a stand-in whose graphs do nothing"
_CHANNELS = 8
_BATCH, _SIZE = 2, 64
_WARM_UP = 3  # the first two calls of a converted model are looked at
_MORE = 20  # steps at most until the graph is launched
_LR = 1e-6  # the recorded gradients are those of every step, and weights have to stay finite
_DECAY = 0.9999  # of it, from step to step
_SCALE = 16.0


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: who does a step, and what stands for the device.
        milliseconds: median CPU time of a step.
        spread: half of the distance between the quickest and the slowest turn, in milliseconds.
        ratio: median of its time over that of :data:`EAGER` in the same turn: a busy machine slows both.
    """

    name: str
    milliseconds: float
    spread: float
    ratio: float


def measure(network, *, repeats=15):
    """Times steps of a classifier; the contestants take turns.

    As under a trainer, a step is observed and has a learning rate of its own. A captured one is all that happens around
    the launch of its graph: inputs are copied into its buffers, it is looked whether anything has changed,
    hyperparameters are uploaded, values are reported. The launch itself is left out, as are those of eager kernels.
    Layers are cut down to 8 channels: what still computes does so on so little that its time is Python's.

    Args:
        network: callable, at the top of a module, from the number of classes to a Chainer link from images
            (N, 3, H, W) to logits. Its convolutions have no groups.
        repeats: number of timed turns; one more is run before.

    Returns:
        list of Row
    """
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker()) for name in _BUILDERS}
        for name, own in workers.items():
            own.call(_prepare, name, network)
        turns = {name: functools.partial(own.call, _turn) for name, own in workers.items()}
        times = contestants.take_turns(turns, repeats, lambda turn: turn())
    return [_row(name, seconds, times[EAGER]) for name, seconds in times.items()]


def table(rows):
    """Returns the rows as an aligned text table."""
    lines = [f"{'':50}{'ms a step':>10}{'+-':>8}{'ratio':>8}"]
    lines += [f"  {row.name:48}{row.milliseconds:10.2f}{row.spread:8.2f}{row.ratio:8.3f}" for row in rows]
    return "\n".join(lines)


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


def _row(name, seconds, eager):
    median, spread = statistics.median(seconds), (max(seconds) - min(seconds)) / 2
    ratio = statistics.median(own / other for own, other in zip(seconds, eager, strict=True))
    return Row(name, median * 1e3, spread * 1e3, ratio)


# What runs in the process of a contestant

_contestant = []  # a step, and a context manager that gives what is called before each step of a turn


def _prepare(name, network):
    _contestant[:] = _BUILDERS[name](network)


def _turn():
    return host.median_time(*_contestant)


def _eager(network):
    model, *batch = _start(network)
    optimizer = optimizer_of(model, lr=_LR, init_scale=_SCALE)
    step = _observed(optimizer, functools.partial(optimizer.update, model, *batch))
    for _ in range(_WARM_UP):
        step()
    return step, Tape(step).replaying


def _captured(network):
    recording.install()
    model, *batch = _start(network)
    optimizer = optimizer_of(recording.send(model), lr=_LR, init_scale=_SCALE)
    recording.Graph.launch = lambda graph: None
    Verification.difference = lambda *results: None  # nothing is computed that could be compared
    captured = mixprec.capture(optimizer, required=True)
    step = _observed(optimizer, functools.partial(captured, *map(recording.array, batch)))
    for _ in range(_MORE):
        step()
    if not captured.replays:
        raise RuntimeError(f"no graph was launched in {_MORE} steps: {captured.report()}")
    return step, _playing_nothing


def _start(network):
    """Returns a converted model, images and labels."""
    model = L.Classifier(host.narrow(network(_CHANNELS)))
    x = np.random.RandomState(0).normal(size=(_BATCH, 3, _SIZE, _SIZE)).astype(np.float32)
    mixprec.convert(model, x)
    return model, x, np.arange(_BATCH, dtype=np.int32)


def _observed(optimizer, update):
    """Returns a step as under a trainer, with a schedule for the learning rate."""
    reporter = chainer.Reporter()
    reporter.add_observer("main", optimizer.target)

    def step():
        optimizer.lr *= _DECAY
        with reporter.scope({}):
            update()

    return step


@contextlib.contextmanager
def _playing_nothing():
    yield lambda: None


_BUILDERS = {EAGER: _eager, CAPTURED: _captured}
