"""Repeats the backward pass of a loss over the same graph, each time as if it were the first.

Chainer keeps a graph as long as its loss, and a second ``backward`` adds to the gradients of the first. Some functions
also modify, in their backward, arrays that their forward has kept: ``F.connectionist_temporal_classification``, and
functions of users. :func:`repeatable` is the context for the passes, and :func:`why_not` says when they cannot be
repeated. :mod:`~mixprec.precision.scale_search` needs both.
"""

import collections
import contextlib
import copy
import threading

import chainer

from mixprec.base.scoped import scoped
from mixprec.compat.registry import patch_around
from mixprec.precision.pass_scales import reached

WHEN = "update, with a search"


class _Now(threading.local):
    """State of this thread.

    Attributes:
        gradients: :class:`_Gradients` inside of :func:`repeatable`, or ``None``.
        refused: name of the code that allows one pass only, for a message, or ``None``.
    """

    gradients = None
    refused = None


_now = _Now()


@contextlib.contextmanager
def repeatable():
    """A context for several backward passes over one graph; yields an object whose ``restore()`` undoes a pass."""
    with scoped(_now, gradients=_Gradients()), _gradients_kept.applied(), _functions_kept.applied():
        yield _now.gradients


def one_pass_only(name):
    """A context in which graphs are made that support only one backward pass.

    Args:
        name: name of the code that makes them, for a message.
    """
    return scoped(_now, refused=name)


def why_not(loss, *, alone):
    """Returns why a second backward pass over the graph of a loss is impossible, as text; ``None`` if it is possible.

    A function with an attribute ``one_pass_only``, the name of the code that made it, supports one backward pass.

    Args:
        loss: variable.
        alone: whether other processes would not take part in a second pass.
    """
    if _now.refused is not None:
        return _now.refused
    functions, _ = reached([loss.node])
    for function in functions:
        name = getattr(function, "one_pass_only", None)
        if name is not None:
            return name
        if _is_of(function, "chainer.graph_optimizations"):
            return "chainer.static_graph"
        if _is_of(function, "chainermn.functions.point_to_point_communication"):
            return "the model lies on several processes"
        if alone and _sums_over_processes(function):
            return "a function sums over processes, and the optimizer has no communicator"
    return None


class _Gradients:
    """Saves the gradients of variables without a creator, as they were before the first pass that reaches them."""

    def __init__(self):
        self._before = {}  # variable node -> the attributes of its variable

    def keep(self, nodes):
        for node in reached(nodes)[1]:
            variable = node.get_variable_or_none()
            if variable is not None and node not in self._before:
                self._before[node] = variable._grad, variable._grad_var, variable._loss_scale

    def restore(self):
        """Undoes the last pass, so that the next one starts as the first did."""
        for node, before in self._before.items():
            variable = node.get_variable_or_none()
            if variable is not None:
                variable._grad, variable._grad_var, variable._loss_scale = before


@patch_around("chainer._backprop:_backprop_to_all", when=WHEN)
def _gradients_kept(backprop_to_all, outputs, retain_grad, loss_scale):
    """Without it gradients of the last pass stay in other models, in inputs, and inside of F.forget."""
    if _now.gradients is not None:
        _now.gradients.keep([node for node, _ in outputs])
    backprop_to_all(outputs, retain_grad, loss_scale)


@patch_around("chainer._backprop_utils:backprop_step", when=WHEN)
def _functions_kept(backprop_step, function, *args):
    """Without it a second pass is wrong, or fails, where a function's backward changes what its forward has kept."""
    with _as_it_was(function) if _now.gradients is not None else contextlib.nullcontext():
        backprop_step(function, *args)


@contextlib.contextmanager
def _as_it_was(function):
    """A context in which a function has copies of its array attributes; afterwards they are restored.

    A user's function also gets copies of its inputs and outputs. Functions of Chainer and mixprec do not write to them.
    """
    adapted = getattr(function, "_function", function)  # an old-style chainer.Function
    states = [vars(each) for each in {function, adapted} if isinstance(each, chainer.FunctionNode | chainer.Function)]
    before = [dict(state) for state in states]
    for state in states:
        state |= {name: _copied(value) for name, value in state.items()}
    ours = any(_is_of(adapted, package) for package in ("chainer", "chainermn", "mixprec"))
    held = [] if ours else [(node, node.data, node.get_variable_or_none()) for node in _retained(function)]
    copies = {id(array): array.copy(order="K") for _, array, _ in held}
    for node, array, variable in held:
        _put(copies[id(array)], node, variable)
    try:
        yield
    finally:
        for node, array, variable in held:
            _put(array, node, variable)
        for state, values in zip(states, before, strict=True):
            state.clear()
            state |= values


def _retained(function):
    """Returns the nodes of a function's inputs and outputs that have an array."""
    nodes = [*function.inputs, *(output() for output in function.outputs)]
    return [node for node in nodes if node is not None and node.data is not None]


def _put(array, node, variable):
    node.data = array
    if variable is not None:
        variable._data[0] = array


def _copied(value):
    """Copies an array, and lists, tuples and dicts that hold arrays; returns anything else, such as a log, as it is."""
    if isinstance(value, chainer.get_array_types()):
        return value.copy(order="K")
    if type(value) is not tuple and not isinstance(value, list | dict | collections.deque):
        return value
    held = dict(value) if isinstance(value, dict) else dict(enumerate(value))
    copies = {key: _copied(each) for key, each in held.items()}
    if all(copies[key] is each for key, each in held.items()):
        return value
    if type(value) is tuple:
        return tuple(copies.values())
    value = copy.copy(value)
    for key, each in copies.items():
        value[key] = each
    return value


def _sums_over_processes(function):
    """Whether the backward pass of a function waits for other processes: mixprec's or ChainerMN's normalization too."""
    if getattr(function, "_ranks", None) is not None:
        return True
    return _is_of(function, "chainermn") or _is_of(getattr(function, "_impl_selector", None), "chainermn")


def _is_of(value, module):
    return f"{type(value).__module__}.".startswith(f"{module}.")
