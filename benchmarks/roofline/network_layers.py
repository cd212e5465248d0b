"""The layers of a network and their work, found by running it once on NumPy."""

import dataclasses
import math

import chainer
import chainer.functions as F
import numpy as np
from chainer import function_hook, link_hook

_IMAGES = 2  # a batch normalization of a single row warns
_KINDS = {
    "Convolution2DFunction": "convolution",
    "LinearFunction": "linear",
    "BatchNormalization": "batch_normalization",
    "ReLU": "relu",
    "Add": "add",
    "MaxPooling2D": "max_pooling",
    "MaxPoolingND": "max_pooling",
    "AveragePooling2D": "average_pooling",
    "AveragePoolingND": "average_pooling",
    "Concat": "concatenation",
    "SoftmaxCrossEntropy": "loss",
    "Reshape": "view",
    "ExpandDims": "view",
    "Squeeze": "view",
}
_PRODUCTS = ("convolution", "linear")
_WITH_PARAMETERS = (*_PRODUCTS, "batch_normalization")  # all inputs but the first are parameters


@dataclasses.dataclass(frozen=True)
class Layer:
    """One function that a network applies.

    Attributes:
        name: path of the link that called it, such as ``"layer1/0/conv1"``; empty for the network itself.
        group: first part of the name; where the network itself called it, that of the layer that made its first input.
        kind: ``"convolution"``, ``"linear"``, ``"batch_normalization"``, ``"relu"``, ``"add"``, ``"max_pooling"``,
            ``"average_pooling"``, ``"concatenation"``, ``"loss"``, ``"view"`` (what moves nothing), or ``"other"``.
        inputs: shapes of its inputs for one image, parameters left out.
        sources: for each input the index of the layer that made it, ``None`` if it was given to the network.
        outputs: shapes of its outputs for one image.
        filters: shape of the matrix or the filters of a linear layer or convolution, ``None`` for others.
        stride: of a convolution, down and across; ``(1, 1)`` for others.
        bias: whether it adds a bias, which then needs a gradient.
        has_parameters: whether it has any parameter.
    """

    name: str
    group: str
    kind: str
    inputs: tuple[tuple[int, ...], ...]
    sources: tuple[int | None, ...]
    outputs: tuple[tuple[int, ...], ...]
    filters: tuple[int, ...] | None = None
    stride: tuple[int, int] = (1, 1)
    bias: bool = False
    has_parameters: bool = False


@dataclasses.dataclass(frozen=True)
class Network:
    """All layers that lead to the loss, in the order in which they ran.

    Attributes:
        layers: tuple of :class:`Layer`, the last one being the loss.
        weights: elements of parameters with more than one axis, which 16-bit training keeps in 16 bits.
        vectors: elements of the others: biases, scales of batch normalizations.
    """

    layers: tuple[Layer, ...]
    weights: int
    vectors: int

    @property
    def parameters(self):
        """Number of elements of all parameters that were used."""
        return self.weights + self.vectors


def layers(network, size, classes=1000):
    """Finds out what a classifier computes in training, softmax cross entropy included.

    It is made and run forward on NumPy, in float32, on two images of zeros. What the loss does not depend on is left
    out, and of what is computed from parameters alone there are only the parameters.

    Args:
        network: callable from the number of classes to a Chainer link from images (N, 3, size, size) to logits, which
            knows nothing of mixprec.
        size: height and width of an image in pixels.
        classes: number of classes.

    Returns:
        Network
    """
    x = chainer.Variable(np.zeros((_IMAGES, 3, size, size), np.float32), requires_grad=False)
    with (
        chainer.using_config("dtype", np.float32),
        chainer.using_config("train", True),
        chainer.using_config("enable_backprop", True),
    ):
        link = network(classes)
        with _Paths(link) as paths, _Applied(paths) as applied:
            loss = F.softmax_cross_entropy(link(x), np.zeros(_IMAGES, np.int32))
    leading = _leading_to(loss.creator_node)
    functions = _fed_by(x.node, [node for node in applied.functions if node in leading])
    places, found = {id(node): place for place, node in enumerate(functions)}, []
    for node in functions:
        found.append(_layer(node, applied.functions[node], places, found))
    parameters = {id(node): node for each in leading for node in each.inputs if _is_parameter(node)}.values()
    return Network(
        tuple(found),
        sum(math.prod(node.shape) for node in parameters if len(node.shape) > 1),
        sum(math.prod(node.shape) for node in parameters if len(node.shape) <= 1),
    )


class _Paths(link_hook.LinkHook):
    """Knows the path of the link that runs."""

    name = "benchmarks.roofline.paths"

    def __init__(self, network):
        self._names = {id(link): path.strip("/") for path, link in network.namedlinks()}
        self._running = [""]

    @property
    def current(self):
        return self._running[-1]

    def forward_preprocess(self, args):
        self._running.append(self._names.get(id(args.link), self.current))

    def forward_postprocess(self, args):
        self._running.pop()


class _Applied(function_hook.FunctionHook):
    """Collects function nodes in the order in which they run, with the path of the link that called them."""

    name = "benchmarks.roofline.applied"

    def __init__(self, paths):
        self.functions = {}
        self._paths = paths

    def forward_postprocess(self, function, in_data):
        self.functions[function] = self._paths.current


def _leading_to(loss):
    """Returns the set of function nodes that a function node depends on, itself included."""
    found, todo = set(), [loss]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += [source.creator_node for source in node.inputs if source.creator_node is not None]
    return found


def _fed_by(images, functions):
    """Returns those of function nodes, in the order in which they ran, that depend on the images."""
    found = {}
    for node in functions:
        if any(source is images or source.creator_node in found for source in node.inputs):
            found[node] = None
    return list(found)


def _layer(node, path, places, before):
    """Returns the :class:`Layer` of a function node.

    Args:
        node: the function node.
        path: of the link that called it.
        places: dict from ids of function nodes to indices of layers.
        before: list of the layers before it.
    """
    kind = _KINDS.get(type(node).__name__, "other")
    inputs = node.inputs[:1] if kind in _WITH_PARAMETERS else [each for each in node.inputs if not _is_parameter(each)]
    sources = tuple(places.get(id(each.creator_node)) for each in inputs)
    outputs = [output() for output in node.outputs]
    group = path.partition("/")[0] or (kind if sources[0] is None else before[sources[0]].group)
    return Layer(
        *(path, group, kind),
        tuple(_of_one_image(each.shape) for each in inputs),
        sources,
        tuple(_of_one_image(output.shape) for output in outputs if output is not None),
        node.inputs[1].shape if kind in _PRODUCTS else None,
        (node.sy, node.sx) if kind == "convolution" else (1, 1),
        kind in _PRODUCTS and len(node.inputs) == 3,
        len(inputs) < len(node.inputs),
    )


def _is_parameter(node):
    return isinstance(node.get_variable_or_none(), chainer.Parameter)


def _of_one_image(shape):
    if not shape or shape[0] % _IMAGES:
        return shape
    rows = shape[0] // _IMAGES
    return shape[1:] if rows == 1 else (rows, *shape[1:])
