"""The launches of a training step with what each moves and multiplies, found without a device: kind by kind.

Each array that a launch has as an argument moves once; what passes over an array twice moves it again. What there is
per channel, and what the blocks of a kernel leave for each other, is left out. Images of the batch and weights are kept
apart, so that a step that was recorded with few images says what one with many moves.
"""

import collections
import dataclasses
import math

import numpy as np

from benchmarks import update_gpu
from benchmarks.profile import kinds
from benchmarks.recording import Address

CONVERSION, STRIDED, COPY = "layout conversion", "strided", "copy"
KINDS = (
    *(kinds.CONV_FPROP, kinds.CONV_DGRAD, kinds.CONV_WGRAD, kinds.BN_FORWARD, kinds.BN_BACKWARD, kinds.GRADIENT_SUM),
    *(CONVERSION, STRIDED, kinds.ELEMENTWISE, kinds.POOLING, kinds.LINEAR, kinds.LOSS, kinds.UPDATE, COPY, kinds.OTHER),
)
SECTOR = 32  # bytes that a GPU moves at least, where neighbouring threads do not read neighbouring elements
_CONVERSIONS = ("to_nhwc", "to_nchw")
_CONVOLUTIONS = (kinds.CONV_FPROP, kinds.CONV_DGRAD, kinds.CONV_WGRAD)
_COPIES = ("copy", "copyto", "setitem")
_UPDATES = ("save", "check", "update")
_OF_FILTERS = {"w", "dw"}
_AGAIN = ("statistics", "_sums")  # ends of names of own kernels that read for the first time what another reads again
_SIZES = {"boolean": 1 / 8, "float16": 2, "bfloat16": 2, "float32": 4}
_OPTIMIZER = "MomentumSGD"


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch; numbers are those of one image, but for ``fixed``.

    Attributes:
        kind: one of :data:`KINDS`.
        name: of the primitive, or of the function of arrays.
        bytes: that it reads and writes.
        again: those of them that are read a second time.
        sums: those of them that are read to be added to a gradient; each of two passes reads so much.
        sectors: bytes of memory sectors that it touches where it does not read in the order of memory.
        flops: floating-point operations of its products.
        fixed: bytes that do not depend on the batch: filters, parameters.
        filter: rows, columns and channels of the filter of a convolution, ``None`` for others.
    """

    kind: str
    name: str
    bytes: float = 0
    again: float = 0
    sums: float = 0
    sectors: float = 0
    flops: float = 0
    fixed: float = 0
    filter: tuple | None = None

    def moved(self, batch):
        """Returns the bytes that it moves for a batch of so many images."""
        return self.bytes * batch + self.fixed


@dataclasses.dataclass(frozen=True)
class Total:
    """All launches of a kind.

    Attributes:
        launches: number of them.
        bytes: that they move.
        least: that would be moved if nothing was read twice, and gradients were added by those who read the sums.
    """

    launches: int
    bytes: float
    least: float


def launches_of(notes, batch, model):
    """Returns the :class:`Launch` of each launch among notes.

    Args:
        notes: list of :class:`~mixprec.backends.notes.Note` of a step on :mod:`benchmarks.recording`.
        batch: images in its batch.
        model: link whose parameters the step has updated, by momentum SGD with weight decay.
    """
    found = []
    for note in notes:
        if note.kind == "cudnn":
            found.append(_of_operation(note, batch))
        elif note.kind == "kernel":
            found.append(_of_update(note.name, model) if note.name in _UPDATES else _of_kernel(note, batch))
        elif note.kind == "array":
            found.append(_of_function(note, batch))
    return found


def totals(launches, batch):
    """Returns a dict from the kinds that there are, in the order of :data:`KINDS`, to their :class:`Total`."""
    groups = collections.defaultdict(list)
    for launch in launches:
        groups[launch.kind].append(launch)
    return {kind: _total(groups[kind], batch) for kind in KINDS if kind in groups}


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
        sums = sum(size for name, size in images.items() if name in names and name not in ("dy", "x", "mask", "add"))
        moved = sum(images.values()) + again
        return Launch(kind, note.primitive, moved / batch, again / batch, sums / batch)
    shapes = {each.name: each.shape for each in operation.tensors}
    w = shapes.get("w") or shapes["dw"]
    y = shapes.get("y") or shapes["dy"]
    if "x" in images:
        images["x"] *= _used(shapes["x"], y, w, operation.attribute("stride"))
    flops = 2 * math.prod(y) * math.prod(w[1:])
    of_convolution = w[1:] if kind in _CONVOLUTIONS else None
    moved = sum(images.values())
    return Launch(kind, note.primitive, moved / batch, flops=flops / batch, fixed=filters, filter=of_convolution)


def _used(x, y, w, stride):
    """Share of the pixels of x that a convolution reads: a stride larger than the filter leaves some out."""
    sides = zip(x[1:3], y[1:3], w[1:3], stride, strict=True)
    return math.prod(1 if side >= step else min(size, made * side) / size for size, made, side, step in sides)


def _of_kernel(note, batch):
    arrays = [each for each in note.arguments if isinstance(each, Address) and len(each.shape) in (2, 4)]
    moved = sum(each.nbytes for each in arrays)
    is_first = note.name.endswith(_AGAIN) and note.primitive.startswith("batch_norm")
    kind, again, sums = _kind_of(note.primitive), moved if is_first else 0, 0
    if is_first and kind == kinds.BN_BACKWARD:
        sums = sum([each.nbytes for each in arrays if len(each.shape) == 4][2:])  # beside dy and x
    return Launch(kind, note.primitive or note.name, moved / batch, again / batch, sums / batch)


def _kind_of(primitive):
    if primitive in _CONVERSIONS:
        return CONVERSION
    if primitive == "add":
        return kinds.GRADIENT_SUM
    return kinds.OTHER if primitive == "cast" else kinds.of_primitive(primitive)


def _of_update(name, model):
    """What :data:`benchmarks.update_gpu.BYTES` says; gradients are read by ``check`` already."""
    params = [param for param in model.params() if param.array is not None]
    halves = sum(param.size for param in params if param.dtype.itemsize == 2)
    others = sum(param.size for param in params) - halves
    gradients = 2 * halves + 4 * others
    rates = update_gpu.BYTES[_OPTIMIZER]
    statistics = sum(
        value.nbytes
        for link in model.links()
        for value in (link.__dict__[each] for each in link._persistent)
        if isinstance(value, np.ndarray) and value.ndim
    )
    moved = {"save": 2 * statistics, "check": gradients}
    moved["update"] = halves * rates["float16"] + others * rates["float32"] - gradients
    return Launch(kinds.UPDATE, name, fixed=moved[name])


def _of_function(note, batch):
    """A function of arrays: CuPy's kernels go through them in the order of the axes."""
    arrays = [each for each in note.arguments if type(each) is tuple and len(each) == 3 and type(each[0]) is str]
    moved = sectors = 0
    largest = max((len(shape) for _, shape, _ in arrays), default=0)
    for dtype, shape, strides in arrays:
        size, itemsize = math.prod(shape), np.dtype(dtype).itemsize
        moved += size * itemsize
        if len(shape) > 1 and shape[-1] > 1 and strides[-1] != itemsize:
            sectors += size * SECTOR
    if largest < 2:
        return Launch(COPY if note.name in _COPIES else kinds.OTHER, note.name)
    if note.name == "add":
        kind = kinds.GRADIENT_SUM
    elif note.name in _COPIES:
        kind = COPY
    else:
        kind = STRIDED if sectors and largest == 4 else kinds.OTHER
    return Launch(kind, note.name, moved / batch, sectors=sectors / batch if kind != COPY else 0)
