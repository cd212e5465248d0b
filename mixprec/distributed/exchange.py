"""The exchange of gradients in a step: they are packed as they become ready, sent in buckets, and joined.

:class:`~mixprec.optimizer.ranks.Ranks` calls a :class:`GradientExchange` in every update:

1. :meth:`~GradientExchange.begin`: a sum of two numbers starts, which tells all ranks whether they have the same
parameters. No gradient is sent before that. 2. The last backward pass, inside of :meth:`~GradientExchange.overlapped`:
each gradient is packed when it is final. A bucket starts when it is complete and all buckets before it have started: in
the same order on all ranks. 3. :meth:`~GradientExchange.finish`: packs the remaining gradients, or zeros, starts the
remaining buckets, joins.

Gradients are in memory in the order in which they became ready on rank 0 in the first step; that step packs after its
pass. When parameters change, the next step counts as the first again.

On a device no number is read, and the host waits for MPI only. A bucket then starts when it is complete, on all ranks
at the same point of the backward pass, as batch normalizations over several processes start sums in between.

A call of a captured step runs its steps inside of :meth:`~GradientExchange.called`, which replaces the sum of
``begin``. A step that a graph captures also runs inside of :meth:`~GradientExchange.capturing`.
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
        dtype_of_sum: dtype in which float16 and bfloat16 gradients are added; others are added in their own dtype.
            ``None`` for float32 on NumPy, and for the gradients' own dtype on a device, where bandwidth matters.
        named: the current parameters of the model, as for :meth:`begin`.

    Attributes:
        transport: the transport.
        members: :class:`~mixprec.distributed.same_models.Members` of the step.
        started: number of buckets of the step that have started.
        memory: object that is replaced when gradients move in memory.
        updates: number of finished updates; it differs between ranks only if an update has failed after :meth:`finish`.
    """

    def __init__(self, transport, dtype_of_sum, named):
        self.transport = transport
        self._dtype_of_sum = None if dtype_of_sum is None else np.dtype(dtype_of_sum)
        self.members = Members(named)
        self.updates = 0
        self._is_open = False  # between begin() and the end of finish() or leave()
        self._is_announced = False  # whether called() has already started the check of the next begin()
        self._is_captured = False
        self._layout = None
        self._arenas = {}  # dtype of parameters -> Arena
        self._check = StepCheck()
        self._numbers = StepNumbers()
        self._sums = []  # sums of started buckets
        self._to_pack = []  # for each bucket the names of gradients that are not packed yet
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
            RuntimeError: the previous step failed, and other ranks may wait for its gradients.
        """
        if self._is_captured:
            if self._layout is None or not self.members.are(named):
                raise CaptureError("a captured step has other parameters than the step before it")
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
                self._fill_arenas()
        self._check.start(self.transport, self.members, self.updates, number, vote)

    def agree(self):
        """Waits for the check that all ranks have the same parameters.

        Returns:
            See :meth:`~mixprec.distributed.step_check.StepCheck.agree`, also for errors.
        """
        try:
            return self._check.agree()
        except (ValueError, RuntimeError):
            self.leave()
            self._layout = None  # on all ranks, as on the rank whose parameters differ
            raise

    def leave(self):
        """Ends a step without gradients; all ranks must do so in the same step."""
        self._is_open = False

    @contextlib.contextmanager
    def called(self, named, number, vote):
        """A context for a call of a captured step, which counts as one update, however many steps it runs or launches.

        Args:
            named: as for :meth:`begin`.
            number, vote: as for :meth:`~mixprec.distributed.step_check.StepCheck.start`.

        Yields:
            The result of :meth:`agree`.
        """
        updates = self.updates
        self._announce(named, number, vote)
        votes = self.agree()
        with scoped(self, _is_announced=True):
            yield votes
        self.updates = updates + 1

    @contextlib.contextmanager
    def capturing(self):
        """A context for a step that a graph captures: without communication on the host, as ranks may fail separately.

        The results of the checks in the previous step are used again. The stream of sums is joined at the end.
        """
        self._is_captured = True
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # the capture may have failed
                self.transport.join()
            self.transport.take_log()  # clears the log of an unfinished step
            self._is_captured = self._is_open = False
            self._sums = []

    def overlapped(self, sends=True):
        """Returns a context for the last backward pass of a step, during which gradients are sent.

        Args:
            sends: whether gradients are sent; otherwise only the order in which they become ready is recorded.
        """
        return readiness.watching(functools.partial(self._take, sends=sends))

    def finish(self, numbers):
        """Ends a step: gives all parameters the mean of their gradients, ``None`` if no rank has a gradient.

        The arrays are the same in each step: earlier gradients are overwritten.

        Args:
            numbers: float64 array (n, number of initialized parameters), to be summed as well.

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
        """Ends a failed step, if there are no other ranks."""
        if self.transport.size > 1:
            raise RuntimeError(
                f"the previous step failed on rank {self.transport.rank}, whose gradients others may wait for, and "
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
        """Returns a gradient; copied if packing may overwrite its memory, as after ``one.grad = other.grad``."""
        if gradient is None or gradient is self._mean(name):
            return gradient
        shares = chainer.backend.get_array_module(gradient).may_share_memory
        if not any(shares(gradient, arena.sums) for arena in self._arenas.values()):
            return gradient
        for work in self._sums:  # a sum may be writing to it
            work.join()
        return gradient.copy()

    def _pack(self, name, gradient):
        self._arena(name).put(name, gradient)
        self._to_pack[self._layout.slots[name].bucket].discard(name)

    def _start_packed(self):
        """Starts the complete buckets, in order."""
        while self.started < len(self._to_pack) and not self._to_pack[self.started]:
            if self.transport.shares_order:
                self.agree()
            elif not self._check.is_agreed():
                return
            bucket = self._layout.buckets[self.started]
            self._sums.append(self._arenas[bucket.dtype].start(bucket))

    def _lay_out(self):
        """Lays out the memory of the gradients, in the order of rank 0."""
        params = dict(self.members.initialized)
        # Then gradients that were not seen to become ready: in reverse order of names, as the last layers come first.
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
        self._fill_arenas()

    def _fill_arenas(self):
        for name, param in self.members.initialized:
            self._arena(name).add(name, self._layout.slots[name], param.array)
