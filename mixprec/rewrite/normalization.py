"""A batch normalization of a converted model that waits to be computed, see :mod:`mixprec.rewrite.deferred`."""

import chainer


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
        joint: whether its statistics are over several processes.

    Attributes:
        counted: whether it has been computed.
        fused: ``None``, or the node that computed it together with a ReLU, and weak references to the
            :class:`Deferred` whose ReLU that was, to the :class:`Deferred` to which there was added in it, and to the
            node of the result.
        joined: ``None``, or what has computed it together with more than that, see :mod:`mixprec.rewrite.joined`.
        other: ``None``, or the second one that it was computed with there.
    """

    def __init__(self, x, rest, build, statistics, moves, site, scope, joint=False):
        self.x = x
        self.rest = rest
        self.statistics = statistics
        self.moves = moves
        self.site = site
        self.scope = scope
        self.joint = joint
        self.link = "" if scope.link is None else scope.link.name
        self.backprop = chainer.config.enable_backprop
        self.fused = None
        self.joined = None
        self.other = None
        self.counted = False
        self._build = build

    def node(self, relu=False, add=False):
        """Returns its first node, which has not been applied, to be computed with more; arguments as of ``build``."""
        return self._build(relu, add, True, None)

    def compute(self, fused="", add=None, factors=None):
        """Applies the node, and returns its output. Running statistics move when it is done first.

        Args:
            fused: name of the :class:`~mixprec.rewrite.fusions.Fusion`, which ends with a ReLU; empty for none.
            add: ``None``, or the variable that is added.
            factors: ``None``, or those of stochastic depth (N,).
        """
        node = self._build(bool(fused), add is not None, not self.counted, factors)
        return self.apply(node, fused, *([] if add is None else [add]))

    def apply(self, node, fused, *others, other=None):
        """Applies a node that computes it, alone or with more, and returns the output.

        Args:
            node: the node.
            fused: as for :meth:`compute`.
            *others: inputs behind its own.
            other: ``None``, or another one that the node computes, too, whose inputs are the last ones.
        """
        node.channels_first = self.x.ndim == 4
        if other is not None:
            others = *others, other.x, *other.rest
        (y,) = node.apply((self.x, *self.rest, *others))
        for each in (self,) if other is None else (self, other):  # running statistics move the first time
            if each.scope.trace is not None and not each.counted:
                each.scope.trace.note_normalization(each.link, fused)
            each.counted = True
            each.scope.pending.pop(id(each), None)
        return y
