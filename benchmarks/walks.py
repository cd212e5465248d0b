"""Counts the files of mixprec that a reader has to enter to follow one forward pass, one update, one training step.

``sys.setprofile`` reports each call of a Python function. Calls into files of mixprec count: how many different files
there are, and how often a call lies in another file than the call before it, the first one included. Chainer, NumPy and
the stand-in for a device do not count, nor do returns. The third call is counted: the first two of a converted model
are traced, and the first update builds the optimizer's plan. ``scripts/benchmark.py walks`` calls :func:`measure`.

The forward pass is a converted block of convolution, batch normalization and ReLU in training mode. The step trains
``L.Classifier(Sequential(block, Linear))``, with cross entropy and accuracy, by momentum SGD with the hook
``WeightDecay`` and a dynamic loss scale. At commit 9f731e5 that gives the numbers which issue 23 begins with: 29 files
and 175 changes for the forward pass, 16 and 53 for ``update()``, 49 and 447 for ``update(model, x, t)``, on Python
3.11. From 3.12 on comprehensions are no calls, and there are fewer changes.
"""

import contextlib
import dataclasses
import gc
import pathlib
import sys

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

import mixprec
from benchmarks import compared_optimizers
from benchmarks.processes import Worker
from benchmarks.recording_device import null_device
from benchmarks.step.counts import graphs_compute_nothing

NUMPY, STAND_IN = "NumPy", "stand-in device"
FORWARD, UPDATE, STEP = "forward: convolution, batch normalization, ReLU", "update()", "update(model, x, t)"
CAPTURE = "capture's step(x, t)"
WARM_UP, CAPTURED, LAUNCHED = "step(x, t), warm-up", "step(x, t), captured", "step(x, t), launched"
BOUNDS = {FORWARD: (18, 90), UPDATE: (9, 25), STEP: (32, 250)}  # files and changes that NumPy should not exceed
_ROOT = pathlib.Path(mixprec.__file__).parent
_BATCH, _CHANNELS, _SIZE, _CLASSES = 4, 8, 8, 10
_BEFORE = 2  # times that a piece of work runs before it is counted
_WARM_UP = 3  # eager calls before a graph is captured, the last of which is counted
_CALLS = 12  # at most, until a graph is launched


@dataclasses.dataclass(frozen=True)
class Walk:
    """The files that one piece of work calls into.

    Attributes:
        device: :data:`NUMPY` or :data:`STAND_IN`.
        name: of the work, one of the constants above.
        files: paths in mixprec, in the order in which they are first entered.
        changes: number of calls that lie in another file than the call before.
    """

    device: str
    name: str
    files: tuple[str, ...]
    changes: int


def measure():
    """Counts all walks; each device has a process of its own.

    Returns:
        list of :class:`Walk`
    """
    found = []
    for device in (NUMPY, STAND_IN):
        with Worker() as worker:
            found += worker.call(walks_on, device)
    return found


def walks_on(device):
    """Counts the walks on a device in this process, which is another one afterwards: models were converted in it.

    Args:
        device: :data:`NUMPY` or :data:`STAND_IN`.

    Returns:
        list of :class:`Walk`

    Raises:
        RuntimeError: no graph was launched on the stand-in.
    """
    if device == STAND_IN:
        null_device.install()
    with _no_collection():  # before what is counted, too: it would give memory back at one time or another
        counted = {FORWARD: _forward(device), UPDATE: _update(device), STEP: _step(device), **_captured(device)}
    return [Walk(device, name, files, changes) for name, (files, changes) in counted.items()]


