"""``L.NStepLSTM`` and the like in ONNX: an operator for each layer, over any number of sequences of one length.

A model takes a batch apart, calls the link with a list of sequences, and joins the results. In a trace these are
functions for each sequence. Here the link is one function of the whole batch, and what joins all parts of an array is
a Reshape of it, so that no function that takes a batch apart stays in the graph.
"""

import functools

import chainer
import chainer.functions as F
import numpy as np

from mixprec.export.export_error import ExportError
from mixprec.rewrite.recurrent_links import KINDS

_ORDERS = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}  # of Chainer's gates in the operators of ONNX


class NStepLink(chainer.FunctionNode):
    """A recurrent link, a function of x (B, T, C), and of the first states of each layer, if there are any.

    The outputs are y (B, T, directions * H) and the last states (layers * directions, B, H).

    Args:
        link: the link.
        outputs: their arrays, a tuple.
    """

    def __init__(self, link, outputs):
        self.link, self._outputs = link, outputs

    def forward(self, inputs):
        return self._outputs


def join_sequences(model):
    """Lets recurrent links of a model call :class:`NStepLink`; in place. Returns the model."""
    for name, link in model.namedlinks():
        if getattr(type(link), "rnn", None) in KINDS:
            link._call = functools.partial(_call, f"{type(link).__name__} of {name}", link, link._call)
    return model


def _call(name, link, original, states, xs):
    last, ys = original(states, xs)
    whole = whole_of([x.node for x in xs if isinstance(x, chainer.Variable)])
    if whole is None or len({x.shape for x in xs}) > 1 or len({state is None for state in states}) > 1:
        raise ExportError(
            f"{name} cannot be exported: the sequences must be all rows of one array, such as F.separate(x), and its "
            "first states must be None, or all given"
        )
    x, step = F.reshape(whole.get_variable(), (len(xs), *xs[0].shape)), link.direction
    firsts = [state[i : i + step] for state in states if state is not None for i in range(0, len(state), step)]
    outputs = np.stack([y.array for y in ys]), *(state.array for state in last)
    y, *last = NStepLink(link, outputs).apply((x, *firsts))
    return last, list(F.separate(y, axis=0))


def whole_of(nodes):
    """Returns the variable node of an array if ``nodes`` are all its parts along the first axis, else ``None``."""
    makers = [node.creator_node for node in nodes]
    kinds = {type(maker).__name__ for maker in makers}
    if len(kinds) != 1 or not kinds < {"GetItem", "Separate", "SplitAxis"}:
        return None
    first, whole = makers[0], makers[0].inputs[0]
    if "GetItem" in kinds:
        is_whole = [(each.inputs[0], each.slices) for each in makers] == [(whole, (i,)) for i in range(whole.shape[0])]
    else:
        is_whole = first.axis == 0 and [output() for output in first.outputs] == list(nodes)
    return whole if is_whole else None


def n_step_link(nodes):
    """Adds to the nodes of a converter what computes a :class:`NStepLink`."""
    link, (x, *states), last = nodes.function.link, nodes.inputs, []
    kind, count = KINDS[type(link).rnn], link.direction
    operator = kind.upper() if kind in ("lstm", "gru") else "RNN"
    options = {"gru": {"linear_before_reset": 1}, "relu": {"activations": ["Relu"] * count}}.get(kind, {})
    options |= {"hidden_size": link.out_size, "direction": ["forward", "bidirectional"][count - 1]}
    x, shape = nodes.op("Transpose", [x], perm=[1, 0, 2]), nodes.constant("shape", [0, 0, -1])
    for layer in range(link.n_layers):
        part = slice(layer * count, (layer + 1) * count)
        w, u = zip(*(_halves(each, _ORDERS[operator]) for each in link.ws[part]), strict=True)
        arrays = {"w": w, "u": u, "b": [np.concatenate(_halves(each, _ORDERS[operator])) for each in link.bs[part]]}
        arrays = [nodes.constant(f"{name}{layer}", each, np.float32) for name, each in arrays.items()]
        inputs = [x, *arrays, "", *states[layer :: link.n_layers]]  # without lengths
        y, *after = nodes.op(operator, inputs, num_outputs=len(nodes.outputs), **options)
        x = nodes.op("Reshape", [nodes.op("Transpose", [y], perm=[0, 2, 1, 3]), shape])
        last.append(after)
    nodes.op_output_named("Transpose", [x], nodes.outputs[:1], perm=[1, 0, 2])
    for parts, output in zip(zip(*last, strict=True), nodes.outputs[1:], strict=True):
        nodes.op_output_named("Concat", parts, [output], axis=0)


def _halves(params, order):
    """Returns the matrices, or biases, of the inputs and of the states, joined in an order of gates."""
    return [np.concatenate([params[start + gate].array for gate in order]) for start in (0, len(order))]
