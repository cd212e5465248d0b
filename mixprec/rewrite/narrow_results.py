"""Results of a model that need more than 16 bits, such as 1e4 +- 5 in steps of 8 or 64: found on ``convert``'s example.

The dtype of a result does not show this: the last layer rounds it, and it leaves the model as float32. A
:class:`~mixprec.rewrite.trace.Trace` of a call on the example asks here which results were rounded, by how much, and
where.
"""

import collections
import copy
import math
import weakref

import chainer
import numpy as np

from mixprec.backends import primitives_of
from mixprec.backends.transfers import to_host
from mixprec.base.dtypes import BFLOAT16, FLOAT32, is_half
from mixprec.functions.node import dense
from mixprec.rewrite import dtype_table
from mixprec.rewrite.deferred import Deferred

# A spread of so many steps and more is represented well enough: rounding adds a tenth of it.
_FEW_STEPS = 3
# Relative: a spread that the same rows may have, as sums in float32 come out differently.
_NOISE = 2.0**-20
# Scores of several classes are not harmed by smaller steps, whatever their spread.
_HARMLESS_STEP = 2.0**-4
_ENOUGH_VALUES = 8  # of a column, for a small spread to be no accident
# Functions that compare the model's result with a target.
_COMPARING = {"AbsoluteError", "HuberLoss", "MeanAbsoluteError", "MeanSquaredError", "SquaredError", "gaussian_nll"}
_WIDENING = {"Cast", "ToNCHW"}  # what may follow on the way out of the model
_BOUNDED = {"Sigmoid", "HardSigmoid", "Softmax", "Tanh"}  # scores, and pixels
_CHANGING = {"Dropout", "Zoneout", "RReLU"}  # each time they are computed
_REPEATABLE = (dtype_table.COMPUTE | dtype_table.ELEMENTWISE | dtype_table.MOVING) - _CHANGING
_REMEMBERED = 16  # functions of a call, the last ones: a result is made by one of them


class _Made:
    """A function that has been computed: enough to compute it again in float32."""

    def __init__(self, scope, node, cls, inputs, outputs):
        self.outputs = [weakref.ref(y.node) for y in outputs]
        self.inputs = [
            (weakref.ref(x.node) if isinstance(x, chainer.Variable) else None, chainer.as_array(x)) for x in inputs
        ]
        self.name = cls.__name__
        self.link = scope.link
        self._node = copy.copy(node) if cls.__name__ in _REPEATABLE and isinstance(node, cls) else None

    def output(self, node):
        """Returns the index of an output by its variable node, or ``None``."""
        return next((index for index, each in enumerate(self.outputs) if each() is node), None)

    def again(self, arrays):
        """Returns outputs of arrays, or ``None`` if that cannot be computed."""
        if self._node is None:
            return None
        try:
            with chainer.using_device(chainer.backend.get_device_from_array(arrays[0])), np.errstate(all="ignore"):
                return copy.copy(self._node).forward(tuple(arrays))
        except Exception:  # of a function that needs more than its inputs: the rounded result must do
            return None


class NarrowResults:
    """The findings of a call on the example.

    Attributes:
        lines: ``{where: text}``, one for each result.
    """

    def __init__(self):
        self.lines = {}
        self._made = collections.deque(maxlen=_REMEMBERED)
        self._overflowed = None  # the first function that has made inf or NaN of finite inputs, where it was rounded

    def note(self, scope, node, cls, inputs, outputs):
        """Notes a function that the model has applied, see :meth:`~mixprec.rewrite.trace.Trace.note`."""
        if any(type(each) is Deferred for each in (*inputs, *outputs)):  # to ask for its node would compute it
            return
        if cls.__name__ in _COMPARING or _meets_float32(node, cls, inputs):
            self.look(inputs)
        made = _Made(scope, node, cls, inputs, outputs)
        self._made.append(made)
        if self._overflowed is None and is_half(outputs[0].dtype) and not _is_finite(outputs[0].array):
            self._overflowed = made if all(_is_finite(each) for _, each in made.inputs) else None

    def look(self, values):
        """Looks at the variables among results that the model has rounded to 16 bits."""
        for value in values:
            if not isinstance(value, chainer.Variable) or type(value) is Deferred:
                continue
            if (y := _rounded(value)) is not None:
                self._look(y)
            if self._overflowed is not None and not _is_finite(value.array):
                self._note(self._overflowed, "inf or NaN on the example, and so is what the model returns")

    def _look(self, y):
        maker, node = self._maker(y.node), y.node
        while maker is not None and maker.name in dtype_table.MOVING and maker.inputs[0][0] is not None:
            node = maker.inputs[0][0]()
            maker = self._maker(node)
        if maker is not None and maker.name in _BOUNDED:
            return
        wide = _on_host(self._in_float32(y.node, y.array))
        what = _lost(wide, y.dtype, bool(np.isinf(_on_host(_float32(y.array))).any()))
        if what is not None:
            self._note(maker, what)

    def _note(self, maker, what):
        where = _where(maker)
        self.lines.setdefault(where, f"the result of {where} is {what}{_cure(maker)}")

    def _maker(self, node):
        return next((made for made in reversed(self._made) if node and made.output(node) is not None), None)

    def _in_float32(self, node, array):
        """Returns the float32 value that a variable would have if the functions that made it had not rounded."""
        made = self._maker(node)
        if made is None:
            return _float32(array)
        if made.name in dtype_table.COMPUTE:
            arrays = [_float32(each) for _, each in made.inputs]
        else:
            arrays = [self._in_float32(reference and reference(), each) for reference, each in made.inputs]
        outputs = made.again(arrays)
        return _float32(array) if outputs is None else outputs[made.output(node)]


