"""The kernels of a training step, with the bytes that they move and the products that they compute.

Every array is read once and written once by each kernel that has to see it, whatever caches may keep; what there is per
channel is left out, and weights count once a batch. ``x`` is an input and ``y`` an output of a layer, ``dx`` and ``dy``
their gradients; all in the dtype of the step.

====================  =======================================  ====================================================
layer                 forward                                  backward
====================  =======================================  ====================================================
convolution, linear   reads x, W; writes y                     dgrad reads dy, W; writes dx. wgrad reads x, dy;
                                                               writes dW. A bias has its gradient from dy.
batch normalization   statistics read x; then x is read, y     sums read x, dy; then x, dy are read, dx is written
                      is written
ReLU                  reads x, writes y                        reads dy, y; writes dx
addition              reads all x, writes y                    nothing: the gradients are dy
where n layers read   nothing                                  reads n gradients, writes their sum
concatenation         reads all x, writes y                    reads dy, writes all dx
average pooling       reads x, writes y                        reads dy, writes dx
max pooling           reads x; writes y, and of each element   reads dy and those; writes dx
                      in a byte where it was
view                  nothing                                  nothing
any other             reads all x, writes y                    reads dy, all x; writes dx
update                reads all gradients, to check them; then what :data:`benchmarks.floors.UPDATE_BYTES` says
====================  =======================================  ====================================================

No layer has a dgrad whose input needs no gradient. Pixels of x that a stride larger than the filter leaves out are not
read; their dx is written, as zeros. The products are those of convolutions and linear layers; what a network multiplies
elsewhere is not counted. Levels change this as follows, each one keeping what those before it do:

A batch normalization is one kernel in each direction, though it passes over x twice: mixprec asks cuDNN for that in one
call, and a kernel whose blocks stay on the device until the statistics are complete needs no other one.

``nchw``: Tensor cores compute on NHWC. In 16 bits each convolution is one kernel with others before and after it, which
transpose what it reads and what it writes, as cuDNN launches them; filters of 1x1 are the same in both orders, others
are small and transposed with what is read. In float32 and TF32, and without Tensor cores, nothing is transposed.

``nhwc``: no transpositions.

``nhwc-fused``: BN + ReLU and BN + add + ReLU are applied in one pass, which reads x and what is added and writes y.
Backward, a ReLU is known from x, or, if there was an addition, from a bit of each element that was written forward;
the second pass also writes the gradient of what was added.

``nhwc-conv-fused``: a convolution takes the statistics of what it writes. What is normalized and then read by nothing
but convolutions, or added to another normalization, is applied by the kernels that read it, and never written. Of n
gradients that meet, those from convolutions are added in their dgrad, which reads the sum so far.

``nhwc-all-fused``: where a dgrad completes the gradient of BN + ReLU or BN + add + ReLU, it applies the ReLU and takes
the sums of the normalization, for which it reads x and the bits; if what was added is another normalization, the
sums of that one, too. The gradient of what was added is then there without being written again: that allows a ResNet-50
6 to 7 % more images/s than a model in which dgrad takes the sums, but the next pass applies the ReLU and writes that
gradient, and the normalization of a projection reads it once more for its own sums.
"""

import dataclasses
import math

from benchmarks import floors
from benchmarks.roofline.fusible_layers import Fusion

