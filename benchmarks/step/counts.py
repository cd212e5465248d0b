"""Counts launches, graphs, uploads, waiting and layout conversions of a training step, without a GPU.

The step runs on :mod:`benchmarks.recording_device.null_device`, a device that computes nothing and takes notes, so that
the network can have its full size. The batch is as the training script would get it, and lies on the device; the
learning rate changes in each step, as under a schedule.
"""

import collections
import contextlib
import dataclasses
import itertools
import operator

import chainer
import numpy as np

import mixprec
from benchmarks.processes import Worker
from benchmarks.recording_device import null_device
from benchmarks.step.launches import Launch, launches_of
from mixprec.app.parts import images
from mixprec.app.parts.model import build_model
from mixprec.app.parts.optimizers import attribute
from mixprec.app.run import synthetic_run
from mixprec.backends.device_log import recording
from mixprec.graph_capture.cuda_graphs import graphs_of
from mixprec.graph_capture.verification import Verification
from mixprec.training.accumulation import Accumulated

# Of nhwc_fused_batched.yaml and static_graph.yaml: everything on, without and with a graph.
EAGER, CAPTURED = "eager", "captured"
WAYS = [(EAGER, "nhwc_fused_batched.yaml", ()), (CAPTURED, "static_graph.yaml", ())]
LAUNCHES = ("kernel", "cudnn", "blas", "array")  # kinds of notes
_CONVERSIONS = ("to_nhwc", "to_nchw")
_FIELDS = ("launches", "graph_launches", "uploads", "syncs", "conversions")  # of tables and JSON
_STEPS = 8  # at most, until one is like the one before
_CALLS = 12  # at most, until a graph is launched
_DECAY = 0.9999  # of the learning rate, from step to step


@dataclasses.dataclass(frozen=True)
class Counts:
    """What the host asks of the device in one step; ``None`` is what has failed.

    A launch is a kernel of mixprec, an execution of cuDNN or cuBLAS, which may be several kernels, or a function of
    arrays for which CuPy launches a kernel or a copy, for a sum over everything two. cuDNN is taken to have
    the engines that it has on an H200, and what is chosen by measurement on a device is the first choice here.

    Attributes:
        launches: those outside of graphs.
        graph_launches: launches of CUDA graphs.
        uploads: copies from the host.
        syncs: values for which the host waits.
        conversions: layout conversions among all launches, and functions of arrays that go through one in another
            order than it lies in memory, which takes CuPy as long or longer.
        parts: dict from names of primitives, or of functions of arrays, to their launches, in and outside of the graph.
        note: one line that says more, such as why it has failed, or ``""``.
        moves: :class:`~benchmarks.step.launches.Launch` of each launch, in and outside of the graph.
    """

    launches: int | None = None
    graph_launches: int | None = None
    uploads: int | None = None
    syncs: int | None = None
    conversions: int | None = None
    parts: dict = dataclasses.field(default_factory=dict)
    note: str = ""
    moves: tuple[Launch, ...] = ()


def counts_of(rows, network, **settings):
    """Counts for several configs, each in a process of its own.

    Args:
        rows: list of ``(name, config, overrides)``, the last two as for :func:`mixprec.app.run.synthetic_run.load`.
        network: callable, at the top of a module, from the number of classes to a Chainer link from images to logits.
        **settings: ``arch``, ``batch`` and ``size``, as for the same function.

    Returns:
        dict from names to :class:`Counts`, in the order of ``rows``; what has failed has a note that says why.
    """
    found = {}
    for name, config, overrides in rows:
        with Worker() as worker:
            counts, reason = worker.attempt(_count, network, config, overrides, settings)
        found[name] = counts or Counts(note=reason)
    return found


def count(config, network):
    """Counts for a step of a config, when steps are all alike, on a device that this function installs.

    What Chainer's own functions launch cannot be seen: with layout nchw, and when parameters are updated one by one.

    What is global in a process is set as the training script would do it: random seeds, settings of cuDNN, what
    converting a model changes. So :func:`counts_of` calls it in a process of its own.

    Args:
        config: from :func:`mixprec.app.run.synthetic_run.load`.
        network: callable from the number of classes to a Chainer link from images to logits.

    Returns:
        :class:`Counts`

    Raises:
        RuntimeError: steps do not come to be alike, or no graph is launched.
    """
    _, optimizer, _ = build_model(config, network, "@numpy")
    batch = _first_batch(config)
    with _on_device(config, optimizer, batch) as (lossfun, given):
        rate, images_in_step = attribute(config.optimizer.name), len(batch[0]) * config.training.accumulation_steps
        eager = _eager(optimizer, rate, lossfun, given, images_in_step)
        if config.capture.mode == "off":
            return eager
        launched, outside = _replayed(config, optimizer, rate, lossfun, given)
        return _captured(launched, outside, optimizer, images_in_step)


def table(counts):
    """Returns what :func:`counts_of` found as an aligned text table."""
    titles = ("launches", "graphs", *_FIELDS[2:])
    width = max(map(len, counts)) + 2
    lines = [f"{'':{width + 2}}" + "".join(f"{title:>{len(title) + 3}}" for title in titles)]
    for name, found in counts.items():
        pairs = zip(titles, (getattr(found, field) for field in _FIELDS), strict=True)
        cells = [f"{'-' if number is None else number:>{len(title) + 3}}" for title, number in pairs]
        lines.append(f"  {name:{width}}{''.join(cells)}   {found.note}".rstrip())
    return "\n".join(lines)


