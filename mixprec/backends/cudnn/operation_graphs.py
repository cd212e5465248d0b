"""The graph of an operation, in the terms of cuDNN's Python frontend.

cuDNN always names dimensions in the order N, C, H, W (K, C, R, S for filters); strides show whether channels are
innermost. Vectors per channel have dimensions (1, C, 1, 1).
"""

import math

_DATA_TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "boolean": "BOOLEAN"}


def data_type(cudnn, name):
    """Returns a dtype of :class:`~mixprec.backends.cudnn.operation.Tensor` as cuDNN's."""
    return getattr(cudnn.data_type, _DATA_TYPES[name])


def describe(cudnn, graph, operation):
    """Adds the nodes of an operation to an empty graph. The tensors of ``operation.tensors`` get the uids from 1 on.

    Args:
        cudnn: the module of the frontend.
        graph: ``cudnn.pygraph`` whose inputs and outputs have the storage dtype by default, and whose intermediate
            values and arithmetic are float32.
        operation: :class:`~mixprec.backends.cudnn.operation.Operation`.
    """
    _NODES[operation.kind](_Builder(cudnn, graph, operation))


class _Builder:
    """The inputs, outputs and attributes of an operation, added to the graph."""

    def __init__(self, cudnn, graph, operation):
        self.cudnn, self.graph, self.operation = cudnn, graph, operation
        self._tensors = {tensor.name: tensor for tensor in operation.tensors}
        self._uids = {tensor.name: uid for uid, tensor in enumerate(operation.tensors, start=1)}
        self._rank = len(operation.inputs[0].shape)

    def has(self, name):
        return name in self._tensors

    def input(self, name):
        """Adds an input of the operation."""
        tensor = self._tensors[name]
        dim, stride = _layout(tensor, self._rank)
        dtype = data_type(self.cudnn, tensor.dtype)
        return self.graph.tensor(name=name, dim=dim, stride=stride, data_type=dtype, uid=self._uids[name])

    def output(self, name, node):
        """Makes the result of a node an output of the operation."""
        tensor = self._tensors[name]
        dim, stride = _layout(tensor, self._rank)
        node.set_output(True).set_data_type(data_type(self.cudnn, tensor.dtype)).set_uid(self._uids[name])
        node.set_dim(dim).set_stride(stride)

    def rounded(self, node, like):
        """Gives an intermediate value the dtype of a tensor: cuDNN has no engine for a float32 operand there."""
        return node.set_data_type(data_type(self.cudnn, self._tensors[like].dtype))

    def scalar(self, value):
        return self.graph.tensor_scalar(value, self.cudnn.scalar_type.RUNTIME_PARAM)

    def geometry(self):
        """Returns the arguments common to all convolutions. Groups follow from the channels of image and filter."""
        names = {"padding": "pad", "stride": "stride", "dilation": "dilation"}
        return {theirs: list(self.operation.attribute(ours)) for theirs, ours in names.items()}


def _layout(tensor, rank=4):
    """Returns dimensions and strides of a tensor; of ``rank`` dimensions if it is per channel."""
    shape = tensor.shape if len(tensor.shape) > 1 else (*[1] * (rank - 1), *tensor.shape)
    if tensor.layout == "NCHW" and len(tensor.shape) > 1:
        return list(shape), [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    n, *space, c = shape
    return [n, c, *space], [math.prod(shape[1:]), 1, *(math.prod(shape[axis + 2 :]) for axis in range(len(space)))]


def _conv_fprop(builder):
    graph = builder.graph
    y = graph.conv_fprop(image=builder.input("x"), weight=builder.input("w"), **builder.geometry())
    if builder.has("b"):
        y = graph.bias(input=y, bias=builder.input("b"))
    if builder.operation.attribute("relu"):
        y = graph.relu(input=y)
    builder.output("y", y)
    if builder.has("sum"):
        total, squares = graph.genstats(input=y)
        builder.output("sum", total)
        builder.output("square_sum", squares)


def _conv_dgrad(builder):
    dy, w = builder.input("dy"), builder.input("w")
    builder.output("dx", builder.graph.conv_dgrad(loss=dy, filter=w, **builder.geometry()))


def _conv_wgrad(builder):
    x, dy = builder.input("x"), builder.input("dy")
    builder.output("dw", builder.graph.conv_wgrad(image=x, loss=dy, **builder.geometry()))


def _batch_norm(builder):
    graph, operation = builder.graph, builder.operation
    y, mean, invstd, next_mean, next_var = graph.batchnorm(
        input=builder.input("x"),
        scale=builder.input("gamma"),
        bias=builder.input("beta"),
        in_running_mean=builder.input("running_mean"),
        in_running_var=builder.input("running_var"),
        epsilon=builder.scalar(operation.attribute("eps")),
        momentum=builder.scalar(operation.attribute("momentum")),
    )
    statistics = {"mean": mean, "invstd": invstd, "next_mean": next_mean, "next_var": next_var}
    for name, node in statistics.items():
        builder.output(name, node)
    if builder.has("add"):
        y = graph.add(a=y, b=builder.input("add"))
    if operation.attribute("relu"):
        y = graph.relu(input=y)
    builder.output("y", y)
    if builder.has("mask"):
        builder.output("mask", graph.cmp_gt(input=y, comparison=builder.scalar(0.0)))


def _batch_norm_backward(builder):
    graph = builder.graph
    dy, x, gamma, mean, invstd = (builder.input(name) for name in ("dy", "x", "gamma", "mean", "invstd"))
    if builder.has("beta"):
        y = graph.batchnorm_inference(input=x, mean=mean, inv_variance=invstd, scale=gamma, bias=builder.input("beta"))
        dy = builder.rounded(graph.relu_backward(loss=dy, input=y), "dy")
    elif builder.has("mask"):
        dy = graph.scale(input=dy, scale=builder.input("mask"))
        builder.output("dadd", dy)
    gradients = graph.batchnorm_backward(grad=dy, input=x, scale=gamma, mean=mean, inv_variance=invstd)
    for name, node in zip(("dx", "dgamma", "dbeta"), gradients, strict=True):
        builder.output(name, node)


_NODES = {
    "conv_fprop": _conv_fprop,
    "conv_dgrad": _conv_dgrad,
    "conv_wgrad": _conv_wgrad,
    "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm_backward,
}
