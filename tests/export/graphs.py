"""Small ONNX graphs with random weights, made node by node."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper


class GraphMaker:
    """Makes a graph from its input on; each method returns the name of a tensor.

    Args:
        shape: of one image.
        seed: of the weights.
    """

    def __init__(self, *shape, seed=0):
        self.random = np.random.RandomState(seed)
        self.shape = shape
        self.channels = {"images": shape[0]}
        self.nodes, self.tensors = [], {}

    def constant(self, array, name):
        self.tensors[name] = np.asarray(array)
        return name

    def node(self, kind, *inputs, **values):
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}_out"], name=name, **values))
        self.channels[f"{name}_out"] = self.channels.get(inputs[0])
        return f"{name}_out"

    def conv(self, x, channels, kernel=3, group=1, stride=1, dilation=1, weights=None, bias=None):
        """A convolution that keeps the size, divided by the stride; weights are of He's size."""
        fan_in = self.channels[x] // group
        shape = (channels, fan_in, kernel, kernel)
        size = np.sqrt(2 / (fan_in * kernel**2))
        inputs = self._weights(shape if weights is None else weights, size, channels if bias is None else bias)
        pad = dilation * (kernel // 2)
        values = {"group": group, "strides": [stride] * 2, "dilations": [dilation] * 2, "pads": [pad] * 4}
        y = self.node("Conv", x, *inputs, kernel_shape=[kernel] * 2, **values)
        self.channels[y] = channels
        return y

    def deconv(self, x, channels):
        """A transposed convolution that doubles the size."""
        inputs = self._weights((self.channels[x], channels, 2, 2), np.sqrt(2 / self.channels[x]), channels)
        y = self.node("ConvTranspose", x, *inputs, kernel_shape=[2, 2], strides=[2, 2])
        self.channels[y] = channels
        return y

    def linear(self, x, channels, weights=None, bias=None):
        shape = (channels, self.channels[x])
        size = np.sqrt(1 / self.channels[x])
        inputs = self._weights(shape if weights is None else weights, size, channels if bias is None else bias)
        y = self.node("Gemm", x, *inputs, transB=1)
        self.channels[y] = channels
        return y

    def relu(self, x):
        return self.node("Relu", x)

    def head(self, x, channels, **arrays):
        """Global average pooling and a layer of all to all."""
        flat = self.node("Flatten", self.node("GlobalAveragePool", x))
        return self.linear(flat, channels, **arrays)

    def model(self, *outputs):
        """The graph as a model, opset 21, IR version 10, of a dynamic batch."""
        dims = [None] * len(self.shape)
        graph = helper.make_graph(
            self.nodes,
            "small",
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", *self.shape])],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *(dims if rank == 4 else dims[:1])])
                for name, rank in outputs
            ],
            [numpy_helper.from_array(array, name) for name, array in self.tensors.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        model.producer_name = "tests"
        helper.set_model_props(model, {"classes": "a, b"})
        return model

    def _weights(self, weights, size, bias):
        """Names of weights and bias, given as arrays, or as a shape and a number of random ones."""
        if isinstance(weights, tuple):
            weights = self.random.normal(0, size, weights)
        if isinstance(bias, int):
            bias = self.random.normal(0, 0.1, bias)
        number = len(self.nodes)
        arrays = {f"weights{number}": weights, f"bias{number}": bias}
        return [self.constant(array.astype(np.float32), name) for name, array in arrays.items()]


def residual(size=8, channels=16, seed=0):
    """A residual network of two blocks: the shortcut of one is the identity, that of the other a convolution."""
    make = GraphMaker(3, size, size, seed=seed)
    x = make.relu(make.conv("images", channels))
    y = make.conv(make.relu(make.conv(x, channels)), channels)
    x = make.relu(make.node("Add", y, x))
    y = make.conv(make.relu(make.conv(x, 2 * channels, stride=2)), 2 * channels)
    x = make.relu(make.node("Add", make.conv(x, 2 * channels, kernel=1, stride=2), y))
    return make.model((make.head(x, 10), 2))


def unet():
    """Pooling, a transposed convolution, a concatenation, groups, dilation, two outputs of which one is taken again."""
    make = GraphMaker(3, 8, 8, seed=4)
    x = make.relu(make.conv("images", 16))
    y = make.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    y = make.relu(make.conv(make.conv(y, 16, group=16), 32, kernel=1))
    small = make.conv(y, 32, dilation=2, group=4)
    z = make.node("Concat", make.deconv(make.relu(small), 16), x, axis=1)
    make.channels[z] = 32
    return make.model((make.conv(z, 16, kernel=1), 4), (small, 4))


def products():
    """Matrix products with constants and without, softmax, and a shape that is computed."""
    make = GraphMaker(6, 8, seed=5)
    weights = make.constant(make.random.normal(0, 0.3, (8, 12)).astype(np.float32), "weights")
    keys = make.node("MatMul", "images", weights)
    attention = make.node("Softmax", make.node("MatMul", keys, make.node("Transpose", keys, perm=[0, 2, 1])))
    mixed = make.node("MatMul", attention, keys)
    shape = make.node("Concat", make.node("Shape", mixed, end=1), make.constant(np.array([-1]), "rest"), axis=0)
    flat = make.node("Reshape", mixed, shape)
    make.channels[flat] = 72
    return make.model((make.linear(make.relu(make.linear(flat, 16)), 5), 2))


def shared():
    """A layer that is called twice, and clipped ReLU."""
    make = GraphMaker(16, 8, 8, seed=6)
    weights = make.random.normal(0, 0.1, (16, 16, 3, 3)).astype(np.float32)
    names = make.constant(weights, "weights"), make.constant(np.ones(16, np.float32) / 8, "bias")
    bounds = make.constant(np.float32(0), "zero"), make.constant(np.float32(1), "one")
    x = "images"
    for _ in range(2):
        x = make.node("Clip", make.node("Conv", x, *names, pads=[1] * 4), *bounds)
    make.channels[x] = 16
    return make.model((make.head(x, 4), 2))


def chain():
    """Convolutions and ReLU in a row."""
    make = GraphMaker(3, 8, 8, seed=7)
    x = "images"
    for _ in range(3):
        x = make.conv(make.relu(make.conv(x, 16)), 16)
    return make.model((x, 4))


def random_network(seed):
    """Layers, what may stand between them, branches and outputs, by chance."""
    make = GraphMaker(16, 8, 8, seed=seed)
    chance, x, outputs = np.random.RandomState(seed), make.conv("images", 16), []
    kinds = ("conv", "relu", "add", "concat", "pool", "clip", "softmax", "output", "mul")
    bounds = make.constant(np.float32(-0.5), "lowest"), make.constant(np.float32(2), "highest")
    before = x
    for kind in chance.choice(kinds, 12, p=(0.3, 0.2, 0.1, 0.05, 0.05, 0.1, 0.05, 0.1, 0.05)):
        if kind == "conv":
            before, x = x, make.conv(x, 16, kernel=1 + 2 * chance.randint(2))
        elif kind == "add":
            x = make.node("Add", *chance.permutation([x, before]))
        elif kind == "concat":
            y = make.node("Concat", x, before, axis=1)
            make.channels[y] = 32
            x = make.conv(y, 16, kernel=1)
        elif kind == "output":
            outputs += [(x, 4)] if (x, 4) not in outputs else []
        else:
            x = {
                "relu": lambda x: make.relu(x),
                "pool": lambda x: make.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4),
                "clip": lambda x: make.node("Clip", x, *bounds),
                "softmax": lambda x: make.node("Softmax", x, axis=1),
                "mul": lambda x: make.node("Mul", x, "highest"),
            }[kind](x)
    x = make.linear(make.node("Flatten", make.node("GlobalAveragePool", x)), 16)
    for kind in chance.choice(("relu", "linear"), 3):
        x = make.relu(x) if kind == "relu" else make.linear(x, 16)
    return make.model((x, 2), *outputs)


def images(number, *shape, seed=1):
    """Batches of 4 random images."""
    array = np.random.RandomState(seed).normal(size=(number, *shape)).astype(np.float32)
    return [array[start : start + 4] for start in range(0, number, 4)]


def shape_of(network):
    """That of one image."""
    return [dim.dim_value for dim in network.graph.input[0].type.tensor_type.shape.dim[1:]]
