"""What K-FAC adds to a training step on an H200, computed from the work of each layer: nothing of it is measured."""

import dataclasses
import operator

from benchmarks.roofline import kfac_seconds, kfac_work
from benchmarks.roofline.network_layers import layers

ITEMSIZES = {"float16": 2, "bfloat16": 2}
INTERVALS = 1, 10, 100  # steps from an inverse step to the next
_FACTORS = 10  # steps from a factor step to the next, at most
_MATRIX = 4  # bytes of an element of moments and inverses


@dataclasses.dataclass(frozen=True)
class Cost:
    """A part of the work of some layers.

    Attributes:
        flops: floating-point operations.
        bytes: that are moved from and to memory.
        cached: bytes that are moved within the second-level cache only.
        microseconds: by the model, dict from the precision of products of float32.
    """

    flops: float
    bytes: int
    cached: int
    microseconds: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Row:
    """Layers of one shape, in the largest batch; costs are those of all of them.

    Attributes:
        name: of the first of them; ``"averages"`` for the moving averages of all layers.
        layers: number of them.
        kind: ``"convolution"``, ``"linear"``, ``"batch_normalization"`` or ``"averages"``.
        groups: see :class:`~benchmarks.roofline.kfac_work.Block`; 0 for averages and batch normalizations.
        d: likewise.
        k: likewise.
        positions: of one image, likewise.
        factor: :class:`Cost` of the moments.
        inverse: of the inverses.
        precondition: of the products with them.
    """

    name: str
    layers: int
    kind: str
    groups: int
    d: int
    k: int
    positions: int
    factor: Cost
    inverse: Cost
    precondition: Cost


@dataclasses.dataclass(frozen=True)
class Steps:
    """Milliseconds of steps of one batch size.

    Attributes:
        batch: images in a batch.
        precision: of products of float32, a key of :data:`~benchmarks.roofline.kfac_seconds.PEAKS`.
        plain: of a step without K-FAC.
        between: of a step that preconditions only.
        factor: of one that computes moments, too.
        inverse: of one that computes moments and inverses, too.
        means: dict from steps between inverses, :data:`INTERVALS`, to the mean.
    """

    batch: int
    precision: str
    plain: float
    between: float
    factor: float
    inverse: float
    means: dict[int, float]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes that K-FAC needs.

    Attributes:
        averages: moving averages of the moments, in float32.
        inverses: of them, in float32.
        new_inverses: of one step, in float32, until it is known that it has not overflowed, as are the moments.
        moments: of one step, in float32.
        patches: of a part of a batch, in 16 bits.
    """

    averages: int
    inverses: int
    new_inverses: int
    moments: int
    patches: int


def factor_interval(inverse_interval):
    """Returns the steps from one factor step to the next, for those from one inverse step to the next."""
    return min(inverse_interval, _FACTORS)


def cost(works, batch):
    """Returns the :class:`Cost` of a list of :class:`~benchmarks.roofline.kfac_work.Work`."""
    times = {
        precision: 1e6 * sum(kfac_seconds.seconds(work, batch, precision) for work in works)
        for precision in kfac_seconds.PEAKS
    }
    return Cost(*(sum(getattr(work, name) for work in works) for name in ("flops", "bytes", "cached")), times)


def rows(blocks, batch, dtype):
    """Returns the list of :class:`Row` of all blocks, those of one shape together, and of their averages.

    Args:
        blocks: list of :class:`~benchmarks.roofline.kfac_work.Block`.
        batch: images in a batch.
        dtype: of activations and filters, a key of :data:`ITEMSIZES`.
    """
    shapes, itemsize = {}, ITEMSIZES[dtype]
    for block in blocks:
        shapes.setdefault(_shape(block), []).append(block)
    found = []
    for same in shapes.values():
        first = same[0]
        works = (
            [work for block in same for work in kfac_work.factor(block, batch, itemsize)],
            [work for block in same for work in kfac_work.inverse(block)],
            [work for block in same for work in kfac_work.precondition(block, itemsize)],
        )
        sizes = (first.groups, first.d, first.k, first.positions) if first.d else (0, 0, 0, 0)
        found.append(Row(first.name, len(same), first.kind, *sizes, *(cost(work, batch) for work in works)))
    averages = cost(kfac_work.average(blocks), batch)
    return [*found, Row("averages", len(blocks), "averages", 0, 0, 0, 0, averages, cost([], batch), cost([], batch))]


def _shape(block):
    """What layers of one row have in common; batch normalizations, which cost little, are one row."""
    return dataclasses.replace(block, name="") if block.d else block.kind


def steps(blocks, batch, dtype, plain):
    """Returns a :class:`Steps` for each precision of products of float32.

    Args:
        blocks: list of :class:`~benchmarks.roofline.kfac_work.Block`.
        batch: images in a batch.
        dtype: of activations and filters, a key of :data:`ITEMSIZES`.
        plain: milliseconds of a step without K-FAC.
    """
    parts, found = rows(blocks, batch, dtype), []
    for precision in kfac_seconds.PEAKS:
        factor, inverse, precondition = (
            sum(part(row).microseconds[precision] for row in parts) / 1e3
            for part in map(operator.attrgetter, ("factor", "inverse", "precondition"))
        )
        between = plain + precondition
        means = {each: between + factor / factor_interval(each) + inverse / each for each in INTERVALS}
        found.append(Steps(batch, precision, plain, between, between + factor, between + factor + inverse, means))
    return found


def memory(blocks, batch, dtype):
    """Returns the :class:`Memory` of K-FAC; arguments as of :func:`rows`."""
    matrices = _MATRIX * sum(block.curvature for block in blocks)
    works = [work for block in blocks for work in kfac_work.factor(block, batch, ITEMSIZES[dtype])]
    patches = max((min(kfac_work.PART, work.cached) for work in works), default=0)
    return Memory(matrices, matrices, matrices, matrices, patches)


def estimate(network, *, size, batches, dtype, plain):
    """Computes what K-FAC costs.

    Args:
        network: callable from the number of classes to a Chainer link from images (N, 3, size, size) to logits.
        size: height and width of an image in pixels.
        batches: numbers of images in a batch.
        dtype: of activations and filters, a key of :data:`ITEMSIZES`.
        plain: milliseconds of a step without K-FAC, a list like ``batches``.

    Returns:
        tuple of the list of :class:`Row` in the largest batch, the list of :class:`Steps` and the :class:`Memory`
    """
    blocks = kfac_work.blocks(layers(network, size))
    times = [
        each
        for batch, milliseconds in zip(batches, plain, strict=True)
        for each in steps(blocks, batch, dtype, milliseconds)
    ]
    return rows(blocks, max(batches), dtype), times, memory(blocks, max(batches), dtype)
