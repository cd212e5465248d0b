"""Batch normalizations that are computed together with a second batch normalization or a max pooling.

:mod:`mixprec.rewrite.deferred` joins them where nothing else needs the intermediate results. If something does after
all, the node is split: the needed result is computed once more and inserted into the graph. The joined node keeps what
the rest needs for its backward pass. At this site they are not joined any more.
"""

import weakref

from mixprec.base.announcements import announce
from mixprec.functions.joined_batch_normalization import BatchNormalizationMaxPooling2D, DualBatchNormalization
from mixprec.rewrite.fusions import ADD_RELU, DUAL, POOLED, RELU


def pooled(relu, pooling):
    """Returns the max pooling of a deferred ReLU of a batch normalization, computed with both.

    Args:
        relu: :class:`~mixprec.rewrite.deferred.Deferred`.
        pooling: :class:`~mixprec.backends.geometry.Pooling`.
    """
    normalization = relu.normalization
    normalization.site.fused = POOLED
    y = normalization.apply(BatchNormalizationMaxPooling2D(normalization.node(relu=True), pooling), POOLED)
    if y.creator_node is not None:
        normalization.joined = _Pooled(relu, y)
    return y


def dual(total):
    """Returns the ReLU of a deferred sum of two batch normalizations, computed with both.

    Args:
        total: :class:`~mixprec.rewrite.deferred.Deferred`.
    """
    one, other = total.normalization, total.operand.normalization
    one.site.fused = other.site.fused = DUAL
    y = one.apply(DualBatchNormalization(one.node(relu=True, add=True), other.node()), DUAL, other=other)
    if y.creator_node is not None:
        one.other, one.joined = other, _Dual(total, y)
        other.joined = one.joined
    return y


def why_not_dual(total):
    """Returns why the ReLU of a deferred sum cannot be computed by :func:`dual`; ``None`` if it can.

    Args:
        total: :class:`~mixprec.rewrite.deferred.Deferred`, whose ``operand`` is also one and has no ``source``.

    Returns:
        the reason for the report; empty if it is the general reason for sums.
    """
    one, other = total.normalization, total.operand.normalization
    if "StochasticDepth" in total.chain:
        return "it is added to another batch normalization, which has stochastic depth"
    if one.joint or other.joint:
        return "it is added to another batch normalization, and statistics are over several processes"
    alike = one.moves and other.moves and one.backprop == other.backprop and one.scope is other.scope
    if not alike or one.counted or other.counted or one.site.fused not in (None, DUAL):
        return ""
    return None


class _Pooled:
    """The result of :func:`pooled`.

    Args:
        relu: as there.
        y: its result.
    """

    def __init__(self, relu, y):
        self._normalized, self._relu, self._y = map(weakref.ref, (relu.source, relu, y.node))
        self._node = y.creator_node

    def is_by_itself(self, deferred):
        """See :class:`_Dual`."""
        return False

    def separate(self, normalization, compute, become):
        """Computes the batch normalization with its ReLU, as if the pooling had not been known.

        Args:
            normalization: :class:`~mixprec.rewrite.fusions.Normalization`.
            compute: function that computes a :class:`~mixprec.rewrite.deferred.Deferred` for a reason.
            become: function that makes one a result.
        """
        if not normalization.scope.conversion.on_example:
            announce(
                "%s: a batch normalization is computed twice in one step, because its result is needed beside the max "
                "pooling with which it was fused; it will not be fused with that any more",
                normalization.link,
            )
        normalization.site.fused, normalization.joined = RELU, None
        normalization.site.apart = "its max pooling apart: the ReLU is needed elsewhere"
        h, relu = normalization.compute(RELU), self._relu()
        node = h.creator_node if self._node.inputs is not None else self._node  # see _put
        if relu is not None:
            become(relu, h)
            h = relu
        normalization.fused = node, self._normalized, self._normalized, weakref.ref(h.node)
        _put(h, self._node, self._y())


class _Dual:
    """The result of :func:`dual`.

    Args:
        total: as there.
        y: its result.
    """

    def __init__(self, total, y):
        self._one, self._other = map(weakref.ref, (total.normalization, total.operand))
        self._held = (*map(weakref.ref, (total, total.source, y.node)),)
        self._node = y.creator_node

    def is_by_itself(self, deferred):
        """Whether a deferred variable is the second batch normalization: :meth:`put` wants its result."""
        return self._other() is deferred

    def separate(self, normalization, compute, become):
        """Computes the second batch normalization, as if the first had been known to be needed by itself.

        Args:
            normalization: the first or the second :class:`~mixprec.rewrite.fusions.Normalization`.
            compute: see :class:`_Pooled`.
            become: see there.
        """
        other, why = self._other(), "it is added to another batch normalization that is needed by itself"
        if other is not None:
            compute(other, why)
        else:
            normalization.other.site.give_up(why)
            self.put(normalization.other.compute())

    def put(self, other):
        """Puts the second batch normalization into the graph.

        Args:
            other: variable, its result.
        """
        node = _put(other, self._node, self._held[-1]())
        one = self._one()
        if one is not None:
            one.joined, one.fused = None, (node, *self._held)
            if one.site.fused == DUAL:
                one.site.fused = ADD_RELU


def _put(variable, node, y):
    """Inserts a variable between an applied node and the node of its result; returns the new creator of that result."""
    if node.inputs is None:  # by `unchain_backward` of what follows, which would have come by here
        variable.unchain()
    elif y is not None and y.creator_node is node:
        last = node.behind(variable.node)
        put_behind(node.rank, last, y)
        return last
    return node


def put_behind(rank, last, y):
    """Makes a new node the creator of a variable node.

    Chainer goes back by ranks: new nodes come between an old one and its consumers.

    Args:
        rank: of the old node.
        last: the new one, behind others that may be new.
        y: the variable node.
    """
    top = y.rank
    share = (top - rank) / (last.rank - rank + 1)
    nodes = [last]
    while nodes:
        each = nodes.pop()
        if each.rank > rank:
            nodes += [x.creator_node for x in each.inputs if x.creator_node is not None]
            each.rank = rank + (each.rank - rank) * share
    last.outputs = (weakref.ref(y),)
    y.creator_node = last
    y._rank = top
    for x in last.inputs:  # what is put between them later comes below
        x._rank = min(x.rank, last.rank)
