"""The launches of a training step with what each moves, found without a device: kind by kind.

Each array that a launch has as an argument moves once; what passes over an array twice moves it again. What there is
per channel, and what the blocks of a kernel leave for each other, is left out. Images of the batch and weights are kept
apart, so that a step that was recorded with few images says what one with many moves.
"""

import collections
import dataclasses
import math

import numpy as np

from benchmarks import floors
from benchmarks.profile import kinds
from benchmarks.recording_device.launcher import Address

CONVERSION, STRIDED, COPY = "layout conversion", "strided", "copy"
KINDS = (
    *(kinds.CONV_FPROP, kinds.CONV_DGRAD, kinds.CONV_WGRAD, kinds.BN_FORWARD, kinds.BN_BACKWARD, kinds.GRADIENT_SUM),
    *(CONVERSION, STRIDED, kinds.ELEMENTWISE, kinds.POOLING, kinds.LINEAR, kinds.LOSS, kinds.UPDATE, COPY, kinds.OTHER),
)
_CONVERSIONS = ("to_nhwc", "to_nchw")
_FILTERS = ("fold_filters", "unfold_filters")  # kernels that go over no images
_COPIES = ("copy", "copyto", "setitem")
_UPDATES = ("save", "check", "update")
_OF_FILTERS = {"w", "dw"}
_FIRST_OF_TWO = ("_statistics", "_sums")  # ends of names of own kernels that another one follows on the same arrays
_SIZES = {"boolean": 1 / 8, "float16": 2, "bfloat16": 2, "float32": 4}


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch; numbers are for one image, except ``fixed``.

    Attributes:
        kind: one of :data:`KINDS`.
        name: of the primitive, or of the function of arrays.
        bytes: that it reads and writes.
        again: those of them that are read a second time.
        fixed: bytes that do not depend on the batch: filters, parameters.
        operations: floating-point operations of a convolution.
        shapes: of an image, and of the filter of a convolution; or empty.
    """

    kind: str
    name: str
    bytes: float = 0
    again: float = 0
    fixed: float = 0
    operations: float = 0
    shapes: tuple = ()

    def moved(self, batch):
        """Returns the bytes that it moves for a batch of so many images."""
        return self.bytes * batch + self.fixed


@dataclasses.dataclass(frozen=True)
class Total:
    """All launches of a kind.

    Attributes:
        launches: number of them.
        bytes: that they move.
        least: that would be moved if nothing was read twice, and the readers of sums of gradients added them.
    """

    launches: int
    bytes: float
    least: float


def launches_of(notes, batch, model):
    """Returns the :class:`Launch` of each launch among notes.

    Args:
        notes: list of :class:`~mixprec.backends.device_log.Record` of a step on
            :mod:`benchmarks.recording_device.null_device`.
        batch: images in its batch.
        model: link whose parameters the step has updated, by momentum SGD with weight decay.
    """
    found, first = [], None
    for note in notes:
        if note.kind == "cudnn":
            found.append(_of_operation(note, batch))
        elif note.kind == "kernel" and note.name in _UPDATES:
            found.append(_of_update(note.name, model))
        elif note.kind == "kernel":
            is_second = first is not None and note.primitive == first.primitive
            found.append(_of_kernel(note, first if is_second else None, batch))
            first = note if _is_first_of_two(note) else first
        elif note.kind == "array":
            found.append(_of_function(note, batch))
        elif note.kind == "blas":  # arithmetic decides on its time, not bytes
            found.append(Launch(kinds.OTHER, note.primitive))
    return found


def totals(launches, batch):
    """Returns a dict from the kinds that there are, in the order of :data:`KINDS`, to their :class:`Total`."""
    groups = collections.defaultdict(list)
    for launch in launches:
        groups[launch.kind].append(launch)
    return {kind: _total(groups[kind], batch) for kind in KINDS if kind in groups}


def table(found, batch, seconds):
    """Returns an aligned text table.

    Args:
        found: what :func:`totals` has found.
        batch: images in a batch.
        seconds: dict from kinds, and from what is none and launches nothing, to their modelled time.
    """
    rows = [(kind, total.launches, total.bytes, total.least, seconds[kind]) for kind, total in found.items()]
    rows += [(name, 0, 0, 0, time) for name, time in seconds.items() if name not in found]
    rows += [("all", *map(sum, list(zip(*rows, strict=True))[1:]))]
    lines = [f"{'':22}{'launches':>9}{f'GB, batch {batch}':>15}{'least':>9}{'ms, modelled':>15}"]
    for kind, number, moved, least, time in rows:
        lines += [f"  {kind:20}{number:9}{moved / 1e9:15.2f}{least / 1e9:9.2f}{time * 1e3:15.2f}"]
    return "\n".join(lines)


def _total(group, batch):
    moved = sum(launch.moved(batch) for launch in group)
    spared = sum(launch.bytes if launch.kind in (kinds.GRADIENT_SUM, CONVERSION) else launch.again for launch in group)
    return Total(len(group), moved, moved - batch * spared)


def _of_operation(note, batch):
    operation, kind = note.arguments[0], kinds.of_primitive(note.primitive)
    sizes = {each.name: math.prod(each.shape) * _SIZES[each.dtype] for each in operation.tensors if len(each.shape) > 1}
    filters = sum(size for name, size in sizes.items() if name in _OF_FILTERS)
    images = {name: size for name, size in sizes.items() if name not in _OF_FILTERS}
    if not operation.kind.startswith("conv"):
        names = {each.name for each in operation.inputs}
        passed = {"batch_norm": {"x"}}.get(operation.kind, names)
        again = sum(size for name, size in images.items() if name in names & passed)
        return Launch(kind, note.primitive, (sum(images.values()) + again) / batch, again / batch)
    shapes = {each.name: each.shape for each in operation.tensors}
    w = shapes.get("w") or shapes["dw"]
    y = shapes.get("y") or shapes["dy"]
    x = shapes.get("x") or shapes["dx"]
    if "x" in images:
        images["x"] *= _used(x, y, w, operation.attribute("stride"))
    products = 2 * math.prod(y[1:]) * math.prod(w[1:])
    return Launch(kind, note.primitive, sum(images.values()) / batch, 0, filters, products, (x[1:], w))


def _used(x, y, w, stride):
    """Share of the pixels of x that a convolution reads: a stride larger than the filter leaves some out."""
    sides = zip(x[1:3], y[1:3], w[1:3], stride, strict=True)
    return math.prod(1 if side >= step else min(size, made * side) / size for size, made, side, step in sides)


def _of_kernel(note, first, batch):
    """A kernel of ours; ``first`` is the note on the one before that has gone over the same arrays, or ``None``."""
    arrays = _arrays_of(note)
    moved = sum(each.nbytes for each in arrays)
    known = [] if first is None else _arrays_of(first)
    again = sum(each.nbytes for each in arrays if each in known)
    if note.name in _FILTERS:
        return Launch(_kind_of(note), note.primitive, fixed=moved)
    return Launch(_kind_of(note), note.primitive or note.name, moved / batch, again / batch)


def _arrays_of(note):
    """Returns the addresses of what has a row for each image or pixel."""
    arrays = [each for each in note.arguments if isinstance(each, Address) and len(each.shape) in (2, 4)]
    return [each for each in arrays if not ("batch_norm" in note.name and _may_be_sums(each))]


def _may_be_sums(array):
    """Whether it is (2, C) float32, as sums of a convolution for a batch normalization are."""
    return len(array.shape) == 2 and array.shape[0] == 2 and array.nbytes == 8 * array.shape[1]


def _is_first_of_two(note):
    return note.kind == "kernel" and "batch_norm" in note.primitive and note.name.endswith(_FIRST_OF_TWO)


def _kind_of(note):
    if note.primitive in _CONVERSIONS or note.name in _CONVERSIONS:
        return CONVERSION
    if note.name == "add":  # also if a batch normalization asks for it
        return kinds.GRADIENT_SUM
    return kinds.OTHER if note.primitive == "cast" else kinds.of_primitive(note.primitive)


def _of_update(name, model):
    """What :data:`benchmarks.floors.UPDATE_BYTES` says; gradients are read by ``check`` already."""
    params = [param for param in model.params() if param.array is not None]
    halves = sum(param.size for param in params if param.dtype.itemsize == 2)
    others = sum(param.size for param in params) - halves
    gradients = 2 * halves + 4 * others
    rates = floors.UPDATE_BYTES
    values = [link.__dict__[each] for link in model.links() for each in link._persistent]
    statistics = sum(value.nbytes for value in values if isinstance(value, np.ndarray) and value.ndim)
    moved = {"save": 2 * statistics, "check": gradients}
    moved["update"] = halves * rates["float16"] + others * rates["float32"] - gradients
    return Launch(kinds.UPDATE, name, fixed=moved[name])


def _of_function(note, batch):
    """A function of arrays: CuPy's kernels go through them in the order of the axes."""
    arrays = [each for each in note.arguments if type(each) is tuple and len(each) == 3 and type(each[0]) is str]
    moved = sum(math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape, _ in arrays)
    largest = max((len(shape) for _, shape, _ in arrays), default=0)
    if largest < 2:
        return Launch(COPY if note.name in _COPIES else kinds.OTHER, note.name)
    if note.name == "add":
        kind = kinds.GRADIENT_SUM
    elif note.name in _COPIES:
        kind = COPY
    else:
        kind = STRIDED if largest == 4 and any(map(_is_strided, arrays)) else kinds.OTHER
    return Launch(kind, note.name, moved / batch)


def _is_strided(array):
    """Whether neighbours along the last axis are no neighbours in memory."""
    dtype, shape, strides = array
    return len(shape) > 1 and shape[-1] > 1 and strides[-1] != np.dtype(dtype).itemsize
