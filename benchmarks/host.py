"""The time that a training step takes in Python, beside plain Chainer's: with kernels that compute nothing.

Each contestant lives in a process of its own, so that plain Chainer has nothing of mixprec in it but what makes it run
on today's NumPy. It trains for some steps, one step is recorded, and then steps are timed that replay it, see
:mod:`benchmarks.replay`. The times are those of the CPU, so that other processes do not count.
"""

import contextlib
import cProfile
import dataclasses
import functools
import io
import pstats
import statistics
import time

import chainer
import chainer.links as L
import numpy as np
from chainer import optimizers

import mixprec
import mixprec.functions as F
from benchmarks import contestants, launches, machine
from benchmarks.processes import Worker
from benchmarks.replay import Tape

BACKWARD, UPDATE = "forward and backward", "forward, backward, update"
CONVERTED, PLAIN, BY_HAND = "mixprec.convert", "plain Chainer", "mixprec.links by hand"
BOUND = 1.0  # time over that of plain Chainer which a converted model may take
_CHANNELS = 8
_BATCH, _SIZE = 2, 64
_WARM_UP = 3  # the first two calls of a converted model are looked at
_STEPS = 10  # in one turn: the first one, after others have had the caches, takes longer
_LR = 1e-6  # the recorded gradients are those of every step, and weights have to stay finite
_SCALE = 16.0
_LINES = 30  # of a profile


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        part: what a step does.
        name: who does it.
        milliseconds: median CPU time of a step.
        spread: half of the distance between the quickest and the slowest turn, in milliseconds.
        ratio: median of its time over that of plain Chainer in the same turn: a busy machine slows both.
        bound: what the ratio should not exceed, or ``None``.
        kernels: number of calls that compute, replaced in the step.
    """

    part: str
    name: str
    milliseconds: float
    spread: float
    ratio: float
    bound: float | None
    kernels: int


def measure(arch, network, *, repeats=15, profile=False):
    """Times steps of a classifier; the contestants take turns.

    All layers are cut down to 8 channels: what is not replaced, the update of the parameters, computes on so little
    that its time is Python's. Sums of gradients, where the network branches, are functions, and replaced.

    Args:
        arch: name of the network; those of :data:`benchmarks.launches.NETWORKS` are there by hand, too.
        network: callable, at the top of a module, from the number of classes to a Chainer link from images
            (N, 3, H, W) to logits. Its convolutions have no groups.
        repeats: number of timed turns; one more is run before.
        profile: whether to profile plain Chainer and the converted model as well, after they were timed.

    Returns:
        ``(rows, profiles)``: list of :class:`Row`, and a dict from ``(part, name)`` to the text of a profile.
    """
    names = [name for name in _BUILDERS if name != BY_HAND or arch in launches.NETWORKS]
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker()) for name in names}
        counts = {name: own.call(_prepare, name, arch, network) for name, own in workers.items()}
        rows, profiles = [], {}
        for part in (BACKWARD, UPDATE):
            turns = {name: functools.partial(own.call, _turn, part) for name, own in workers.items()}
            times = contestants.take_turns(turns, repeats, lambda turn: turn())
            rows += [_row(part, name, seconds, times[PLAIN], counts[name][part]) for name, seconds in times.items()]
            if profile:
                profiles |= {(part, name): workers[name].call(_profile, part) for name in (PLAIN, CONVERTED)}
    return rows, profiles


def table(rows):
    """Returns the rows as an aligned text table."""
    lines = []
    for part in dict.fromkeys(row.part for row in rows):
        lines.append(f"{part:40}{'ms a step':>10}{'+-':>8}{'ratio':>8}{'bound':>8}{'kernels':>9}")
        for row in rows:
            if row.part == part:
                bound = "" if row.bound is None else f"{row.bound:.2f}"
                lines.append(
                    f"  {row.name:38}{row.milliseconds:10.2f}{row.spread:8.2f}{row.ratio:8.2f}{bound:>8}{row.kernels:9}"
                )
    return "\n".join(lines)


def as_json(rows, **settings):
    """Returns rows and settings as a dict for JSON, with what they were measured on."""
    return {"settings": settings, **machine.record(), "rows": [dataclasses.asdict(row) for row in rows]}


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


def _row(part, name, seconds, plain, kernels):
    median, spread = statistics.median(seconds), (max(seconds) - min(seconds)) / 2
    ratio = statistics.median(own / other for own, other in zip(seconds, plain, strict=True))
    bound = BOUND if name == CONVERTED else None
    return Row(part, name, median * 1e3, spread * 1e3, ratio, bound, kernels)


# What runs in the process of a contestant

_parts = {}  # (step, Tape) by part


def _prepare(name, arch, network):
    """Builds a contestant and records its steps; returns how many kernels each has."""
    for part, step in steps(name, arch, network).items():
        for _ in range(_WARM_UP):
            step()
        _parts[part] = step, Tape(step)
    return {part: len(tape.calls) for part, (_, tape) in _parts.items()}


def steps(name, arch, network):
    """Returns the steps of a contestant.

    Args:
        name: :data:`PLAIN`, :data:`CONVERTED` or another contestant.
        arch: see :func:`measure`.
        network: see :func:`measure`.

    Returns:
        dict from part to a callable without arguments
    """
    model, optimizer = _BUILDERS[name](arch, network)
    x = np.random.RandomState(0).normal(size=(_BATCH, 3, _SIZE, _SIZE)).astype(np.float32)
    t = np.arange(_BATCH, dtype=np.int32)
    scale_loss = getattr(optimizer, "scale_loss", lambda loss: loss)

    def backward():
        model.cleargrads()
        model(x, t).backward()

    def update():
        model.cleargrads()
        scale_loss(model(x, t)).backward()
        optimizer.update()

    return {BACKWARD: backward, UPDATE: update}


def _turn(part):
    step, tape = _parts[part]
    return median_time(step, tape.replaying)


def median_time(step, playing):
    """Returns the CPU seconds of a step, the median of some in a row.

    Args:
        step: callable without arguments.
        playing: callable that gives a context manager around all steps, which gives what is called before each of them.
    """
    seconds = []
    with playing() as start:
        for _ in range(_STEPS):
            start()
            before = time.thread_time()
            step()
            seconds.append(time.thread_time() - before)
    return statistics.median(seconds)


def _profile(part):
    """Returns the profile of some steps, by the time in each function itself."""
    step, tape = _parts[part]
    profile = cProfile.Profile()
    with tape.replaying() as start:
        for _ in range(_STEPS):
            start()
            profile.runcall(step)
    text = io.StringIO()
    pstats.Stats(profile, stream=text).strip_dirs().sort_stats("tottime").print_stats(_LINES)
    return text.getvalue().strip()


def _plain(arch, network):
    model = L.Classifier(narrow(network(_CHANNELS)))
    return model, optimizers.MomentumSGD(lr=_LR).setup(model)


def _converted(arch, network, **settings):
    model = L.Classifier(narrow(network(_CHANNELS)))
    mixprec.convert(model, **settings)
    return model, _mixed(model)


def _by_hand(arch, network):
    model = L.Classifier(_FromImages(narrow(launches.NETWORKS[arch](_CHANNELS, "float16"))), F.softmax_cross_entropy)
    return model, _mixed(model)


def _mixed(model):
    scale = mixprec.DynamicLossScale(init=_SCALE)
    return mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(lr=_LR), scale).setup(model)


class _FromImages(chainer.Chain):
    """A network in NHWC, for images in NCHW."""

    def __init__(self, network):
        super().__init__()
        with self.init_scope():
            self.network = network

    def forward(self, x):
        return self.network(F.to_nhwc(x, "float16", channels=4))


_BUILDERS = {
    PLAIN: _plain,
    CONVERTED: _converted,
    "mixprec.convert, fuse=False": functools.partial(_converted, fuse=False),
    "mixprec.convert, layout='nchw'": functools.partial(_converted, fuse=False, layout="nchw"),
    BY_HAND: _by_hand,
}
