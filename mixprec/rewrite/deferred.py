"""Batch normalizations that wait for the functions after them, to be computed together with them.

A batch normalization in a converted model returns a variable that is not computed before its value is needed: it is
*deferred*. The result of a function of it is deferred, too, as long as both begin a chain of
:data:`~mixprec.rewrite.fusions.FUSIONS`. Any other function, or an access to its array or to its node in the graph,
makes it compute the whole chain as one node. From then on it is a plain variable. With a second batch normalization,
or a max pooling, :mod:`mixprec.rewrite.joined` computes it.

The input of a fused ReLU has no array and no gradient. If it is needed after all, it is computed a second time and
inserted into the graph, so that results and gradients are right. Its batch normalization is not deferred any more,
and neither is one that had to be computed alone; the report says which functions took its result.
"""

import copy
import functools
import operator
import weakref

import chainer

from mixprec.base.announcements import announce
from mixprec.functions.batch_normalization import AdditionAndReLU
from mixprec.functions.relu import Addition, ReLU
from mixprec.functions.stochastic_depth import StochasticDepth
from mixprec.rewrite.fusions import FUSIONS, Unfused, of_sum
from mixprec.rewrite.joined import dual, put_behind, why_not_dual
from mixprec.rewrite.memory_order import run_in_order_of

_ASKED = "its value is asked for"
_COMPLETE = {fusion.chain: fusion for fusion in FUSIONS if not fusion.of_two}
_OF_INPUT = "shape", "dtype", "ndim", "size", "device", "xp"  # attributes that it shares with the input
_OWN = "normalization", "source", "chain", "operand", "takers"  # attributes that a plain variable does not have


class Deferred(chainer.Variable):
    """The future result of a batch normalization, with or without functions after it; see the text above.

    Args:
        scope: :class:`~mixprec.rewrite.scope.Scope`, which computes the variable at the end of its call if it is kept.
        normalization: the :class:`~mixprec.rewrite.fusions.Normalization`.
        source: ``None``, or the :class:`Deferred` that a function is applied to.
        function: name of its class.
        operand: what it takes beside ``source``: the variable that is added, the factors of stochastic depth (N,).

    Attributes:
        chain: names of the functions since the batch normalization, a tuple.
        takers: names of the functions that have taken it.
    """

    def __init__(self, scope, normalization, source=None, function=None, operand=None):
        # Chainer's constructor is not called, as it needs an array: _data and _node are set when they are needed.
        inputs = (normalization.x, *normalization.rest) if source is None else (source, operand)
        self.__dict__.update(
            normalization=normalization,
            source=source,
            chain=() if source is None else (*source.chain, function),
            operand=operand,
            takers=[],
            _device=None,
            _grad_valid=True,
            _grad_var=None,
            _loss_scale=None,
            _requires_grad=any(getattr(each, "requires_grad", False) for each in inputs),
        )
        scope.deferred.append(weakref.ref(self))

    @property
    def fusion(self):
        """The :class:`~mixprec.rewrite.fusions.Fusion` whose last function this is the result of, or ``None``."""
        return _COMPLETE.get(self.chain)

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

    def is_as_before(self):
        """Whether a function that is applied to it now can be computed together with it."""
        return chainer.config.enable_backprop == self.normalization.backprop and not chainer.get_function_hooks()

    def __copy__(self):
        compute(self, "it is copied")
        return copy.copy(self)


for _name in _OF_INPUT:
    setattr(Deferred, _name, property(operator.attrgetter(f"normalization.x.{_name}")))


def can_follow(x, function):
    """Whether a function, by the name of its class, can be computed together with a variable that is deferred."""
    if type(x) is not Deferred or not x.is_as_before():
        return False
    chain, normalization = (*x.chain, function), x.normalization
    begun = _begun(chain, normalization.moves, normalization.joint)
    if not begun:
        return False
    # It waits for more only if it has before.
    return (chain in _COMPLETE and x.chain not in _COMPLETE) or normalization.site.fused in (None, *begun)