def count(work):
    """Calls a function and counts.

    Args:
        work: callable without arguments.

    Returns:
        ``(files, changes)``: a tuple of paths in mixprec in the order in which they are first entered, and the number
        of calls that lie in another file than the call before.
    """
    entered, changes, last = {}, 0, None
    names = {}  # paths in mixprec, or None, by the name of a file

    def profile(frame, event, _):
        nonlocal changes, last
        if event != "call":
            return
        file = frame.f_code.co_filename
        if file not in names:
            path = pathlib.Path(file)
            names[file] = str(path.relative_to(_ROOT)) if path.is_relative_to(_ROOT) else None
        name = names[file]
        if name is not None:
            entered[name] = None
            changes += name != last
            last = name

    with _no_collection():
        sys.setprofile(profile)
        try:
            work()
        finally:
            sys.setprofile(None)
    return tuple(entered), changes


def table(walks, *, lists_files=False):
    """Returns walks as an aligned text table.

    Args:
        walks: list of :class:`Walk`.
        lists_files: whether the files of each walk follow it.
    """
    lines = [f"{'':52}{'files':>7}{'changes':>9}{'at most':>12}"]
    for device in dict.fromkeys(walk.device for walk in walks):
        lines.append(device)
        for walk in walks:
            if walk.device == device:
                lines.append(_line(walk))
                lines += [f"      {file}" for file in walk.files if lists_files]
    return "\n".join(lines)


def as_json(walks):
    """Returns walks as a list of dicts for JSON."""
    return [dataclasses.asdict(walk) for walk in walks]


def _line(walk):
    bound = BOUNDS.get(walk.name) if walk.device == NUMPY else None
    text = "" if bound is None else f"{bound[0]:>6} {bound[1]:>5}"
    return f"  {walk.name:50}{len(walk.files):>7}{walk.changes:>9}{text:>12}".rstrip()


def _forward(device):
    model = _converted(_block(), device)
    x, _ = _batch(device)
    return _third(lambda: model(x))


def _update(device):
    optimizer, *batch = _training(device)
    model = optimizer.target

    def give_gradients():
        model.cleargrads()
        optimizer.scale_loss(model(*batch)).backward()

    for _ in range(_BEFORE):
        give_gradients()
        optimizer.update()
    give_gradients()
    return count(optimizer.update)


def _step(device):
    optimizer, *batch = _training(device)
    return _third(lambda: optimizer.update(optimizer.target, *batch))


def _captured(device):
    """Counts calls of a captured step: on NumPy the third one, on the stand-in one of each kind."""
    optimizer, *batch = _training(device)
    step = mixprec.capture(optimizer, warmup=_WARM_UP)
    if device == NUMPY:
        return {CAPTURE: _third(lambda: step(*batch))}
    found = []
    with graphs_compute_nothing():
        while step.replays < _BEFORE:
            if len(found) == _CALLS:
                raise RuntimeError(f"no graph was launched in {_CALLS} steps: {step.report()}")
            found.append(count(lambda: step(*batch)))
    return {WARM_UP: found[_WARM_UP - 1], CAPTURED: found[_WARM_UP], LAUNCHED: found[-1]}


def _third(work):
    for _ in range(_BEFORE):
        work()
    return count(work)


def _block():
    convolution = L.Convolution2D(3, _CHANNELS, 3, pad=1, nobias=True)
    return chainer.Sequential(convolution, L.BatchNormalization(_CHANNELS), F.relu)


def _training(device):
    """Returns an optimizer that is set up, images and labels."""
    network = chainer.Sequential(_block(), L.Linear(_CHANNELS * _SIZE * _SIZE, _CLASSES))
    model = _converted(L.Classifier(network), device)
    optimizer = compared_optimizers.mixed_sgd(model, lr=compared_optimizers.LR, init_scale=2.0**10)
    return optimizer, *_batch(device)


def _batch(device):
    x = np.random.RandomState(0).normal(size=(_BATCH, 3, _SIZE, _SIZE)).astype(np.float32)
    t = np.arange(_BATCH, dtype=np.int32)
    return (null_device.array(x), null_device.array(t)) if device == STAND_IN else (x, t)


def _converted(model, device):
    mixprec.convert(model)
    return null_device.send(model) if device == STAND_IN else model


@contextlib.contextmanager
def _no_collection():
    """Inside of the block garbage is not collected: what is called then would depend on what ran before."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
