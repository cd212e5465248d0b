"""Gradients that meet where a network branches: added flat, or passed on as two terms to a function that adds them.

Chainer's backward passes keep the gradients of a variable in a table until the function that made it is next
(``chainer._backprop_utils``), and add them up by ``chainer.functions.add``. On a GPU CuPy adds, and its results are
C-contiguous: of gradients (N, C, H, W) in the memory order of (N, H, W, C) it would change the layout, element by
element. :func:`install` makes the table add them in their own order.

A node with :attr:`~mixprec.functions.node.Node.takes_two_terms` gets a :class:`Sum` that is not computed yet. Terms of
:mod:`mixprec.functions.pending` are not computed before they are complete, or leave the table.
"""

import math
import threading
import weakref

import chainer
from chainer import _backprop_utils

from mixprec.backends import primitives_of
from mixprec.backends.memory import axes, is_dense, same_order, turned_back
from mixprec.base.dtypes import STORAGE_DTYPES
from mixprec.compat.registry import Patch


class _Now(threading.local):
    """State of this thread.

    Attributes:
        uses: how often functions of the current backward pass use a variable, by the id of its node; empty in a pass of
            ``chainer.grad``.
    """

    def __init__(self):
        self.uses = {}


now = _Now()


# Attributes of a variable without a gradient.
_OF_VARIABLE = dict.fromkeys(("_device", "_layout", "_grad", "_grad_var", "_loss_scale")) | {"_grad_valid": True}
_OF_VARIABLE |= {"_has_chainerx_array": False, "_requires_grad": False}


