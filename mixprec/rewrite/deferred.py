"""Batch normalizations that wait for an addition and a ReLU, to be computed together with them.

A batch normalization in a converted model returns a variable that does not compute itself before its value is needed:
it is *deferred*. Stochastic depth of it, adding to it, and a ReLU of it, is deferred as well; any other function, or an
access to its array or to its place in the graph, makes it compute all that it stands for, as one node. From then on it
is a plain variable.

The input of a fused ReLU has no array and no gradient. If it is needed after all, it is computed a second time and
takes its place in the graph, so that results and gradients are right. Its batch normalization is not deferred any more,
and neither is one that had to be computed alone; the report says which functions took its result.
"""

import copy
import weakref

import chainer

from mixprec.announcements import announce
from mixprec.functions import layer_gradients
from mixprec.functions.addition import Addition
from mixprec.functions.relu import ReLU
from mixprec.functions.stochastic_depth import StochasticDepth
from mixprec.rewrite.memory_order import run_in_order_of
from mixprec.rewrite.places import ADD_RELU, RELU, Unfused, of_sum

_ASKED = "its value is asked for"
_OWN = "normalization", "source", "add", "factors", "takers"  # attributes that a plain variable has not


class Normalization:
    """A batch normalization that has not been computed.

    Args:
        x: variable, the input.
        rest: other inputs of the node, before what is added.
        build: function that makes the node of ``(relu, add, count, factors)``: whether a ReLU follows, whether there is
            an addition before it, whether running statistics move, and factors of images before the addition or
            ``None``.
        statistics: the running statistics that it reads or moves, arrays.
        moves: whether it moves them, and so normalizes by the statistics of the batch.
        site: :class:`~mixprec.rewrite.places.NormalizationPlace`, or ``None``.
        scope: :class:`~mixprec.rewrite.scope.Scope`.

    Attributes:
        counted: whether it has been computed.
        fused: ``None``, or the node that computed it together with a ReLU, and weak references to the
            :class:`Deferred` whose ReLU that was, to the :class:`Deferred` to which there was added in it, and to the
            node of the result.
    """

    def __init__(self, x, rest, build, statistics, moves, site, scope):
        self.x = x
        self.rest = rest
        self.statistics = statistics
        self.moves = moves
        self.site = site
        self.scope = scope
        self.link = "" if scope.link is None else scope.link.name
        self.backprop = chainer.config.enable_backprop
        self.fused = None
        self.counted = False
        self._build = build

    def compute(self, add=None, relu=False, factors=None):
        """Applies the node, and returns its output. Running statistics move when it is done first."""
        node = self._build(relu, add is not None, not self.counted, factors)
        trace = self.scope.trace
        if trace is not None and not self.counted:
            fused = ADD_RELU if add is not None else RELU if relu else ""
            trace.note_normalization(self.link, fused)
        self.counted = True
        self.scope.pending.pop(id(self), None)
        inputs = (self.x, *self.rest)
        return node.apply(inputs if add is None else (*inputs, add))[0]


class Deferred(chainer.Variable):
    """What a :class:`Normalization` will be, with an addition and a ReLU or without; see the text above.

    Args:
        scope: :class:`~mixprec.rewrite.scope.Scope`, which computes the variable at the end of its call if it is kept.
        normalization: :class:`Normalization`.
        source: ``None``, or the :class:`Deferred` to which there is added, or of which the ReLU is taken, or whose
            images are multiplied by factors.
        add: ``None``, or the variable that is added to ``source``.
        factors: ``None``, or those of stochastic depth (N,).

    Attributes:
        takers: names of the functions that have taken it.
    """

    def __init__(self, scope, normalization, source=None, add=None, factors=None):
        # Not those of Chainer's constructor, which wants an array: _data and _node come when they are needed.
        inputs = (normalization.x, *normalization.rest) if add is None else (source, add)
        self.__dict__.update(
            normalization=normalization,
            source=source,
            add=add,
            factors=factors,
            takers=[],
            _device=None,
            _grad_valid=True,
            _grad_var=None,
            _loss_scale=None,
            _requires_grad=any(getattr(each, "requires_grad", False) for each in inputs),
        )
        scope.deferred.append(weakref.ref(self))

    @property
    def is_relu(self):
        """Whether it is a ReLU, the last of what one node computes."""
        return self.source is not None and self.add is None and self.factors is None

    @property
    def shape(self):
        """That of the input of the batch normalization, as are the other attributes of this kind."""
        return self.normalization.x.shape

    @property
    def dtype(self):
        """See :attr:`shape`."""
        return self.normalization.x.dtype

    @property
    def ndim(self):
        """See :attr:`shape`."""
        return self.normalization.x.ndim

    @property
    def size(self):
        """See :attr:`shape`."""
        return self.normalization.x.size

    @property
    def device(self):
        """See :attr:`shape`."""
        return self.normalization.x.device

    @property
    def xp(self):
        """See :attr:`shape`."""
        return self.normalization.x.xp

    def __len__(self):
        return len(self.normalization.x)

    @property
    def _has_chainerx_array(self):
        # chainer.grad asks this of what it differentiates by, before it looks at the graph.
        compute(self, _ASKED)
        return False

    def __getattr__(self, name):
        if name in ("_data", "_node"):
            compute(self, _ASKED)
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name, value):
        compute(self, "an attribute of it is set")
        setattr(self, name, value)

    def __copy__(self):
        compute(self, "it is copied")
        return copy.copy(self)


def taken(x, name):
    """Computes a deferred variable for a function of this name, which cannot wait with it."""
    x.takers.append(name)
    compute(x)


