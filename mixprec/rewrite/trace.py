"""The trace of a call of a converted model, for the report: conversions, fusions, functions left alone, kept memory.

The first two calls in training mode are traced; fusions are known in the second.
:mod:`mixprec.rewrite.dispatch` opens and ends a trace, and notes functions in it.
"""

import collections
import dataclasses
import weakref

import chainer
import numpy as np

from mixprec.rewrite import dtype_rules
from mixprec.rewrite.deferred import Deferred
from mixprec.rewrite.memory_order import is_channels_last, is_only_channels_last
from mixprec.rewrite.narrow_results import NarrowResults

TRACED_CALLS = 2
# Functions that return views, in whatever order.
_VIEWS = {
    *("Broadcast", "BroadcastTo", "ExpandDims", "GetItem", "Reshape", "Rollaxis", "SplitAxis", "Squeeze", "Swapaxes"),
    "Transpose",
}
# What plain Chainer keeps for the backward pass, for nodes that mixprec replaces: which inputs, which outputs, and how
# many more float32 arrays like the output. Chainer's other nodes declare what they keep.
_NOTHING, _INPUT = ((), (), 0), ((0,), (), 0)
_KEPT = {
    **dict.fromkeys(("Convolution2DFunction", "Deconvolution2DFunction", "LinearFunction"), _INPUT),
    **dict.fromkeys(("BatchNormalization", "FixedBatchNormalization", "SoftmaxCrossEntropy"), _INPUT),
    **dict.fromkeys(("AveragePooling2D", "AveragePoolingND", "Concat", "StochasticDepth"), _NOTHING),
    **dict.fromkeys(("Dropout", "MaxPoolingND"), ((), (), 1)),
    "LocalResponseNormalization": ((0,), (), 2),
    "ReLU": ((), (0,), 0),
}
# What it keeps of a recurrent layer: numbers for each unit of a row beside the inputs, and whether it keeps matrices of
# gates, stacked anew in each step.
_RECURRENT = {"lstm": (6, True), "gru": (8, True), "tanh": (1, False), "relu": (1, False)}
_RECURRENT_CELL = {"lstm": (6, False), "gru_reset_before": (4, False)}


@dataclasses.dataclass(frozen=True)
class LayoutConversion:
    """One conversion between the two memory orders in a forward pass; the backward pass has its mirror image.

    Attributes:
        direction: ``"to NHWC"`` or ``"to NCHW"``.
        link: name of the link in which it is.
        function: name of the function that needs it, or ``"result"``.
    """

    direction: str
    link: str
    function: str


@dataclasses.dataclass
class Findings:
    """The findings of a traced call.

    Attributes:
        batch: shapes and dtypes of the arguments.
        conversions: list of :class:`LayoutConversion`.
        left: ``{(name of the link, name of the function): why it stayed as it was}``.
        normalizations: number of batch normalizations by ``(name of the link, name of the fusion)``, the latter
            being ``"ReLU"``, ``"add + ReLU"`` or ``""``.
        bytes_before: what the graph of plain Chainer in float32 would keep for the backward pass, without parameters.
        bytes_after: what the graph keeps.
        bytes_largest: the largest array of it.
        narrow_results: list of texts, one for each result that needs more than 16 bits; only on ``convert``'s example.
    """

    batch: str
    conversions: list
    left: dict
    normalizations: dict
    bytes_before: int
    bytes_after: int
    bytes_largest: int
    narrow_results: list


def refuse(left):
    """Raises ValueError if anything stayed as it was; ``left`` is :attr:`Findings.left`."""
    if left:
        raise ValueError(f"convert(strict=True): not converted: {'; '.join(lines_of(left))}")


def lines_of(left):
    """Returns what stayed as it was as a list of texts."""
    return [f"{link or '/'} ({what}): {why}" for (link, what), why in left.items()]


