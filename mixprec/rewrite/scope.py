"""One call of a converted model: the state while it runs forward in this thread.

:mod:`mixprec.rewrite.dispatch` opens a scope when a converted link is called from outside, and hands it to the rules of
functions. They ask it for inputs in the right dtype and memory order, and for the sites that they compute.
"""

import contextlib
import copy
import gc

import chainer
import numpy as np

from mixprec.base.dtypes import BFLOAT16, FLOAT32, STORAGE_DTYPES, is_half
from mixprec.functions.convolution import ConvolutionImages
from mixprec.precision.conversion_state import active
from mixprec.rewrite.deferred import Deferred, compute
from mixprec.rewrite.fusions import KEPT, UNUSED, ConvolutionSite, Normalization, NormalizationSite
from mixprec.rewrite.memory_order import cast, channels_first, channels_last, is_channels_last, is_part
from mixprec.rewrite.operands import name_lost_array

_WITH_CHILDREN = (chainer.Chain, chainer.ChainList)


class Scope:
    """One call of a converted model from outside.

    Args:
        conversion: :class:`~mixprec.rewrite.convert.Conversion`.
        root: :class:`~mixprec.rewrite.convert.LinkState` of the link that is called, or ``None``.
        trace: :class:`~mixprec.rewrite.trace.Trace` of this call, or ``None``.

    Attributes:
        keeps_float32: whether a link that stays in float32 is being called.
        nhwc: whether images are kept in the memory order of (N, H, W, C).
        link: :class:`~mixprec.rewrite.convert.LinkState` of the innermost link that is being called, or ``None``.
        deferred: weak references to the variables that were deferred in this call.
        pending: :class:`~mixprec.rewrite.fusions.Normalization` that have not been computed, by their id.
        unfused: :class:`~mixprec.rewrite.fusions.Unfused` by the id of their variables.
        convolved: :class:`~mixprec.rewrite.layer_rules.Convolved` by the id of their variable.
        leaves: ``{(id, key): (input from outside the model, its converted form)}``.
        has_called: whether a link has been called from within; code that asks about a part sets it to ``False`` first.
        sources: ``{id: (images, the same in the order of their axes)}``, see :meth:`also_in_order_of_axes`.
        noted: tuple of lists; a copy of each site is appended to them before it is used.
        repeated: iterator of sites to use instead of the sites of the links, or ``None``.
    """

    def __init__(self, conversion, root=None, trace=None):
        self.conversion = conversion
        self.trace = trace
        self.keeps_float32 = False
        self.nhwc = conversion.policy.layout == "nhwc"
        self.root = self.link = root
        self.deferred = []
        self.pending = {}
        self.unfused = {}
        self.convolved = {}
        self.leaves = {}
        self.has_called = False
        self.sources = {}
        self.noted = ()
        self.repeated = None
        self._turns = {}
        self._names_lost = trace is not None or conversion.on_example
        self._compute = np.dtype(conversion.policy.compute)

    @property
    def compute(self):
        """Dtype of activations."""
        return FLOAT32 if self.keeps_float32 else self._compute

    @property
    def link_name(self):
        """The path of :attr:`link`, for messages."""
        return "" if self.link is None else self.link.name

    def cast(self, x, dtype):
        """Returns a variable or array in a dtype; inputs from outside the model are cast once in a call."""
        if x.dtype == dtype:
            return x
        self._look_at(x, dtype)
        if not self.nhwc and x.dtype != BFLOAT16:  # which Chainer's own cast does not support
            return self._once(x, dtype, lambda: chainer.functions.cast(x, dtype))  # can be differentiated twice
        return self._once(x, dtype, lambda: cast(x, dtype))

    def to_compute(self, inputs):
        """Returns variables and arrays in the compute dtype, a tuple."""
        dtype = self.compute
        return tuple([x if x.dtype == dtype else self.cast(x, dtype) for x in inputs])

    def _look_at(self, x, dtype):
        if (self._names_lost or not x.ndim) and is_half(dtype):
            name_lost_array(self, x, dtype)

    def from_float64(self, x):
        """Returns a variable or array of float64 in float32."""
        return self._once(x, FLOAT32, lambda: chainer.functions.cast(x, FLOAT32))

    def images(self, x, dtype=None, channels=None):
        """Returns images in the memory order of (N, H, W, C); images from outside the model are converted once."""
        if is_channels_last(x) and dtype in (None, x.dtype):
            return x
        if dtype not in (None, x.dtype):
            self._look_at(x, dtype)
        return self._once(x, (dtype, channels), lambda: self._to_nhwc(x, dtype, channels))

    def images_of_form(self, x, dtype, form):
        """Returns images in the form of a convolution; images from outside the model are converted once."""
        if dtype != x.dtype:
            self._look_at(x, dtype)
        return self._once(x, (dtype, form), lambda: self._to_form(x, dtype, form))

    def _to_nhwc(self, x, dtype, channels):
        self._note_order(x)
        return channels_last(x, dtype, channels)

    def _to_form(self, x, dtype, form):
        self._note_order(x)
        return ConvolutionImages(form, dtype).run(x)

    def _note_order(self, x):
        if self.trace is not None and not is_channels_last(x) and not is_part(x):
            self.trace.note_conversion("to NHWC", self.link_name)

    def in_order_of_axes(self, x, dtype=None):
        """Returns images in the memory order of (N, C, H, W), other variables and arrays as they are."""
        if id(x) in self.sources:
            return self.cast(self.sources[id(x)][1], x.dtype if dtype is None else dtype)
        if self.trace is not None and is_channels_last(x) and not chainer.as_array(x).flags.c_contiguous:
            self.trace.note_conversion("to NCHW", self.link_name)
        return channels_first(x, dtype)

    def also_in_order_of_axes(self, x, source):
        """Returns images, and keeps ``source``, for functions that need the order of its axes."""
        self.sources[id(x)] = x, source  # x is held so that its id stays its own
        return x

    def plain(self, x):
        """Returns a variable or array as plain Chainer would have it: in float32, in the order of its axes."""
        return self.in_order_of_axes(x, FLOAT32) if self.nhwc else self.cast(x, FLOAT32)

    def leaf(self, x):
        """Returns a variable or array of a result as it leaves the model."""
        if not isinstance(x, chainer.Variable):
            return self.plain(chainer.Variable(x, requires_grad=False)).array if is_half(x.dtype) else x
        if type(x) is Deferred:
            compute(x, KEPT)
        return self.plain(x) if x.array is not None and x.dtype in STORAGE_DTYPES else x

    def _once(self, x, key, convert):
        # Where no gradients are wanted, the user may fill the same buffer again and again.
        once = chainer.config.train and chainer.config.enable_backprop
        if not once or (isinstance(x, chainer.Variable) and x.creator_node is not None):
            return convert()
        if isinstance(x, chainer.Variable) and not x.requires_grad:
            x = x.array  # links make a variable of an array whenever they are called
        held = self.leaves.get((id(x), key))
        if held is None:
            held = self.leaves[id(x), key] = x, convert()  # x is held so that its id stays its own
        return held[1]

    def joined(self, function):
        """Returns a function that Chainer may repeat after this call, as ``F.forget`` does, as a part of it."""
        # and not this scope, which holds what it has cast
        conversion, link, keeps_float32 = self.conversion, self.link, self.keeps_float32

        def run(*args):
            if active.scope is not None:
                return function(*args)
            again = Scope(conversion)
            again.link, again.keeps_float32 = link, keeps_float32
            with calling(again):
                return function(*args)

        return run

    def normalization_site(self):
        """Returns the :class:`~mixprec.rewrite.fusions.NormalizationSite` of the normalization that is being applied.

        Returns:
            ``None`` if it is not to be deferred: outside of a link, in a link that is called alone, or if function
            hooks are registered.
        """
        state = self.link
        if state is None or not self.conversion.policy.fuse or chainer.get_function_hooks():
            return None
        if state is self.root and not issubclass(state.kind, _WITH_CHILDREN):
            return None
        return self._at(state.normalization_sites, NormalizationSite)

    def convolution_site(self):
        """Returns the :class:`~mixprec.rewrite.fusions.ConvolutionSite` of a convolution that is being applied.

        Returns:
            ``None`` if it is to take no sums: outside of a link, or if function hooks are registered.
        """
        state = self.link
        if state is None or not self.conversion.policy.conv_statistics or chainer.get_function_hooks():
            return None
        return self._at(state.convolution_sites, ConvolutionSite)

    def _at(self, known, new):
        site = self._next_site(known, new) if self.repeated is None else copy.copy(next(self.repeated, None)) or new()
        for sites in self.noted:
            sites.append(copy.copy(site))
        return site

    def _next_site(self, known, new):
        turn = self._turns[id(known)] = self._turns.get(id(known), -1) + 1
        key = bool(chainer.config.train), turn
        found = known.get(key)
        if found is None:
            found = known[key] = new()
        return found

    def normalization(self, x, rest, build, statistics, moves, joint=False):
        """Returns the result of a batch normalization: deferred, or computed at once where waiting has proved useless.

        Args:
            x: variable in a storage dtype.
            rest: see :class:`~mixprec.rewrite.fusions.Normalization`.
            build: see there.
            statistics: see there.
            moves: see there.
            joint: see there.
        """
        for earlier in list(self.pending.values()) if self.pending else ():
            if (moves or earlier.moves) and any(a is b for a in statistics for b in earlier.statistics):
                self._finish(earlier)
        site = self.normalization_site()
        waiting = Normalization(x, rest, build, statistics, moves, site, self, joint)
        if site is None or site.fused is False:
            return waiting.compute()
        self.pending[id(waiting)] = waiting
        return Deferred(self, waiting)

    def _finish(self, normalization):
        """Computes a batch normalization whose running statistics are needed, and the functions that wait for it."""
        for variable in [reference() for reference in reversed(self.deferred)]:
            if type(variable) is Deferred and variable.normalization is normalization:
                compute(variable, "its running statistics are used before its result")
            if normalization.counted:
                return
        normalization.site.give_up(UNUSED)
        with chainer.no_backprop_mode():
            normalization.compute()

    def settle(self):
        """Ends the call: computes what is still deferred and was kept, or moves running statistics."""
        self._compute_kept(relus_only=True)  # as they were to be
        if gc.isenabled() and any(type(reference()) is Deferred for reference in self.deferred):
            # Not for garbage: an exception that a library has caught and keeps in a cycle holds all calls around it.
            gc.collect()
        self._compute_kept()
        for each in self.unfused.values():
            each.end()
        self.unfused.clear()
        self.deferred.clear()
        for normalization in self.pending.values():
            normalization.site.give_up(UNUSED)
        self.move_statistics()

    def _compute_kept(self, relus_only=False):
        for reference in reversed(self.deferred):
            variable = reference()
            if type(variable) is Deferred and (variable.fusion is not None or not relus_only):
                compute(variable, KEPT)

    def move_statistics(self):
        """Moves the running statistics of batch normalizations that no function has made compute."""
        if self.pending:
            with chainer.no_backprop_mode():
                for normalization in list(self.pending.values()):
                    if normalization.moves:
                        normalization.compute()
            self.pending.clear()


@contextlib.contextmanager
def calling(scope):
    """Makes a scope the current one of this thread for the block; its deferred variables are settled at the end.

    After an exception, running statistics have moved up to the point that the model reached.
    """
    outer, active.scope = active.scope, scope
    try:
        try:
            yield
        except Exception:
            with contextlib.suppress(Exception):  # for want of memory, say: the user's own exception counts
                scope.move_statistics()
            raise
        scope.settle()
    finally:
        active.scope = outer
