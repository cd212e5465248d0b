"""What happens when in a step: gradients are packed as they become ready, sent in buckets, and joined.

:class:`~mixprec.optimizer.ranks.Ranks` calls a :class:`GradientExchange` in every update:

1. :meth:`~GradientExchange.begin`: a sum of two numbers starts, by which all ranks learn that they have the same
   parameters. No gradient is sent before that.
2. The last backward pass, inside of :meth:`~GradientExchange.overlapped`: each gradient is packed when it is final. A
   bucket starts when all of it is packed, and all buckets before it have started: in the same order on all ranks.
3. :meth:`~GradientExchange.finish`: packs what is left, zeros where there is no gradient, starts what is left, joins.

Gradients lie in memory in the order in which they became ready on rank 0 in the first step; that step packs after its
pass. When parameters change, the next step is a first one again.

On a device no number is read, and the host waits for MPI only. A bucket then starts where it is complete, on all ranks
at the same place of the backward pass: batch normalizations over several processes ask for sums in between.

The steps of a call of a captured step are inside of :meth:`~GradientExchange.called`, which has the sum of ``begin``
already. That which a graph captures is inside of :meth:`~GradientExchange.capturing`, too.
"""

import contextlib
import functools

import chainer
import numpy as np

from mixprec.backends import launcher_of
from mixprec.backends.capture_error import CaptureError
from mixprec.base.dtypes import is_half
from mixprec.base.scoped import scoped
from mixprec.distributed import buckets, readiness
from mixprec.distributed.arena import Arena
from mixprec.distributed.device_arena import DeviceArena
from mixprec.distributed.same_models import Members
from mixprec.distributed.step_check import StepCheck
from mixprec.distributed.step_numbers import StepNumbers


