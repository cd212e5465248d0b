"""The work of K-FAC beside a training step: operations and bytes of each layer, counted on paper.

K-FAC (Martens and Grosse 2015, arXiv:1503.05671; Grosse and Martens 2016, arXiv:1602.01407) knows for each layer the
second moments of what its filter sees, A (groups, D, D), and of the gradients of its outputs, G (groups, K / groups,
K / groups). M are the positions of all images of a batch.

============  ====================================================================================================
factor        Patches of a part of the batch, at most :data:`PART` bytes, are written and stay in the second-level
              cache, where a product of 16 bits reads them and adds to A: ``2 M D^2`` operations for each group, no
              symmetry used. x is read once. A linear layer, and a filter of one element that moves by one, take x
              itself. G is one product: ``2 M (K / groups)^2`` for each group; dy is read once. A batch
              normalization reads x and dy once and writes (3, C). Then one launch adds all of it to moving averages
              in float32: it reads both and writes one.
inverse       Each matrix of order n is copied with a shift of its diagonal, factorized (potrf, ``n^3 / 3``), inverted
              (potri, ``2 n^3 / 3``) and mirrored, in float32. A batch normalization inverts 2x2 for each channel.
precondition  The gradient becomes float32 and is multiplied by both inverses: ``2 (K / groups) D^2`` and
              ``2 (K / groups)^2 D`` for each group. A batch normalization does it in one launch.
============  ====================================================================================================

A matrix that does not fit into the cache beside the patches is read and written for each part.
"""

import dataclasses
import math

from benchmarks.roofline.levels import used_input

PART = 32 * 2**20  # bytes of patches
CACHE = 50 * 10**6  # bytes of the second-level cache of an H200
_SINGLE = 4  # bytes of a float32
ARRAYS, MOMENTS, PRODUCTS, FACTORIZATION = "arrays", "moments", "products", "factorization"


@dataclasses.dataclass(frozen=True)
class Block:
    """A layer whose curvature K-FAC knows; elements and positions are those of one image.

    Attributes:
        name: path of its link.
        kind: ``"convolution"``, ``"linear"`` or ``"batch_normalization"``.
        groups: of channels.
        d: order of A: elements under the filter of a group, and one more with a bias; 0 for a batch normalization.
        k: order of G: outputs of a group; for a batch normalization its channels.
        positions: of the filter, rows of a linear layer, or pixels.
        read: elements of x that are read.
        bias: whether it adds a bias; ``False`` for a batch normalization.
        makes_patches: whether they have to be written.
    """

    name: str
    kind: str
    groups: int
    d: int
    k: int
    positions: int
    read: int
    bias: bool
    makes_patches: bool

    @property
    def factors(self):
        """Orders of its two kinds of matrices, of which there is one for each group; none for a batch normalization."""
        return (self.d, self.k) if self.d else ()

    @property
    def curvature(self):
        """Elements of all its moments, or of all their inverses."""
        return self.groups * sum(order**2 for order in self.factors) if self.d else 3 * self.k

    @property
    def gradient(self):
        """Elements of the gradient of its filters and bias."""
        return self.groups * self.k * self.d


@dataclasses.dataclass(frozen=True)
class Work:
    """Launches that are alike; numbers are those of all of them.

    Attributes:
        name: what they do.
        kind: :data:`ARRAYS`, :data:`MOMENTS` (products of 16 bits), :data:`PRODUCTS` (of float32) or
            :data:`FACTORIZATION`.
        launches: number of them; calls of a factorization.
        bytes: that they move from and to memory.
        flops: floating-point operations.
        cached: bytes that they move within the second-level cache only.
        order: of each matrix of a factorization, 0 for others.
    """

    name: str
    kind: str
    launches: int
    bytes: int
    flops: float = 0
    cached: int = 0
    order: int = 0


def blocks(network):
    """Returns the :class:`Block` of each convolution, linear layer and batch normalization of a network, in order.

    A link that is applied several times is one block with the positions of all of them.

    Args:
        network: :class:`~benchmarks.roofline.network_layers.Network`.
    """
    found = {}
    for index, layer in enumerate(network.layers):
        if layer.kind in ("convolution", "linear", "batch_normalization"):
            block = _block(layer)
            key = layer.name or index
            if key in found:
                both = {name: getattr(found[key], name) + getattr(block, name) for name in ("positions", "read")}
                block = dataclasses.replace(block, **both)
            found[key] = block
    return list(found.values())


