"""What happens when in a step: gradients are packed as they become ready, sent in buckets, and joined.

:class:`~mixprec.optimizer.ranks.Ranks` calls a :class:`GradientExchange` in every update:

1. :meth:`~GradientExchange.begin`: a sum of two numbers starts, by which all ranks learn that they have the same
   parameters. No gradient is sent before that.
2. The last backward pass, inside of :meth:`~GradientExchange.overlapped`: each gradient is packed when it is final. A
   bucket starts when all of it is packed, and all buckets before it have started: in the same order on all ranks.
3. :meth:`~GradientExchange.finish`: packs what is left, zeros where there is no gradient, starts what is left, joins.

Gradients lie in memory in the order in which they became ready on rank 0 in the first step; that step packs after its
pass. When parameters change, the next step is a first one again.
"""

import numpy as np

from mixprec.distributed import buckets, readiness
from mixprec.distributed.arena import Arena, pack
from mixprec.distributed.same_models import Members, check_same, check_updates
from mixprec.dtypes import is_half


class GradientExchange:
    """Averages gradients over ranks.

    Args:
        transport: :class:`~mixprec.distributed.transport.Transport`.
        dtype_of_sum: in which gradients in float16 and bfloat16 are added; others are added in their own dtype.
        named: as for :meth:`begin`, of the model as it is now.

    Attributes:
        members: :class:`~mixprec.distributed.same_models.Members` of the step.
        started: number of buckets of the step that have started.
        updates: how many updates are over: as many on all ranks, or one has failed after :meth:`finish` on some.
    """

    def __init__(self, transport, dtype_of_sum, named):
        self._transport = transport
        self._dtype_of_sum = np.dtype(dtype_of_sum)
        self.members = Members(named)
        self.updates = 0
        self._is_open = False  # between begin() and the end of finish() or leave()
        self._layout = None
        self._arenas = {}  # dtype of parameters -> Arena
        self._views = {}  # name -> (part of the sums, part of the gradients)
        self._check = None  # a sum under way, and its array: do all ranks have the same parameters?
        self._sums = []  # under way, of the buckets that have started
        self._to_pack = []  # for each bucket the names of what is not packed yet
        self._order = []  # names in the order of readiness

    @property
    def started(self):
        """See :class:`GradientExchange`."""
        return len(self._sums)

    def begin(self, named):
        """Begins a step.

        Args:
            named: ``[(name, parameter)]``, each parameter once, in the same order on all ranks.

        Raises:
            RuntimeError: the step before failed, and other ranks may wait for its gradients.
        """
        if self._is_open:
            self._recover()
        self._is_open = True
        if not self.members.are(named):
            before, self.members = self.members.description, Members(named, self.members)
            if self.members.description != before:
                self._layout = None
            elif self._layout is not None:
                self._place()
        self._order = []
        self._to_pack = [] if self._layout is None else [set(bucket.names) for bucket in self._layout.buckets]
        own = self.members.fingerprint(self.updates)
        sums = own.copy()
        self._check = self._transport.start(sums), sums, own

    def agree(self):
        """Waits until it is known that all ranks have the same parameters.

        Raises:
            ValueError: they have not; on all ranks, naming the first parameter and rank that differ.
            RuntimeError: an update has failed on some ranks only; on all ranks.
        """
        if self._check is not None:
            self._check[0].join()
            if not self._is_agreed():
                self.leave()
                self._layout = None  # on all ranks, as on the one that has other parameters
                of_ranks = self._transport.gather((self.members.description, self.updates))
                check_same([description for description, _ in of_ranks])
                check_updates([updates for _, updates in of_ranks])

    def leave(self):
        """Ends a step without gradients; all ranks do, at the same time."""
        self._check = None
        self._is_open = False

    def overlapped(self):
        """Returns a context for the last backward pass of a step: gradients are sent during it."""
        return readiness.watching(self._take)

    def finish(self, numbers):
        """Ends a step: leaves in all parameters the mean of their gradients, ``None`` where no rank has any.

        The arrays are the same ones in each step: what a parameter had as a gradient before is overwritten.

        Args:
            numbers: float64 array (n, number of initialized parameters), to be added up as well.

        Returns:
            The sums of the numbers.

        Raises:
            ValueError, RuntimeError: see :meth:`agree`.
        """
        self.agree()
        if self._layout is None:
            self._lay_out()
        left = set().union(*self._to_pack)
        has_gradient = [param.grad is not None for _, param in self.members.initialized]
        gradients = {name: self._apart(name, param.grad) for name, param in self.members.initialized if name in left}
        for name, gradient in gradients.items():
            self._pack(name, gradient)
        self._start_packed()
        numbers = np.vstack([has_gradient, numbers]).astype(np.float64)
        last = self._transport.start(numbers)
        for work, bucket in zip(self._sums, self._layout.buckets, strict=True):
            work.join()
            self._arenas[bucket.dtype].round(bucket.start, bucket.stop)
        last.join()
        self._sums = []
        self._is_open = False
        for (name, param), ranks in zip(self.members.initialized, numbers[0], strict=True):
            mean = self._views[name][1]
            if ranks and param.grad is not mean:
                param.grad = mean
        return numbers[1:]

    def _recover(self):
        """Ends a step that failed, if there are no other ranks."""
        if self._transport.size > 1:
            raise RuntimeError(
                f"the step before failed on rank {self._transport.rank}, for whose gradients others may wait, and "
                "ranks are out of step: end the program"
            )
        for work in (self._check or ())[:1] + tuple(self._sums):
            work.join()
        self._check, self._sums = None, []

    def _is_agreed(self):
        """Whether all ranks are known by now to have the same parameters; does not wait."""
        if self._check is not None:
            work, sums, own = self._check
            if work.done and (sums == self._transport.size * own).all():
                self._check = None
        return self._check is None

    def _take(self, param, gradient):
        """Called in the backward pass, see :func:`mixprec.distributed.readiness.watching`."""
        name = self.members.names.get(id(param))
        if name is None:
            return None
        self._order.append(name)
        if self._layout is None:
            return None
        self._transport.progress()
        self._pack(name, gradient)
        self._start_packed()
        return None if self._arenas[self._layout.slots[name].dtype].rounds else self._views[name][1]

    def _apart(self, name, gradient):
        """Returns a gradient; a copy if it lies where another one may be packed, as after ``one.grad = other.grad``."""
        if gradient is None or gradient is self._views[name][1]:
            return gradient
        is_inside = any(np.may_share_memory(gradient, arena.sums) for arena in self._arenas.values())
        return gradient.copy() if is_inside else gradient

    def _pack(self, name, gradient):
        pack(gradient, 1 / self._transport.size, self._views[name][0])
        self._to_pack[self._layout.slots[name].bucket].discard(name)

    def _start_packed(self):
        """Starts the buckets that may."""
        if self._is_agreed():
            while self.started < len(self._to_pack) and not self._to_pack[self.started]:
                bucket = self._layout.buckets[self.started]
                part = self._arenas[bucket.dtype].sums[bucket.start : bucket.stop]
                self._sums.append(self._transport.start(part))

    def _lay_out(self):
        """Makes places in memory for the gradients, in the order of rank 0."""
        params = dict(self.members.initialized)
        # What has not become ready while it was watched: first the layers that come last, by their names.
        order = list(dict.fromkeys([*self._order, *reversed(params)]))
        order = self._transport.gather(order if self._transport.rank == 0 else None)[0]
        members = [(name, params[name].dtype.name, params[name].size) for name in order]
        dtypes = {param.dtype.name: param.dtype for param in params.values()}
        of_sums = {name: self._dtype_of_sum if is_half(dtype) else dtype for name, dtype in dtypes.items()}
        itemsizes = {name: dtype.itemsize for name, dtype in of_sums.items()}
        limit = buckets.limit_of(sum(size * itemsizes[dtype] for _, dtype, size in members))
        self._layout = buckets.layout(members, itemsizes, limit)
        self._arenas = {name: Arena(size, dtypes[name], of_sums[name]) for name, size in self._layout.sizes.items()}
        self._to_pack = [set(bucket.names) for bucket in self._layout.buckets]
        self._place()

    def _place(self):
        self._views = {
            name: self._arenas[slot.dtype].views(slot, param.array)
            for name, param in self.members.initialized
            for slot in [self._layout.slots[name]]
        }