class GradientExchange:
    """Averages gradients over ranks.

    Args:
        transport: :class:`~mixprec.distributed.transport.Transport` for the arrays of the parameters.
        dtype_of_sum: in which gradients in float16 and bfloat16 are added; others are added in their own dtype.
            ``None`` for float32 on NumPy, and for their own on a device, where bytes count.
        named: as for :meth:`begin`, of the model as it is now.

    Attributes:
        transport: the same.
        members: :class:`~mixprec.distributed.same_models.Members` of the step.
        started: number of buckets of the step that have started.
        memory: object that is replaced when gradients get other places.
        updates: how many updates are over: as many on all ranks, or one has failed after :meth:`finish` on some.
    """

    def __init__(self, transport, dtype_of_sum, named):
        self.transport = transport
        self._dtype_of_sum = None if dtype_of_sum is None else np.dtype(dtype_of_sum)
        self.members = Members(named)
        self.updates = 0
        self._is_open = False  # between begin() and the end of finish() or leave()
        self._is_announced = False  # whether the next begin() finds all ranks agreed
        self._is_captured = False
        self._layout = None
        self._arenas = {}  # dtype of parameters -> Arena
        self._check = StepCheck()
        self._numbers = StepNumbers()
        self._sums = []  # under way, of the buckets that have started
        self._to_pack = []  # for each bucket the names of what is not packed yet
        self._order = []  # names in the order of readiness

    @property
    def started(self):
        """See :class:`GradientExchange`."""
        return len(self._sums)

    @property
    def memory(self):
        """See :class:`GradientExchange`."""
        return self._arenas

    def begin(self, named):
        """Begins a step.

        Args:
            named: ``[(name, parameter)]``, each parameter once, in the same order on all ranks.

        Raises:
            RuntimeError: the step before failed, and other ranks may wait for its gradients.
        """
        if self._is_captured:
            if self._layout is None or not self.members.are(named):
                raise CaptureError("a captured step has other parameters than the step before")
        elif not self._is_announced:
            self._announce(named, 0, None)
        self._is_announced, self._is_open = False, True
        self._order = []
        self._to_pack = [] if self._layout is None else [set(bucket.names) for bucket in self._layout.buckets]

    def _announce(self, named, number, vote):
        if self._is_open:
            self._recover()
        if not self.members.are(named):
            before, self.members = self.members.description, Members(named, self.members)
            if self.members.description != before:
                self._layout = None
            elif self._layout is not None:
                self._place()
        self._check.start(self.transport, self.members, self.updates, number, vote)

    def agree(self):
        """Waits until it is known that all ranks have the same parameters.

        Returns:
            see :meth:`~mixprec.distributed.step_check.StepCheck.agree`, as for what is raised.
        """
        try:
            return self._check.agree()
        except (ValueError, RuntimeError):
            self.leave()
            self._layout = None  # on all ranks, as on the one that has other parameters
            raise

    def leave(self):
        """Ends a step without gradients; all ranks do, at the same time."""
        self._is_open = False

    @contextlib.contextmanager
    def called(self, named, number, vote):
        """A context for a call of a captured step, which counts as one update, however many are run or launched.

        Args:
            named: as for :meth:`begin`.
            number, vote: as for :meth:`~mixprec.distributed.step_check.StepCheck.start`.

        Gives:
            What :meth:`agree` returns.
        """
        updates = self.updates
        self._announce(named, number, vote)
        votes = self.agree()
        with scoped(self, _is_announced=True):
            yield votes
        self.updates = updates + 1

    @contextlib.contextmanager
    def capturing(self):
        """A context for a step that a graph captures: no other rank is asked, as one may fail where others do not.

        What all ranks have found out in the step before holds for this one. The stream of sums is joined at the end.
        """
        self._is_captured = True
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # of a capture that has failed
                self.transport.join()
            self.transport.places()  # of a step that was not finished
            self._is_captured = self._is_open = False
            self._sums = []

    def overlapped(self, sends=True):
        """Returns a context for the last backward pass of a step: gradients are sent during it.

        Args:
            sends: whether they are; otherwise it is only seen in which order they become ready.
        """
        return readiness.watching(functools.partial(self._take, sends=sends))

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
        sums = None if self._is_captured else self._numbers.start(self.transport, numbers)
        for work, bucket in zip(self._sums, self._layout.buckets, strict=True):
            work.join()
            self._arenas[bucket.dtype].end(bucket)
        numbers = self._numbers.repeated(self.transport, numbers) if self._is_captured else sums()
        self._sums = []
        self._is_open = False
        for (name, param), ranks in zip(self.members.initialized, numbers[0], strict=True):
            mean = self._mean(name)
            if ranks and param.grad is not mean:
                param.grad = mean
        return numbers[1:]

    def _recover(self):
        """Ends a step that failed, if there are no other ranks."""
        if self.transport.size > 1:
            raise RuntimeError(
                f"the step before failed on rank {self.transport.rank}, for whose gradients others may wait, and "
                "ranks are out of step: end the program"
            )
        self._check.forget()
        for work in self._sums:
            work.join()
        self._sums = []

    def _take(self, param, gradient, sends):
        """Called in the backward pass, see :func:`mixprec.distributed.readiness.watching`."""
        name = self.members.names.get(id(param))
        if name is None:
            return None
        self._order.append(name)
        if self._layout is None or not sends:
            return None
        self.transport.progress()
        self._pack(name, gradient)
        self._start_packed()
        return None if self._arena(name).rounds else self._mean(name)

    def _arena(self, name):
        return self._arenas[self._layout.slots[name].dtype]

    def _mean(self, name):
        return self._arena(name).mean(name)

    def _apart(self, name, gradient):
        """Returns a gradient; a copy if it lies where another one may be packed, as after ``one.grad = other.grad``."""
        if gradient is None or gradient is self._mean(name):
            return gradient
        shares = chainer.backend.get_array_module(gradient).may_share_memory
        if not any(shares(gradient, arena.sums) for arena in self._arenas.values()):
            return gradient
        for work in self._sums:  # one of them may be writing there
            work.join()
        return gradient.copy()

    def _pack(self, name, gradient):
        self._arena(name).put(name, gradient)
        self._to_pack[self._layout.slots[name].bucket].discard(name)

    def _start_packed(self):
        """Starts the buckets that may."""
        while self.started < len(self._to_pack) and not self._to_pack[self.started]:
            if self.transport.shares_order:
                self.agree()
            elif not self._check.is_agreed():
                return
            bucket = self._layout.buckets[self.started]
            self._sums.append(self._arenas[bucket.dtype].start(bucket))

    def _lay_out(self):
        """Makes places in memory for the gradients, in the order of rank 0."""
        params = dict(self.members.initialized)
        # What has not become ready while it was watched: first the layers that come last, by their names.
        order = list(dict.fromkeys([*self._order, *reversed(params)]))
        order = self.transport.gather(order if self.transport.rank == 0 else None)[0]
        members = [(name, params[name].dtype.name, params[name].size) for name in order]
        dtypes = {param.dtype.name: param.dtype for param in params.values()}
        launcher = next((launcher_of(param.array) for param in params.values()), None)
        of_half = np.dtype(np.float32) if self._dtype_of_sum is None and launcher is None else self._dtype_of_sum
        of_sums = {name: dtype if of_half is None or not is_half(dtype) else of_half for name, dtype in dtypes.items()}
        itemsizes = {name: dtype.itemsize for name, dtype in of_sums.items()}
        limit = buckets.limit_of(sum(size * itemsizes[dtype] for _, dtype, size in members))
        self._layout = buckets.layout(members, itemsizes, limit, 1 if launcher is None else buckets.ALIGNED)
        new = Arena if launcher is None else functools.partial(DeviceArena, launcher=launcher)
        self._arenas = {
            name: new(size, dtypes[name], of_sums[name], self.transport) for name, size in self._layout.sizes.items()
        }
        self._to_pack = [set(bucket.names) for bucket in self._layout.buckets]
        self._place()

    def _place(self):
        for name, param in self.members.initialized:
            self._arena(name).place(name, self._layout.slots[name], param.array)