@functools.cache
def _begun(chain, moves, joint):
    """Returns the names of the fusions that begin with a chain, for a batch normalization of this kind."""
    fits = [fusion for fusion in FUSIONS if (moves or not fusion.by_batch) and not (joint and fusion.by_process)]
    return tuple([fusion.name for fusion in fits if fusion.chain[: len(chain)] == chain])


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
    with chainer.using_config("enable_backprop", deferred.normalization.backprop):
        _compute(deferred, why)


def _compute(deferred, why, total=None):
    normalization, source, chain, operand = deferred.normalization, deferred.source, deferred.chain, deferred.operand
    joined, fused = normalization.joined, None
    if joined is not None and not joined.is_by_itself(deferred):
        joined.separate(normalization, _compute, _become)
        if type(deferred) is not Deferred:
            return
        joined = None
    if deferred.fusion is not None:
        result = _fused(source, deferred.fusion)
    else:
        if normalization.fused is not None:
            node, *references = normalization.fused
            between = [reference() for reference in references]
            if type(source) is not Deferred or any(deferred is each for each in between):  # otherwise it lies beyond
                fused, normalization.fused = (node, *between), None
        if source is None:
            result = _alone(deferred, why, total)
        else:
            if type(source) is Deferred:
                _compute(source, *((of_sum(why), deferred) if chain[-1] == "Add" else (why, total)))
            result = _scaled(source, operand) if chain[-1] != "Add" else _sum(normalization, source, _plain(operand))
    _become(deferred, result)
    if joined is not None:
        normalization.joined = None
        joined.put(deferred)
    if fused is not None:
        _split(deferred, normalization, *fused)


def _become(deferred, result):
    """Turns a deferred variable into the plain one that the user expects."""
    object.__setattr__(deferred, "__class__", chainer.Variable)
    for name in _OWN:
        del deferred.__dict__[name]
    deferred.__dict__.update(result.__dict__)
    deferred._node._variable = weakref.ref(deferred)


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


def _fused(source, fusion):
    """Returns the result of a fusion, whose last function was applied to a variable that was deferred then."""
    if type(source) is not Deferred:
        return _relu_alone(source)
    normalization, operands, first = source.normalization, {}, source
    while type(first.source) is Deferred:
        operands[first.chain[-1]] = first.operand
        first = first.source
    add = operands.get("Add")
    if type(add) is Deferred and add.source is None:
        why = why_not_dual(source)
        if why is None:
            return dual(source)
        compute(add, why or None)
    if add is not None:
        add = _plain(add)
        if add.ndim == 4:
            add = normalization.scope.images(add)
    if normalization.counted:
        return _relu_alone(_plain(source))
    normalization.site.fused = fusion.name
    result = normalization.compute(fusion.name, add, operands.get("StochasticDepth"))
    if result.creator_node is not None:
        held = source, source if add is None else source.source, result.node
        normalization.fused = result.creator_node, *map(weakref.ref, held)
    return result


def _relu_alone(x):
    return run_in_order_of(x, ReLU(), x)


def _split(variable, normalization, node, source, operand, y):
    """Inserts a variable that was computed late into the graph, as if it had been computed on the way to the ReLU.

    Gradients then go through it, and end at it if it is unchained.

    Args:
        variable: batch normalization alone, with factors, or a sum with it.
        normalization: its :class:`~mixprec.rewrite.fusions.Normalization`.
        node: node that computed everything, including the ReLU.
        source: input of the ReLU: ``variable``, a sum with it, or ``None`` for a sum that is not held, and so is not
            computed again.
        operand: first operand of that sum: ``variable``, or ``None`` if it has factors and its product is not held.
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
        last = AdditionAndReLU(node, operand.node)
    else:
        result = _relu_alone(_plain(source))
        last = result.creator_node
        if y.data is None:
            y.data = result.array
    put_behind(node.rank, last, y)