class Trace:
    """Notes what happens in one call.

    Args:
        on_example: whether it is one on ``convert``'s example, whose results may be read from the device.
    """

    def __init__(self, on_example):
        self._results = NarrowResults() if on_example else None
        self._conversions = []
        self._unclaimed = []
        self._left = {}
        self._normalizations = collections.Counter()
        self._bytes_before = 0
        self._counted = {}  # weak references to what is kept, by id, so that nothing is counted twice

    def note(self, scope, node, cls, inputs, outputs):
        """Notes a function that the model applied.

        Args:
            scope: :class:`~mixprec.rewrite.scope.Scope`.
            node: what was applied or replaced.
            cls: its class, or the class of the old-style function that it stands for.
            inputs: of the function.
            outputs: of what was applied.
        """
        self.claim(cls.__name__)
        if self._results is not None:
            self._results.note(scope, node, cls, inputs, outputs)
        self._keep(node, cls.__name__, inputs, outputs)
        key = scope.link_name, cls.__name__
        if cls.__module__.startswith("mixprec."):
            return
        if not cls.__module__.startswith("chainer."):
            self._left[key] = "not a function of Chainer: computes in NCHW and float32"
        elif not (dtype_rules.is_chainers_own(node) or node.inputs is None):  # None: another node has replaced it
            self._left[key] = f"{dtype_rules.whose(node)}, in float32"
        elif scope.nhwc and _leaves_nhwc(cls, inputs, outputs):
            self._left[key] = "not known in NHWC: its result is NCHW"

    def note_conversion(self, direction, link):
        """Notes a conversion between the memory orders inside another function."""
        self._unclaimed.append((direction, link))

    def note_normalization(self, link, fused):
        """Notes a batch normalization that was computed, and with what."""
        self._normalizations[link, fused] += 1

    def note_whole(self, function, inputs):
        """Notes a function that was computed as a whole, by its name and inputs."""
        self.claim(function)
        if self._results is not None:
            self._results.look(inputs)

    def note_recurrent(self, layer, sizes):
        """Notes what plain Chainer would keep of recurrent layers that are computed by a node of mixprec each.

        Args:
            layer: :class:`~mixprec.backends.recurrence.Recurrence`, of all of them.
            sizes: of each layer and direction, numbers of inputs and of units.
        """
        of_unit, is_stacked = (_RECURRENT_CELL if layer.is_cell else _RECURRENT)[layer.kind]
        for columns, units in sizes:
            weights = layer.gates * units * (columns + units) * len(layer.sizes) if is_stacked else 0
            self._bytes_before += 4 * (layer.rows * (columns + of_unit * units) + weights)

    def claim(self, function):
        """Notes that the conversions since the last function were for this one."""
        self._conversions += [LayoutConversion(direction, link, function) for direction, link in self._unclaimed]
        self._unclaimed.clear()

    def _keep(self, node, name, inputs, outputs):
        if name in _KEPT and node.inputs is None:
            indexes, out_indexes, beside = _KEPT[name]
        else:
            indexes, out_indexes = node._input_indexes_to_retain or (), node._output_indexes_to_retain or ()
            beside = 0
        kept = [inputs[index] for index in indexes] + [outputs[index] for index in out_indexes]
        for x in kept:
            known = self._counted.get(id(x))
            if not isinstance(x, chainer.Parameter) and (known is None or known() is not x):
                self._counted[id(x)] = weakref.ref(x)  # a deferred variable that is held would count as kept
                self._bytes_before += _bytes_in_float32(x)
        self._bytes_before += beside * _bytes_in_float32(outputs[0])

    def finish(self, conversion, arguments, results):
        """Ends the trace: the conversion has its :class:`Findings`.

        Args:
            conversion: :class:`~mixprec.rewrite.convert.Conversion`.
            arguments: list of what the model was called with.
            results: list of the variables in what the model returned.

        Raises:
            ValueError: a function stayed as it was, and the conversion is strict.
        """
        self.claim("result")
        kept = sizes_kept(results)
        if self._results is not None:
            self._results.look(results)
        conversion.traced += 1
        conversion.findings = Findings(
            ", ".join(f"{x.shape} {x.dtype}" for x in arguments if hasattr(x, "shape")),
            self._conversions,
            self._left,
            dict(self._normalizations),
            self._bytes_before,
            sum(kept),
            max(kept, default=0),
            [] if self._results is None else list(self._results.lines.values()),
        )
        if conversion.strict:
            refuse(self._left)


def _bytes_in_float32(x):
    return x.size * (4 if x.dtype.kind in "fV" else x.dtype.itemsize)


def _leaves_nhwc(cls, inputs, outputs):
    if cls.__name__ in _VIEWS:
        return False
    if any(type(x) is Deferred for x in (*inputs, *outputs)):
        return False
    came = any(map(is_only_channels_last, inputs))
    return came and any(y.ndim == 4 and not is_channels_last(y) for y in outputs)


def sizes_kept(results):
    """Returns the bytes of each array that the graph behind variables keeps for the backward pass, but parameters."""
    arrays, seen = {}, set()
    nodes = [y.creator_node for y in results if y.creator_node is not None]
    while nodes:
        node = nodes.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        retained = [x.data for x in node.inputs if not isinstance(x.get_variable_or_none(), chainer.Parameter)]
        retained += node._retained_output_data or ()
        for value in vars(node).values():
            retained += value if isinstance(value, (tuple, list)) else [value]
        for array in retained:
            if isinstance(array, chainer.get_array_types()):
                root = _root(array)
                arrays[id(root)] = root
        nodes += [x.creator_node for x in node.inputs if x.creator_node is not None]
    return [array.nbytes for array in arrays.values()]


def _root(array):
    while isinstance(getattr(array, "base", None), (np.ndarray, *chainer.get_array_types())):
        array = array.base
    return array