LEVELS = {
    "nchw": "NCHW, nothing fused, transposed around convolutions in 16 bits",
    "nhwc": "NHWC, nothing fused",
    "nhwc-fused": "BN + ReLU and BN + add + ReLU fused",
    "nhwc-conv-fused": "and BN forward in convolutions, sums of gradients in dgrad",
    "nhwc-all-fused": "and the sums of BN backward in dgrad",
}
_SIZES = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2}
_OPTIMIZER = "MomentumSGD"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What a device computes at once.

    Attributes:
        group: of the layer, see :class:`~benchmarks.roofline.network_layers.Layer`; ``"update"`` for the optimizer's.
        kind: of the layer, with ``"_dgrad"``, ``"_wgrad"``, ``"_bias"`` or ``"_backward"`` for gradients;
            ``"transpose"``, ``"gradient_sum"``, ``"update"``.
        bytes: that it reads and writes.
        flops: floating-point operations of its products.
        layer: index of its layer; ``None`` for the optimizer's.
    """

    group: str
    kind: str
    bytes: int
    flops: int = 0
    layer: int | None = None


def kernels(network, level, dtype, batch, *, transposes=True):
    """Returns the kernels of a training step: forward, backward, update by momentum SGD with weight decay.

    Args:
        network: :class:`~benchmarks.roofline.network_layers.Network`.
        level: one of :data:`LEVELS`.
        dtype: name of the dtype of activations and weights, ``"float32"``, ``"float16"`` or ``"bfloat16"``; or
            ``"tf32"``, float32 that products round.
        batch: images in a batch.
        transposes: whether products of 16 bits are those of Tensor cores, which compute on NHWC.

    Returns:
        list of :class:`Kernel`

    Raises:
        ValueError: ``level`` or ``dtype`` is none of those.
    """
    for name, value, known in (("level", level, LEVELS), ("dtype", dtype, _SIZES)):
        if value not in known:
            raise ValueError(f"{name}: found {value!r}, expected one of {', '.join(known)}")
    return _Step(network, level, dtype, batch, transposes).kernels


class _Step:
    def __init__(self, network, level, dtype, batch, transposes):
        depth = list(LEVELS).index(level)
        self._layers, self._batch, self._dtype = network.layers, batch, dtype
        self._fusion = Fusion(network.layers, pointwise=depth >= 2, forward=depth >= 3, backward=depth >= 4)
        self._reduced = self._fusion.reduced
        self._transposes = transposes and level == "nchw" and _SIZES[dtype] == 2
        self.kernels = []
        computed = [index for index in range(len(network.layers)) if index not in self._fusion.absorbed]
        for index in computed:
            self._forward(index)
        for index in reversed(range(len(network.layers))):
            if index in self._fusion.summed:
                arrays = self._fusion.summed[index] + 1
                self._add(index, "gradient_sum", arrays * self._nbytes(self._layers[index].outputs))
            if index in computed and self._fusion.needs_gradient[index]:
                self._backward(index)
        self._update(network)

    def _forward(self, index):
        layer = self._layers[index]
        x, y = self._nbytes(layer.inputs), self._nbytes(layer.outputs)
        match layer.kind:
            case "convolution" | "linear":
                self._product(index, layer.kind, layer.inputs, layer.outputs)
            case "batch_normalization":
                self._normalize(index, x)
            case "max_pooling":
                self._add(index, layer.kind, x + y + self._elements(layer.outputs))
            case "view":
                pass
            case kind:
                self._add(index, kind, x + y)

    def _backward(self, index):
        layer = self._layers[index]
        learning = [
            shape
            for shape, source in zip(layer.inputs, layer.sources, strict=True)
            if source is not None and self._fusion.needs_gradient[source]
        ]
        x, dx, dy = map(self._nbytes, (layer.inputs, learning, layer.outputs))
        kind = f"{layer.kind}_backward"
        match layer.kind:
            case "convolution" | "linear":
                if learning:
                    self._product(index, f"{layer.kind}_dgrad", layer.outputs, layer.inputs, self._in_dgrad(index))
                self._product(index, f"{layer.kind}_wgrad", layer.inputs, layer.outputs)
                if layer.bias:
                    self._add(index, f"{layer.kind}_bias", dy)
            case "batch_normalization":
                self._normalize_backward(index, x, dx)
            case "concatenation" | "average_pooling":
                self._add(index, kind, dy + dx)
            case "max_pooling":
                self._add(index, kind, dy + self._elements(layer.outputs) + dx)
            case "view" | "add":
                pass
            case _:
                self._add(index, kind, dy + x + dx)

    def _product(self, index, kind, read, other, more=0):
        """One of the three products of a convolution or linear layer: of two of x, y and W, the third is made.

        Args:
            index: of the layer.
            kind: of the kernel.
            read: shapes of what is read, x or dy.
            other: shapes of the other array with images, y, dx or dy.
            more: bytes that are moved besides.
        """
        layer = self._layers[index]
        filters = math.prod(layer.filters) * _SIZES[self._dtype]
        flops = 2 * self._elements(layer.outputs) * math.prod(layer.filters[1:])
        used = [used_input(layer)] if read == layer.inputs else read
        self._add(index, kind, self._nbytes(used) + self._nbytes(other) + filters + more, flops)
        if self._transposes and layer.kind == "convolution":
            filters *= layer.filters[2:] != (1, 1)
            self._add(index, "transpose", 2 * (self._nbytes(read) + filters))
            self._add(index, "transpose", 2 * self._nbytes(other))

    def _in_dgrad(self, index):
        """Bytes that a dgrad moves besides: the gradient that it adds to, what sums of normalizations need."""
        fusion, layer = self._fusion, self._layers[index]
        moved = self._nbytes(layer.inputs) if index in fusion.accumulating else 0
        for reduced in fusion.reducing.get(index, ()):
            moved += self._nbytes(self._layers[reduced].inputs) + self._bits(reduced)
        return moved

    def _normalize(self, index, x):
        unit, moved = self._fusion.normalizations[index], 0
        if index not in self._fusion.in_epilogue:
            moved += x
        if index not in self._fusion.in_prologue:
            added = 0 if unit.add is None else x
            moved += x + added + x + self._bits(index)
        if moved:
            self._add(index, "batch_normalization", moved)

    def _normalize_backward(self, index, x, dx):
        unit, kind = self._fusion.normalizations[index], "batch_normalization_backward"
        dy = x
        if index in self._reduced:
            self._add(index, kind, dy + x + dx)
            return
        read = dy + x + self._bits(index)
        dadded = x if unit.add is not None and self._fusion.needs_gradient[unit.added] else 0
        self._add(index, kind, 2 * read + dx + dadded)

    def _bits(self, index):
        """Bytes that say where the ReLU after a normalization and an addition was open."""
        unit = self._fusion.normalizations[index]
        return 0 if unit.add is None else -(-self._elements(self._layers[index].inputs) // 8)

    def _update(self, network):
        rates, half = floors.UPDATE_BYTES[_OPTIMIZER], _SIZES[self._dtype] == 2
        gradients = network.weights * _SIZES[self._dtype] + network.vectors * _SIZES["float32"]
        moved = network.weights * rates["float16" if half else "float32"] + network.vectors * rates["float32"]
        self.kernels += [Kernel("update", "update", gradients), Kernel("update", "update", moved - gradients)]

    def _add(self, index, kind, nbytes, flops=0):
        self.kernels.append(Kernel(self._layers[index].group, kind, nbytes, flops, index))

    def _elements(self, shapes):
        return self._batch * sum(map(math.prod, shapes))

    def _nbytes(self, shapes):
        return self._elements(shapes) * _SIZES[self._dtype]


def used_input(layer):
    """Returns the shape of what is read of the input of a convolution or linear layer."""
    if layer.kind == "linear":
        return layer.inputs[0]
    channels, *image = layer.inputs[0]
    sides = zip(image, layer.outputs[0][1:], layer.filters[2:], layer.stride, strict=True)
    return channels, *(size if side >= stride else min(size, made * side) for size, made, side, stride in sides)
