"""A call of a converted model: what is in force while it runs forward, in this thread."""

import contextlib

import chainer

from mixprec.dtypes import BFLOAT16
from mixprec.rewrite.active import current, entering
from mixprec.rewrite.fusion import move_statistics, settle
from mixprec.rewrite.memory_order import cast, channels_last, is_channels_last
from mixprec.rewrite.sums import Place
from mixprec.rewrite.watching import Site, Watched

_WITH_CHILDREN = (chainer.Chain, chainer.ChainList)


class Scope:
    """One call of a converted model from outside.

    Args:
        conversion: :class:`~mixprec.rewrite.state.Conversion`.
        root: :class:`~mixprec.rewrite.state.LinkState` of the link that is called, or ``None``.
        trace: :class:`~mixprec.rewrite.trace.Trace` that looks on, or ``None``.

    Attributes:
        compute: dtype name of activations.
        nhwc: whether images are kept in the memory order of (N, H, W, C).
        link: :class:`~mixprec.rewrite.state.LinkState` of the innermost link that is being called, or ``None``.
        deferred: weak references to the variables that were deferred in this call.
        pending: :class:`~mixprec.rewrite.deferred.Normalization` that have not been computed, by their id.
        watched: :class:`~mixprec.rewrite.watching.Watched`.
        convolved: :class:`~mixprec.rewrite.sums.Convolved` by the id of their variable.
    """

    def __init__(self, conversion, root=None, trace=None):
        self.conversion = conversion
        self.trace = trace
        self.compute = conversion.policy.compute
        self.nhwc = conversion.policy.layout == "nhwc"
        self.root = self.link = root
        self.deferred = []
        self.pending = {}
        self.watched = Watched()
        self.convolved = {}
        self._turns = {}
        self._leaves = {}

    @property
    def link_name(self):
        """The path of :attr:`link`, for messages."""
        return "" if self.link is None else self.link.name

    def cast(self, x, dtype):
        """Returns a variable or array in a dtype; what comes from outside of the model is cast once in a call."""
        if x.dtype == dtype:
            return x
        if not self.nhwc and x.dtype != BFLOAT16:  # which Chainer's own cast does not know
            return self._once(x, dtype, lambda: chainer.functions.cast(x, dtype))  # can be differentiated twice
        return self._once(x, dtype, lambda: cast(x, dtype))

    def images(self, x, dtype=None, channels=None):
        """Returns images in the memory order of (N, H, W, C); those from outside of the model are converted once."""
        if is_channels_last(x) and dtype in (None, x.dtype):
            return x
        return self._once(x, (dtype, channels), lambda: channels_last(x, dtype, channels))

    def _once(self, x, key, convert):
        # Where no gradients will be wanted somebody may fill the same buffer again and again.
        once = chainer.config.train and chainer.config.enable_backprop
        if not once or (isinstance(x, chainer.Variable) and x.creator_node is not None):
            return convert()
        if isinstance(x, chainer.Variable) and not x.requires_grad:
            x = x.array  # links make a variable of an array whenever they are called
        held = self._leaves.get((id(x), key))
        if held is None:
            held = self._leaves[id(x), key] = x, convert()  # x is held so that its id stays its own
        return held[1]

    def joined(self, function):
        """Returns a function that Chainer may repeat after this call, as ``F.forget`` does, as a part of it."""
        conversion, link = self.conversion, self.link  # and not this scope, which holds what it has cast

        def run(*args):
            if current() is not None:
                return function(*args)
            again = Scope(conversion)
            again.link = link
            with calling(again):
                return function(*args)

        return run

    def site(self):
        """Returns the :class:`~mixprec.rewrite.watching.Site` of a batch normalization that is being applied.

        Returns:
            ``None`` if it is not to be deferred: outside of a link, in a link that is called alone, or if hooks look
            at functions.
        """
        state = self.link
        if state is None or not self.conversion.policy.fuse or chainer.get_function_hooks():
            return None
        if state is self.root and not issubclass(state.kind, _WITH_CHILDREN):
            return None
        return self._at(state, state.sites, Site)

    def place(self):
        """Returns the :class:`~mixprec.rewrite.sums.Place` of a convolution that is being applied.

        Returns:
            ``None`` if nobody is to know what follows it: outside of a link, if hooks look at functions, or while
            batch normalizations are watched, which are computed alone then.
        """
        state, conversion = self.link, self.conversion
        if state is None or not conversion.policy.conv_statistics or conversion.watching:
            return None
        return None if chainer.get_function_hooks() else self._at(state, state.places, Place)

    def _at(self, state, known, new):
        turn = self._turns[id(known)] = self._turns.get(id(known), -1) + 1
        key = bool(chainer.config.train), turn
        found = known.get(key)
        if found is None:
            found = known[key] = new()
        return found


@contextlib.contextmanager
def calling(scope):
    """Makes a scope the current one for the block; what was deferred in it is settled at its end.

    After an exception running statistics have moved as far as the model has come.
    """
    with entering(scope):
        try:
            yield
        except Exception:
            with contextlib.suppress(Exception):  # for want of memory, say: the user's own exception counts
                move_statistics(scope)
            raise
        settle(scope)
