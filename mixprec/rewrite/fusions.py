"""The fused operations of converted models: chains of functions that one node computes, each declared once.

An entry of :data:`FUSIONS` is a pattern. :mod:`mixprec.rewrite.deferred` follows it from a batch normalization on, and
computes the chain with its last function, by one node. That node also computes the gradients. All up to a ReLU is
computed in float32 and rounded once, while separate functions would round one after the other; a second batch
normalization and a pooling give the same bits as they do alone.
"""

import weakref
from typing import NamedTuple

import chainer

RELU = "ReLU"
ADD_RELU = "add + ReLU"
DUAL = "add of two + ReLU"
POOLED = "ReLU + max pooling"


class Fusion(NamedTuple):
    """One fused operation.

    Attributes:
        name: its name in reports.
        chain: the functions that follow a batch normalization, by the names of their classes; the node has the operand
            of each as an argument.
        by_batch: whether only a batch normalization by the statistics of the batch has a kernel for it.
        by_process: whether only a batch normalization whose batch is in this process alone has a kernel for it.
        of_two: whether what is added is a batch normalization, too, which is computed in the same pass.
    """

    name: str
    chain: tuple[str, ...]
    by_batch: bool = False
    by_process: bool = False
    of_two: bool = False


FUSIONS = (
    Fusion(RELU, ("ReLU",)),
    Fusion(POOLED, ("ReLU", "MaxPoolingND"), by_batch=True, by_process=True),
    Fusion(ADD_RELU, ("Add", "ReLU")),
    Fusion(DUAL, ("Add", "ReLU"), by_batch=True, by_process=True, of_two=True),
    Fusion(ADD_RELU, ("StochasticDepth", "Add", "ReLU"), by_batch=True),
)
NAMES = tuple(dict.fromkeys(fusion.name for fusion in FUSIONS))


KEPT = "it is kept, or a result of the model"
UNUSED = "it is not used"


class NormalizationSite:
    """One application of a batch normalization, by its position in a call of the model.

    Attributes:
        fused: name of the :class:`~mixprec.rewrite.fusions.Fusion` of the last call; ``False`` if it is not deferred
            any more, ``None`` before its first call.
        why: why it is not deferred any more.
        apart: which further functions are not fused with it, and why; for reports.
    """

    def __init__(self):
        self.fused = None
        self.why = self.apart = ""

    @property
    def text(self):
        """The text for the report."""
        return f"{self.fused}, {self.apart}" if self.fused and self.apart else self.fused or self.why

    def give_up(self, why):
        """Ends the fusion at this site."""
        self.fused, self.why = False, why


class Unfused:
    """A batch normalization that had to be computed alone: the report names all functions that use it.

    Args:
        site: :class:`~mixprec.rewrite.fusions.NormalizationSite`.
        result: the :class:`~mixprec.rewrite.deferred.Deferred` of the normalization.
        total: the :class:`~mixprec.rewrite.deferred.Deferred` of a sum with it that was used first, or ``None``.
    """

    def __init__(self, site, result, total):
        self._site = site
        self._result, self._takers = weakref.ref(result), result.takers
        self._total, self._takers_of_total = (None, None) if total is None else (weakref.ref(total), total.takers)
        self._say()

    def is_taken(self, x, name):
        """Records that a function of this name uses a variable, which may be the result or the sum."""
        if self._result() is x:
            self._takers.append(name)
        elif self._total is not None and self._total() is x:
            self._takers_of_total.append(name)
        self._say()

    def _say(self):
        if len(self._takers) > 1:
            why = f"it is used by {len(self._takers)}: {', '.join(self._takers)}"
        elif self._total is not None:
            why = f"an addition follows, and then {', '.join(self._takers_of_total)}"
        elif self._takers == ["Add"]:
            why = "it is added to a deferred variable, or broadcast"
        else:
            why = f"{self._takers[0]} follows"
        self._site.give_up(why)

    def end(self):
        """Ends the call: if a variable is still held, that is the reason."""
        if self._result() is not None:
            self._site.give_up(KEPT)
        elif self._total is not None and self._total() is not None:
            self._site.give_up(of_sum(KEPT))


def of_sum(why):
    """Returns the reason for a batch normalization, given ``why``, the reason for a sum with it."""
    return "a sum with it is kept, or a result of the model" if why == KEPT else why


class ConvolutionSite:
    """One application of a convolution, which may take the sums of the batch normalization after it.

    A convolution is applied before it is known what follows it. It is not deferred: its result is an ordinary variable.
    Instead its site remembers which batch normalization followed in the previous call. If one did, with statistics of
    the batch, the device may take sums while it convolves. If another function follows this time, the sums are not
    used, and the next call takes none.

    Attributes:
        following: :class:`~mixprec.backends.geometry.Following` that came after it in the last call, or ``None``.
    """

    following = None


class Normalization:
    """A batch normalization that has not been computed.

    Args:
        x: variable, the input.
        rest: other inputs of the node, up to the operand of an addition.
        build: function that makes the node of ``(relu, add, count, factors)``: whether a ReLU follows, whether there is
            an addition before it, whether running statistics are updated, and factors of images before the addition or
            ``None``.
        statistics: the running statistics that it reads or updates, arrays.
        moves: whether it updates them, and so normalizes by the statistics of the batch.
        site: :class:`~mixprec.rewrite.fusions.NormalizationSite`, or ``None``.
        scope: :class:`~mixprec.rewrite.scope.Scope`.
        joint: whether its statistics are over several processes.

    Attributes:
        counted: whether it has been computed.
        fused: ``None``, or the node that computed it together with a ReLU, and weak references to the
            :class:`Deferred` whose ReLU that was, to the :class:`Deferred` that was an operand of the addition, and to
            the node of the result.
        joined: ``None``, or the object that computed it with other functions, see :mod:`mixprec.rewrite.joined`.
        other: ``None``, or the second normalization that it was computed with there.
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
        """Returns its node, not applied yet, to be joined with other functions; arguments as for ``build``."""
        return self._build(relu, add, True, None)

    def compute(self, fused="", add=None, factors=None):
        """Applies the node, and returns its output. Only the first call updates running statistics.

        Args:
            fused: name of the :class:`~mixprec.rewrite.fusions.Fusion`, which ends with a ReLU; empty for none.
            add: ``None``, or the variable that is added.
            factors: ``None``, or the factors of stochastic depth (N,).
        """
        node = self._build(bool(fused), add is not None, not self.counted, factors)
        return self.apply(node, fused, *([] if add is None else [add]))

    def apply(self, node, fused, *others, other=None):
        """Applies a node that computes it, alone or with other functions, and returns the output.

        Args:
            node: the node.
            fused: as for :meth:`compute`.
            *others: inputs after its own.
            other: ``None``, or a second :class:`Normalization` that the node also computes; its inputs come last.
        """
        node.channels_first = self.x.ndim == 4
        if other is not None:
            others = *others, other.x, *other.rest
        (y,) = node.apply((self.x, *self.rest, *others))
        for each in (self,) if other is None else (self, other):  # running statistics are updated the first time
            if each.scope.trace is not None and not each.counted:
                each.scope.trace.note_normalization(each.link, fused)
            each.counted = True
            each.scope.pending.pop(id(each), None)
        return y