def _block(layer):
    if layer.kind == "batch_normalization":
        channels = layer.inputs[0][0]
        read = math.prod(layer.inputs[0])
        return Block(layer.name, layer.kind, 1, 0, channels, read // channels, read, False, False)
    outputs, d, bias = layer.filters[0], math.prod(layer.filters[1:]), layer.bias
    positions, read = math.prod(layer.outputs[0]) // outputs, math.prod(used_input(layer))
    if layer.kind == "linear":
        return Block(layer.name, layer.kind, 1, d + bias, outputs, positions, read, bias, False)
    (channels, *before), after = layer.inputs[0], list(layer.outputs[0][1:])
    groups = channels // layer.filters[1]
    makes_patches = layer.filters[2:] != (1, 1) or before != after
    return Block(layer.name, layer.kind, groups, d + bias, outputs // groups, positions, read, bias, makes_patches)


def factor(block, batch, itemsize):
    """Returns the list of :class:`Work` that adds up the moments of a block.

    Args:
        block: :class:`Block`.
        batch: images in a batch.
        itemsize: bytes of an element of x and dy.
    """
    rows = batch * block.positions
    x, dy = batch * block.read * itemsize, rows * block.groups * block.k * itemsize
    if not block.d:
        return [Work("scale moments", ARRAYS, 1, x + dy + 3 * block.k * _SINGLE)]
    a, g = (_SINGLE * block.groups * order**2 for order in block.factors)
    a_flops, g_flops = (2 * rows * block.groups * order**2 for order in block.factors)
    g_work = Work("G", MOMENTS, 1, dy + _moved(g, 1), g_flops)
    if not block.makes_patches:
        return [Work("A", MOMENTS, 1, x + _moved(a, 1), a_flops), g_work]
    patches = rows * block.groups * (block.d - block.bias) * itemsize
    parts = -(-patches // PART)
    return [
        Work("patches", ARRAYS, parts, x, cached=patches),
        Work("A", MOMENTS, parts, _moved(a, parts), a_flops, patches),
        g_work,
    ]


def _moved(matrix, parts):
    """Bytes of memory that sums in a matrix of so many bytes move."""
    return matrix if matrix <= CACHE - PART else 2 * parts * matrix


def average(found):
    """Returns the list of :class:`Work` that adds the moments of all blocks to their moving averages."""
    return [Work("averages", ARRAYS, 1, 3 * _SINGLE * sum(block.curvature for block in found))]


def inverse(block):
    """Returns the list of :class:`Work` that makes the inverses of a block, one matrix after the other."""
    if not block.d:
        return [Work("2x2 inverses", ARRAYS, 1, 2 * _SINGLE * block.curvature)]
    work, groups = [], block.groups
    for order in block.factors:
        matrices = _SINGLE * groups * order**2
        work += [
            Work("shift", ARRAYS, 1, 2 * matrices),
            Work("potrf", FACTORIZATION, groups, 2 * matrices, groups * order**3 / 3, order=order),
            Work("potri", FACTORIZATION, groups, 2 * matrices, groups * order**3 * 2 / 3, order=order),
            Work("mirror", ARRAYS, 1, matrices),
        ]
    return work


def precondition(block, itemsize):
    """Returns the list of :class:`Work` that preconditions the gradient of a block.

    Args:
        block: :class:`Block`.
        itemsize: bytes of an element of the gradient of filters; those of vectors are float32.
    """
    if not block.d:
        gradients = 2 * 2 * block.k  # those of gamma and beta, read and written
        return [Work("2x2 products", ARRAYS, 1, _SINGLE * (block.curvature + gradients))]
    gradient, vector = block.gradient, block.groups * block.k * block.bias
    work = [Work("cast", ARRAYS, 1, itemsize * (gradient - vector) + _SINGLE * (vector + gradient))]
    for name, order in zip(("product with A", "product with G"), block.factors, strict=True):
        moved = _SINGLE * (2 * gradient + block.groups * order**2)
        work.append(Work(name, PRODUCTS, 1, moved, 2 * gradient * order))
    return work
