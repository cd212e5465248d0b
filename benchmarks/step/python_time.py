"""The CPU time that a training step takes in Python: plain Chainer, mixprec eager, mixprec as a CUDA graph.

The step is forward, backward, weight decay and momentum SGD, as under a trainer. mixprec has a dynamic loss scale, too.
Kernels compute nothing in it. Each row lives in a process of its own, so that plain Chainer has nothing of
mixprec in it but what makes it run on today's NumPy. The times are those of the CPU: other processes do not count.
"""

import contextlib
import dataclasses
import functools
import statistics
import time
from unittest import mock

import chainer
import chainer.links as L
import numpy as np
from chainer import optimizer_hooks, optimizers

import mixprec
from benchmarks import compared_optimizers
from benchmarks.processes import Worker
from benchmarks.recording_device import null_device
from benchmarks.step.counts import graphs_compute_nothing
from benchmarks.step.tape import Tape

PLAIN, EAGER, CAPTURED = "plain Chainer", "mixprec, eager", "mixprec, captured"
BOUND = 1.0  # time over that of plain Chainer which eager steps may take
_CHANNELS = 8
_BATCH, _SIZE = 2, 64
_WARM_UP = 3  # the first two calls of a converted model are looked at
_MORE = 20  # steps at most until the graph is launched
_STEPS = 10  # in one turn: the first one, after others have had the caches, takes longer
_LR = 1e-6  # the recorded gradients are those of every step, and weights have to stay finite
_DECAY = 0.9999  # of it, from step to step
_SCALE = 16.0


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: of the way to train.
        milliseconds: median CPU time of a step.
        spread: half of the distance between the quickest and the slowest turn, in milliseconds.
        ratio: median of its time over that of plain Chainer in the same turn: a busy machine slows both.
        bound: what the ratio should not exceed, or ``None``.
    """

    name: str
    milliseconds: float
    spread: float
    ratio: float
    bound: float | None


def measure(network, *, repeats=15):
    """Times steps of a classifier. The rows take turns.

    All layers are cut down to 8 channels: what is not replaced, the update of the parameters, computes on so little
    that its time is Python's. Eager steps run again with everything but the computing, by
    :class:`benchmarks.step.tape.Tape`. A captured step is all that happens around the launch of its graph, on a
    stand-in for a device: inputs go to its buffers, the step looks whether anything has changed, hyperparameters are
    brought up to date, values are reported. The launch is left out, and so are the copies on the device and the upload,
    as are launches of eager kernels: the stand-in takes longer for these than CuPy.

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
            own.call(prepare, name, network)
        turns = {name: functools.partial(own.call, turn) for name, own in workers.items()}
        times = compared_optimizers.take_turns(turns, repeats, lambda turn: turn())
    return [_row(name, seconds, times[PLAIN]) for name, seconds in times.items()]


def table(rows):
    """Returns the rows as an aligned text table."""
    lines = [f"{'':22}{'ms a step':>10}{'+-':>8}{'ratio':>8}{'bound':>8}"]
    for row in rows:
        bound = "" if row.bound is None else f"{row.bound:8.2f}"
        lines.append(f"  {row.name:20}{row.milliseconds:10.2f}{row.spread:8.2f}{row.ratio:8.3f}{bound}")
    return "\n".join(lines)


def narrow(model, channels=_CHANNELS):
    """Cuts all parameters and statistics of a model down to so many channels; returns it."""
    for link in model.links():
        for name in link._params:
            param = link.__dict__[name]
            view = param.array[(slice(channels),) * min(2, param.ndim)]
            param.array = np.array(view, order="K")  # filters of mixprec.links keep their memory order
        for name in link._persistent:
            if isinstance(link.__dict__[name], np.ndarray):
                link.__dict__[name] = link.__dict__[name][:channels].copy()
    return model


def _row(name, seconds, plain):
    median, spread = statistics.median(seconds), (max(seconds) - min(seconds)) / 2
    ratio = statistics.median(own / other for own, other in zip(seconds, plain, strict=True))
    return Row(name, median * 1e3, spread * 1e3, ratio, BOUND if name == EAGER else None)


# What runs in the process of a row

_prepared = []  # a step, and a context manager that gives what is called before each step of a turn


def prepare(name, network):
    """Builds a row's step, which runs until nothing is new in its steps any more."""
    _prepared[:] = _BUILDERS[name](network)


def turn():
    """Returns the CPU seconds of a step, the median of some in a row."""
    step, playing = _prepared
    seconds = []
    with playing() as start:
        for _ in range(_STEPS):
            start()
            before = time.thread_time()
            step()
            seconds.append(time.thread_time() - before)
    return statistics.median(seconds)


def _plain(network):
    model, *batch = _start(network)
    optimizer = optimizers.MomentumSGD(lr=_LR).setup(model)
    optimizer.add_hook(optimizer_hooks.WeightDecay(compared_optimizers.WEIGHT_DECAY))
    return _on_tape(optimizer, batch)


def _eager(network):
    model, *batch = _start(network)
    mixprec.convert(model, batch[0])
    return _on_tape(compared_optimizers.mixed_sgd(model, lr=_LR, init_scale=_SCALE), batch)


def _on_tape(optimizer, batch):
    step = _observed(optimizer, functools.partial(optimizer.update, optimizer.target, *batch))
    for _ in range(_WARM_UP):
        step()
    return step, Tape(step).replaying


def _captured(network):
    null_device.install()
    model, *batch = _start(network)
    mixprec.convert(model, batch[0])
    optimizer = compared_optimizers.mixed_sgd(null_device.send(model), lr=_LR, init_scale=_SCALE)
    captured = mixprec.capture(optimizer, required=True)
    step = _observed(optimizer, functools.partial(captured, *map(null_device.array, batch)))
    with graphs_compute_nothing():
        for _ in range(_MORE):
            step()
    if not captured.replays:
        raise RuntimeError(f"no graph was launched in {_MORE} steps: {captured.report()}")
    return step, _playing_graphs


@contextlib.contextmanager
def _playing_graphs():
    def leave_out(*_):
        pass

    with (
        graphs_compute_nothing() as launched,
        mock.patch.object(null_device.Graphs, "copy", leave_out),
        mock.patch.object(null_device.Launcher, "upload", leave_out),
        mock.patch.object(null_device.Array, "copy", lambda array, **_: array),
    ):
        yield launched.clear


def _start(network):
    """Returns a narrow classifier, images and labels."""
    x = np.random.RandomState(0).normal(size=(_BATCH, 3, _SIZE, _SIZE)).astype(np.float32)
    return L.Classifier(narrow(network(_CHANNELS))), x, np.arange(_BATCH, dtype=np.int32)


def _observed(optimizer, update):
    """Returns a step as under a trainer, with a schedule for the learning rate."""
    reporter = chainer.Reporter()
    reporter.add_observer("main", optimizer.target)

    def step():
        optimizer.lr *= _DECAY
        with reporter.scope({}):
            update()

    return step


_BUILDERS = {PLAIN: _plain, EAGER: _eager, CAPTURED: _captured}