def parts_table(counts):
    """Returns the launches of :class:`Counts` by primitive or function as an aligned text table."""
    rows = [*counts.parts.items(), ("all", sum(counts.parts.values()))]
    return "\n".join(f"  {name:34}{number:8}" for name, number in rows)


def as_json(counts):
    """Returns what :func:`counts_of` found as a list of dicts for JSON."""
    fields = (*_FIELDS, "note")
    return [{"name": name, **{field: getattr(found, field) for field in fields}} for name, found in counts.items()]


@contextlib.contextmanager
def graphs_compute_nothing():
    """Inside of the block launches of graphs are only put into the list that it gives, and nothing is compared."""
    launch, differences = null_device.Graph.launch, Verification.differences
    launched = []
    null_device.Graph.launch = lambda graph: launched.append(graph)
    Verification.differences = lambda *results: {}
    try:
        yield launched
    finally:
        null_device.Graph.launch, Verification.differences = launch, differences


def _count(network, name, overrides, settings):
    # The steps that are counted come after the first finite one. Here nothing is computed, and none is.
    overrides = [*overrides, "loss_scale.search=false"]
    return count(synthetic_run.load(name, overrides=overrides, **settings), network)


def _asked(config, model, new_batch):
    """Returns what a step of a config is asked for: a loss function, and the arguments of that."""
    count = config.training.accumulation_steps
    return (Accumulated(model), [tuple(new_batch()) for _ in range(count)]) if count > 1 else (model, *new_batch())


def _eager(optimizer, rate, lossfun, given, images_in_step):
    """Returns the :class:`Counts` of eager steps."""
    before = None
    for _ in range(_STEPS):
        _move(optimizer, rate)
        with graphs_of(next(optimizer.target.params()).array).on_stream(), recording() as notes:
            optimizer.update(lossfun, *given)
        now = collections.Counter((note.kind, note.primitive, note.name) for note in notes)
        if now == before:
            break
        before = now
    else:
        raise RuntimeError(f"the last of {_STEPS} steps asks the device for something else than the one before")
    return dataclasses.replace(_counts(notes), moves=_moves(notes, images_in_step, optimizer))


def _first_batch(config):
    train, _ = images.open_sources(config)
    return images.converter_of(config)(images.train_iterator(config, train, chainer.get_device("@numpy")).next())


@contextlib.contextmanager
def _on_device(config, optimizer, batch):
    """Gives a loss function and its arguments on a device that is installed for an optimizer, under a trainer."""
    null_device.install()
    model = null_device.send(optimizer.target)
    lossfun, *given = _asked(config, model, lambda: list(map(null_device.array, batch)))
    reporter = chainer.Reporter()  # as a trainer's
    reporter.add_observers("main", model.namedlinks())
    with reporter.scope({}):
        yield lossfun, given


def _replayed(config, optimizer, rate, lossfun, given):
    """Returns the graphs that a captured step has launched, and the notes of what it has asked for around them."""
    step = mixprec.capture(optimizer, lossfun, required=True, graphs=config.capture.max_graphs)
    with graphs_compute_nothing() as launched:
        for _ in range(_CALLS):
            _move(optimizer, rate)
            replays = step.replays
            launched.clear()
            with recording() as notes:
                step(*given)
            if step.replays > replays:
                return launched, notes
    raise RuntimeError(f"no graph was launched in {_CALLS} steps: {step.report()}")


def _captured(launched, notes, optimizer, images_in_step):
    """Returns the :class:`Counts` of captured steps."""
    (graph,) = launched
    inside, outside = _counts(graph.notes), _counts(notes)
    both = {"conversions": inside.conversions + outside.conversions}
    both["parts"] = dict(collections.Counter(inside.parts) + collections.Counter(outside.parts))
    both["moves"] = _moves([*graph.notes, *notes], images_in_step, optimizer)
    note = f"{inside.launches} launches in the graph"
    return dataclasses.replace(outside, graph_launches=len(launched), **both, note=note)


def _counts(notes):
    parts = collections.Counter(note.primitive or note.name for note in notes if note.kind in LAUNCHES)
    kinds = collections.Counter(note.kind for note in notes)
    conversions = sum(parts[name] for name in _CONVERSIONS) + sum(map(_is_strided, notes))
    return Counts(parts.total(), 0, kinds["upload"], kinds["read"], conversions, dict(parts))


def _is_strided(note):
    """Whether a function of arrays has an array of several elements that is not C-contiguous."""
    arrays = [part for part in note.arguments if isinstance(part, tuple) and len(part) == 3]
    return note.kind == "array" and not all(_is_c_contiguous(*array) for array in arrays)


def _is_c_contiguous(dtype, shape, strides):
    found = [stride for length, stride in zip(shape, strides, strict=True) if length > 1]
    sizes = [np.dtype(dtype).itemsize] + [length for length in reversed(shape) if length > 1][:-1]
    return found == list(itertools.accumulate(sizes, operator.mul))[::-1][: len(found)]


def _moves(notes, images_in_step, optimizer):
    return tuple(launches_of(notes, images_in_step, optimizer.target))


def _move(optimizer, rate):
    setattr(optimizer, rate, getattr(optimizer, rate) * _DECAY)