def compute(deferred, why=None):
    """Makes a deferred variable a plain one.

    Args:
        deferred: :class:`Deferred`.
        why: the reason, if its batch normalization has to be computed alone; ``None`` for the functions that take it.
    """
    backprop = deferred.normalization.backprop
    if chainer.config.enable_backprop == backprop:
        _compute(deferred, why)
    else:
        with chainer.using_config("enable_backprop", backprop):
            _compute(deferred, why)


def _compute(deferred, why, total=None):
    normalization, source, add, factors = deferred.normalization, deferred.source, deferred.add, deferred.factors
    fused = None
    if deferred.is_relu:
        result = _relu(source)
    else:
        if normalization.fused is not None:
            node, *references = normalization.fused
            fused, normalization.fused = (node, *(reference() for reference in references)), None
        if source is None:
            result = _alone(deferred, why, total)
        else:
            if type(source) is Deferred:
                _compute(source, *((why, total) if add is None else (of_sum(why), deferred)))
            result = _scaled(source, factors) if add is None else _sum(normalization, source, _plain(add))
    # It becomes the variable that the user expects.
    object.__setattr__(deferred, "__class__", chainer.Variable)
    for name in _OWN:
        del deferred.__dict__[name]
    deferred.__dict__.update(result.__dict__)
    deferred._node._variable = weakref.ref(deferred)
    if fused is not None:
        _split(deferred, normalization, *fused)


def _plain(variable):
    if type(variable) is Deferred:
        compute(variable)
    return variable


def _alone(deferred, why, total):
    normalization = deferred.normalization
    scope = normalization.scope
    if normalization.counted and not scope.conversion.on_example:
        announce(
            "%s: a batch normalization is computed twice in one step, because its result is needed beside the ReLU "
            "with which it was fused; it will not be fused any more",
            normalization.link,
        )
    if why is not None:
        normalization.site.give_up(why)
    else:
        unfused = Unfused(normalization.site, deferred, total)
        scope.unfused |= {id(each): unfused for each in (deferred, total) if each is not None}
    return normalization.compute()


def _sum(normalization, x, other):
    node = Addition()
    node.channels_first = x.ndim == 4
    return node.apply((x, normalization.scope.images(other) if x.ndim == 4 else other))[0]


def _scaled(x, factors):
    return StochasticDepth(factors=factors).apply((x,))[0]


def _relu(source):
    """Returns the ReLU of a variable that was deferred when it was taken."""
    if type(source) is not Deferred:
        return _relu_alone(source)
    normalization, add, operand = source.normalization, source.add, source.source
    if add is not None:
        add = _plain(add)
        if add.ndim == 4:
            add = normalization.scope.images(add)
    if normalization.counted:
        return _relu_alone(_plain(source))
    normalization.site.fused = RELU if add is None else ADD_RELU
    result = normalization.compute(add=add, relu=True, factors=None if operand is None else operand.factors)
    if result.creator_node is not None:
        held = source, source if operand is None else operand, result.node
        normalization.fused = result.creator_node, *map(weakref.ref, held)
    return result


def _relu_alone(x):
    return run_in_order_of(x, ReLU(), x)


def _split(variable, normalization, node, source, operand, y):
    """Puts what was computed too late into the graph, as if it had been computed on the way to the ReLU.

    Gradients then go through it, and end at it if it is unchained.

    Args:
        variable: batch normalization alone, with factors, or a sum with it.
        normalization: its :class:`Normalization`.
        node: what has been computed, the ReLU included.
        source: what the ReLU was taken of: ``variable``, a sum with it, or ``None`` for a sum that is not held, and so
            is not computed again.
        operand: what was added to in that sum: ``variable``, or ``None`` for it with factors, if that is not held.
        y: node of the ReLU's result; ``None`` if it is not held.
    """
    if node.inputs is None:  # by `unchain_backward` of what follows, which would have come by here
        for each in (variable, source):
            if each is not None:
                each.unchain()
    if y is None or y.creator_node is not node:
        return
    if source is None:
        operand = _scaled(variable, node.factors) if operand is None else _plain(operand)
        last = _SumAndReLU(node, operand.node)
    else:
        result = _relu_alone(_plain(source))
        last = result.creator_node
        if y.data is None:
            y.data = result.array
    _rank_after(node.rank, last)
    last.outputs = (weakref.ref(y),)
    y.creator_node = last


class _SumAndReLU(chainer.FunctionNode):
    """The addition and the ReLU that a node has computed behind its batch normalization, going backward only.

    What was added may have no array any more, so they cannot be computed again.

    Args:
        node: what has computed them.
        operand: variable node of what was added to.
    """

    def __init__(self, node, operand):
        self._node = node.alone()  # other processes have no such function
        self.inputs = operand, node.inputs[3]
        self.rank = max(each.rank for each in self.inputs)
        self.lazy_grad_sum = node.lazy_grad_sum

    def backward(self, indexes, grad_outputs):
        with layer_gradients.observing(None):  # the batch normalization itself goes backward elsewhere
            gradient = self._node.backward((3,), grad_outputs)[3]
        return (gradient,) * len(indexes)


def _rank_after(rank, node):
    """Moves the ranks of new nodes between those of an old one and of its consumers, which Chainer goes back by."""
    span = node.rank - rank + 1
    nodes = [node]
    while nodes:
        each = nodes.pop()
        if each.rank > rank:
            nodes += [x.creator_node for x in each.inputs if x.creator_node is not None]
            each.rank = rank + (each.rank - rank) / span