def _meets_float32(node, cls, inputs):
    """Whether a difference to what comes from outside of the model, or a cast to float32."""
    if cls.__name__ == "Sub":
        return any(isinstance(x, chainer.get_array_types()) or x.creator_node is None for x in inputs)
    return cls.__name__ == "Cast" and node.type == FLOAT32


def _rounded(y):
    """Returns a variable in 16 bits that the model has computed, before it was widened if it was, or ``None``."""
    if y.creator_node is None:
        return None
    if y.dtype == FLOAT32 and type(y.creator_node).__name__ in _WIDENING:
        y = y.creator_node.inputs[0].get_variable_or_none()
    return y if y is not None and y.creator_node is not None and is_half(y.dtype) else None


def _float32(array):
    half = is_half(array.dtype)
    return primitives_of(array).cast(dense(array), FLOAT32) if half else array


def _is_finite(array):
    if array.dtype.kind != "f" and not is_half(array.dtype):  # bfloat16 is of kind V
        return True
    return to_host(chainer.backend.get_array_module(array).isfinite(_float32(array)).all())


def _on_host(array):
    return chainer.get_device("@numpy").send(array).astype(np.float64)


def _lost(y, dtype, is_inf):
    """Returns what is wrong with a result, or ``None``.

    Args:
        y: the result before rounding, a host array (N, ...).
        dtype: dtype that it is rounded to.
        is_inf: whether some element became inf.
    """
    if not np.isfinite(y).all():
        return None
    if is_inf:
        return f"inf in {dtype.name}, and {np.abs(y).max():.3g} in float32"
    columns = y.reshape(1, -1) if y.ndim < 2 else np.moveaxis(y, 1, 0).reshape(y.shape[1], -1)
    harmless = 0.0 if len(columns) == 1 else _HARMLESS_STEP
    found = [(part.mean(), part.std()) for part in (y, *columns)]
    of_all, *lost = [_is_lost(*each, dtype, harmless) for each in found]
    if of_all or (any(lost) and (columns.shape[1] >= _ENOUGH_VALUES or 2 * sum(lost) > len(lost))):
        mean, spread = found[[of_all, *lost].index(True)]
        return f"{mean:.5g} +- {spread:.2g}, in steps of {_step(mean, dtype):g} in {dtype.name}"
    return None


def _is_lost(mean, spread, dtype, harmless):
    step = _step(mean, dtype)
    return _NOISE * abs(mean) < spread < _FEW_STEPS * step and step > harmless


def _step(value, dtype):
    """Returns the distance of numbers of a 16-bit dtype next to a value."""
    bits, smallest = (8, -133) if dtype == BFLOAT16 else (11, -24)
    return 2.0 ** max(math.frexp(value)[1] - bits if value else smallest, smallest)


def _where(maker):
    name = "/" if maker is None or maker.link is None else maker.link.name
    return name if maker is None or _is_layer(maker.link) else f"{maker.name} in {name}"


def _cure(maker):
    if maker is None or maker.link is None:
        return ""
    if _is_layer(maker.link) or maker.name in dtype_table.COMPUTE:
        return f': keep_float32=("{maker.link.name}",)'
    return ': F.cast(x, "float32") of its inputs'


def _is_layer(state):
    return state is not None and not issubclass(state.kind, (chainer.Chain, chainer.ChainList))
