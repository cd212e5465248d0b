"""Batch normalizations that wait for an addition and a ReLU, to be computed together with them.

A batch normalization in a converted model returns a variable that does not compute itself before somebody looks at it:
it is *deferred*. Adding to it, and a ReLU of it, is deferred as well; whatever else wants its array or its place in the
graph makes it compute all that it stands for, as one node. From then on it is a plain variable.

What is computed together is never known for its own: the input of the ReLU has no array and no gradient. Should
somebody want it after all, it is computed a second time and takes its place in the graph, so that results and gradients
are right; its batch normalization is not deferred any more, and neither is one that had to be computed alone. On an
example for :func:`mixprec.convert` this is found out without computing twice: there batch normalizations are computed
alone, and watched, first.
"""

import copy
import weakref

import chainer

from mixprec.announcements import announce
from mixprec.functions.relu import ReLU
from mixprec.rewrite.memory_order import channels_last, is_channels_last, run_in_order_of
from mixprec.rewrite.watching import ADD_RELU, RELU


class Normalization:
    """A batch normalization that has not been computed.

    Args:
        x: variable, the input.
        rest: other inputs of the node, before what is added.
        build: function that makes the node of ``(relu, add, count)``: whether a ReLU follows, whether there is an
            addition before it, whether running statistics move.
        statistics: the running statistics that it reads or moves, arrays.
        moves: whether it moves them.
        site: :class:`~mixprec.rewrite.watching.Site`, or ``None``.
        scope: :class:`~mixprec.rewrite.scope.Scope`.

    Attributes:
        counted: whether it has been computed.
        fused: ``None``, or what it was computed in together with a ReLU, and weak references to the :class:`Deferred`
            whose ReLU that was, and to the node of the result.
    """

    def __init__(self, x, rest, build, statistics, moves, site, scope):
        self.x = x
        self.statistics = statistics
        self.moves = moves
        self.site = site
        self.fused = None
        self.trace = scope.trace
        self.link = scope.link_name
        self.backprop = chainer.config.enable_backprop
        self.counted = False
        self._rest = rest
        self._build = build
        self._pending = scope.pending

    def compute(self, add=None, relu=False):
        """Applies the node, and returns its output. Running statistics move when it is done first."""
        node = self._build(relu, add is not None, not self.counted)
        if self.trace is not None and not self.counted:
            fused = ADD_RELU if add is not None else RELU if relu else ""
            self.trace.note_normalization(self.link, fused)
        self.counted = True
        self._pending.pop(id(self), None)
        node.channels_first = is_channels_last(self.x)
        inputs = (self.x, *self._rest)
        return node.apply(inputs if add is None else (*inputs, add))[0]


class Deferred(chainer.Variable):
    """What a :class:`Normalization` will be, with an addition and a ReLU or without; see the text above.

    Args:
        normalization: :class:`Normalization`.
        source: ``None``, or the :class:`Deferred` to which there is added, or of which the ReLU is taken.
        add: ``None``, or the variable that is added to ``source``.
    """

    def __init__(self, normalization, source=None, add=None):
        # Not those of Chainer's constructor, which wants an array: _data and _node come when they are asked for.
        inputs = (normalization.x, *normalization._rest) if add is None else (source, add)
        self.__dict__.update(
            normalization=normalization,
            source=source,
            add=add,
            _device=None,
            _grad_valid=True,
            _grad_var=None,
            _loss_scale=None,
            _requires_grad=any(getattr(each, "requires_grad", False) for each in inputs),
        )

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
        compute(self, "its value is asked for")
        return False

    def __getattr__(self, name):
        if name in ("_data", "_node"):
            compute(self, "its value is asked for")
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name, value):
        compute(self, "an attribute of it is set")
        setattr(self, name, value)

    def __copy__(self):
        compute(self, "it is copied")
        return copy.copy(self)


def is_waiting(x):
    """Whether a variable is deferred and has not been computed."""
    return type(x) is Deferred


def compute(deferred, why):
    """Makes a deferred variable a plain one.

    Args:
        deferred: :class:`Deferred`.
        why: what for, if it is a batch normalization alone.
    """
    backprop = deferred.normalization.backprop
    if chainer.config.enable_backprop == backprop:
        _compute(deferred, why)
    else:
        with chainer.using_config("enable_backprop", backprop):
            _compute(deferred, why)


def _compute(deferred, why):
    normalization, source, add, fused = deferred.normalization, deferred.source, deferred.add, None
    if source is not None and add is None:
        result = _relu(source)
    else:
        if normalization.fused is not None:
            node, *references = normalization.fused
            fused, normalization.fused = (node, *(reference() for reference in references)), None
        result = _alone(normalization, why) if source is None else _plain(source, why) + _plain(add, "it is added")
    # It becomes what nobody has seen yet.
    object.__setattr__(deferred, "__class__", chainer.Variable)
    deferred.__dict__.clear()
    deferred.__dict__.update(result.__dict__)
    deferred._node._variable = weakref.ref(deferred)
    if fused is not None:
        _split(deferred, *fused)


def _plain(variable, why):
    if is_waiting(variable):
        compute(variable, why)
    return variable


def _alone(normalization, why):
    if normalization.counted:
        announce(
            "%s: a batch normalization is computed twice in one step, because its result is needed beside the ReLU "
            "with which it was fused; it will not be fused any more",
            normalization.link,
        )
    normalization.site.give_up(why)
    return normalization.compute()


def _relu(source):
    """Returns the ReLU of a variable that was deferred when it was taken."""
    normalization = source.normalization if is_waiting(source) else None
    if normalization is None:
        return _relu_alone(source)
    add = source.add
    if add is not None:
        add = _plain(add, "it is added")
        if add.ndim == 4:
            add = channels_last(add)
    if normalization.counted:
        return _relu_alone(_plain(source, "its ReLU is taken twice"))
    normalization.site.fused = RELU if add is None else ADD_RELU
    result = normalization.compute(add=add, relu=True)
    if result.creator_node is not None:
        normalization.fused = result.creator_node, weakref.ref(source), weakref.ref(result.node)
    return result


def _relu_alone(x):
    return run_in_order_of(x, ReLU(), x)


def _split(variable, node, source, y):
    """Puts what was computed too late into the graph, as if it had been computed on the way to the ReLU.

    Gradients then go through it, and end at it if it is unchained.

    Args:
        variable: batch normalization alone, or a sum with it.
        node: what has been computed, the ReLU included.
        source: what the ReLU was taken of: ``variable``, a sum with it, or ``None`` for a sum that nobody holds.
        y: node of the ReLU's result; ``None`` if nobody holds it.
    """
    if node.inputs is None:  # by `unchain_backward` of what follows, which would have come by here
        for each in (variable, source):
            if each is not None:
                each.unchain()
    if y is None or y.creator_node is not node:
        return
    if source is None:
        source = variable + node.inputs[3].get_variable()
    result = _relu_alone(_plain(source, "it is added"))
    relu = result.creator_node
    _rank_after(node.rank, relu)
    relu.outputs = (weakref.ref(y),)
    y.creator_node = relu
    if y.data is None:
        y.data = result.array


def _rank_after(rank, node):
    """Moves the ranks of new nodes between those of an old one and of its consumers, which Chainer goes back by."""
    span = node.rank - rank + 1
    nodes = [node]
    while nodes:
        each = nodes.pop()
        if each.rank > rank:
            nodes += [x.creator_node for x in each.inputs if x.creator_node is not None]
            each.rank = rank + (each.rank - rank) / span