class Lazy(chainer.Variable):
    """A gradient that is computed when it is read, and is a plain variable from then on.

    Args:
        state: further attributes.
    """

    def __init__(self, **state):
        # Chainer's constructor is not called, as it needs an array: _data and _node are made when they are read.
        self.__dict__.update(_OF_VARIABLE, **state)

    def compute(self):
        """Returns the gradient as a plain variable."""
        raise NotImplementedError

    def plus(self, other):
        """Returns the sum with another gradient, a variable; this object is given up."""
        return added(computed(self), other)

    @property
    def array(self):
        """The gradient."""
        return self._data[0]

    data = array

    def __getattr__(self, name):
        if name not in ("_data", "_node"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        result = self.compute()
        object.__setattr__(self, "__class__", chainer.Variable)
        self.__dict__.clear()
        self.__dict__.update(result.__dict__)
        self._node._variable = weakref.ref(self)
        return self.__dict__[name]


class Sum(Lazy):
    """The sum of two gradients.

    Before the node that is to take the terms is called, Chainer's backward pass asks for the raw array, only to find
    out on which device it is: until then it gets the array of the first term.

    Args:
        terms: the two variables, alike.
    """

    def __init__(self, *terms):
        super().__init__(_terms=terms, _taken=False)

    def compute(self):
        """See :meth:`Lazy.compute`."""
        return added(*self._terms)

    def take(self):
        """Returns the arrays of the two terms, to the node that adds them."""
        self._taken = True
        return [term.array for term in self._terms]

    @property
    def raw_array(self):
        """See :class:`Sum`."""
        return self._data[0] if self._taken else self._terms[0].array


def install():
    """Makes all backward passes of Chainer add gradients in this way from now on.

    Nodes call this when they are applied: a process without such nodes adds as Chainer does.
    """
    TABLE.apply()
    REDUCE.apply()


class _Terms(list):
    """The gradients of a variable that will become a :class:`Sum`: at most two are kept."""

    def pop(self):
        """Removes all and returns their sum, for a function that adds to it: the first two terms of three are added."""
        result = added(*self) if len(self) == 2 else _reduce(list(self))
        self.clear()
        return result


class _Waiting(list):
    """The gradients of a variable, some of which are not computed yet: several with ``lazy_grad_sum``."""

    def pop(self):
        """Removes the last one and returns it, for a function that adds to it, or starts another pass with it."""
        gradient = super().pop()
        gradient.in_table = False
        return gradient


class _GradTable(_backprop_utils.GradTable):
    """Chainer's table of gradients, which adds them in their own order, or gives a :class:`Sum`."""

    # The table of chainer.grad does not load gradients of leaves; a Sum in it would reach the user.

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._outputs, self._uses = [], {}

    def accumulate(self, node, grad):
        self._outputs.append(node)  # only outputs of the pass come here, and not for chainer.grad
        if _is_waiting(grad):
            grad.in_table = True
        self._list_of(node).append(grad)

    def get_as_list(self, node):
        if self._outputs:
            self._uses = _uses(self._outputs)
            self._outputs.clear()
        now.uses = self._uses  # Chainer calls this for the inputs of each function before that goes backward
        return self._list_of(node)

    def _list_of(self, node):
        gradients = super().get_as_list(node)
        if type(gradients) is list:
            if self._load_if_new and _is_taken_as_two(node):
                gradients = self.grads[node] = _Terms(gradients)
            elif any(map(_is_waiting, gradients)):
                gradients = self.grads[node] = _Waiting(gradients)
        return gradients

    def pop(self, node):
        gradients = None if node is None else self.grads.get(node)
        if type(gradients) is not _Terms:
            gradient = super().pop(node)
            return computed(gradient) if _is_waiting(gradient) and not _is_edge(node) else gradient
        del self.grads[node]
        if len(gradients) == 2 and _is_taken_as_two(node):
            return Sum(*gradients)
        return _backprop_utils._reduce(list(gradients))


def uses_of(node):
    """Returns how many functions of the current backward pass use a variable, by its node; 1 if that is not known."""
    return now.uses.get(id(node), 1)


def _uses(outputs):
    """Returns how often functions that a backward pass reaches use a variable, by the id of its node."""
    functions = {node._creator_node for node in outputs} - {None}
    uses, todo = {}, list(functions)
    for function in todo:  # the list grows
        for x in function.inputs:
            uses[id(x)] = uses.get(id(x), 0) + 1
            creator = x._creator_node  # the property takes longer than all the rest
            if _is_edge(x) and uses_of(x) > 1:
                uses[id(x)] = math.inf  # a larger pass goes on with the gradient
            if creator is not None and x._requires_grad and creator not in functions:
                functions.add(creator)
                todo.append(creator)
    return uses


def _is_edge(node):
    return hasattr(node._creator_node, "stands_for")  # see layer_gradients.creator_of


def _is_waiting(gradient):
    return isinstance(gradient, Lazy) and type(gradient) is not Sum  # which a function may take as two terms


def computed(gradient):
    """Returns a gradient, which is a plain variable from now on."""
    if isinstance(gradient, Lazy):
        gradient._data  # noqa: B018  (from now on it is a plain variable)
    return gradient


def _is_taken_as_two(node):
    return getattr(node.creator_node, "takes_two_terms", False) and is_ours(node.creator_node)


def is_ours(node=None):
    """Whether gradients are only arrays, and no hook watches additions of Chainer or of a function node."""
    config = chainer.config
    is_watched = config.enable_backprop or config.debug or config.schedule_func or chainer.get_function_hooks()
    return not (is_watched or (node is not None and node._n_local_function_hooks))


def _reduce(gradients):
    """Adds up a list of gradients in place, from the first on, and returns the first; ``None`` if there is none."""
    if not gradients:
        return None
    while len(gradients) > (2 if type(gradients) is _Terms else 1):
        gradients[:2] = [added(*gradients[:2])]
    return gradients[0]


def added(one, other):
    """Returns the sum of two variables; Chainer computes it unless both are dense arrays in a storage dtype."""
    ours = is_ours()
    if ours and (isinstance(one, Lazy) or isinstance(other, Lazy)):
        return other.plus(one) if isinstance(other, Lazy) else one.plus(other)
    arrays = one.array, other.array  # which computes them, if need be
    array = _flat_sum(*arrays) if ours else None
    if array is None:
        return chainer.functions.add(one, other)
    return chainer.Variable._init_unchecked(array, requires_grad=False, is_chainerx_array=False)


def _flat_sum(a, b):
    if type(a) is not type(b) or a.shape != b.shape or a.dtype != b.dtype or a.dtype not in STORAGE_DTYPES:
        return None
    if not (a.size and is_dense(a) and is_dense(b)):
        return None
    primitives = primitives_of(a)
    if same_order(a, b):
        order = tuple(range(a.ndim)) if a.flags.c_contiguous and b.flags.c_contiguous else axes(a)
        return turned_back(primitives.add(a.transpose(order), b.transpose(order)), order)
    if a.ndim != 4:
        return None
    a, b = (_channels_last(primitives, each) for each in (a, b))
    return None if a is None or b is None else primitives.add(a, b).transpose(0, 3, 1, 2)


def _channels_last(primitives, array):
    """Returns an array (N, C, H, W) as (N, H, W, C), a view if its memory is so; ``None`` if it is in another order."""
    view = array.transpose(0, 2, 3, 1)
    if view.flags.c_contiguous:
        return view
    return primitives.to_nhwc(array, array.dtype) if array.flags.c_contiguous else None


_WHEN = "mixprec.functions"
TABLE = Patch(
    "chainer._backprop_utils:GradTable",
    lambda original: _GradTable,
    "Without it a sum of two gradients is computed before the function that could add them in the same pass.",
    _WHEN,
)
REDUCE = Patch(
    "chainer._backprop_utils:_reduce",
    lambda original: _reduce,
    "Without it CuPy adds gradients of images in NHWC memory element by element, and changes their layout.",
    _WHEN,
)
