"""Training with more activations than fit: :func:`offload` keeps, recomputes or moves retained arrays.

The first two rounds are recorded while everything is moved away at once; then a plan is made, which is followed from
the third round on. A *round* is the forward passes up to the end of their backward pass; with accumulated gradients a
step has several rounds, which share one plan.
"""

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable

import chainer

from mixprec.activation_memory import metering
from mixprec.activation_memory.budget import check_budget
from mixprec.activation_memory.following import Following
from mixprec.activation_memory.made_plans import Plans
from mixprec.activation_memory.rounds import LeaveAtOnce, Memory, Round
from mixprec.backends.copies import copies_for
from mixprec.base import arguments
from mixprec.base.announcements import announce
from mixprec.base.messages import OneLineError
from mixprec.compat.registry import Patch
from mixprec.functions import watching
from mixprec.functions.node import OFFLOADED
from mixprec.precision.repeated_pass import one_pass_only

SMALLEST = 256 << 10  # bytes: a smaller copy takes longer to launch than to run
_NOTHING = "no retained array is large enough to be moved"
_logger = logging.getLogger("mixprec")


class _Active(threading.local):
    """Attribute ``offload``: the active :class:`Offload` of this thread, or ``None``."""

    offload = None


_active = _Active()


def active():
    """Returns the active :class:`Offload` of this thread, or ``None``."""
    return _active.offload


def offload(
    budget: str | float,
    to: str | os.PathLike[str] = "host",
    *,
    recompute: bool = True,
    smallest: int = SMALLEST,
    say: Callable[[str], object] = _logger.info,
) -> "Offload":
    """Returns a context for training steps whose activations do not fit into memory, or must keep to a budget.

    Arrays that functions retain for the backward pass stay on the device, are recomputed, or wait in another memory,
    according to a plan that is made from the first two rounds. Results are the same bit for bit. Parameters, small
    arrays and arrays that are read soon never move, and an evaluation moves nothing.

    Args:
        budget: total memory that the process may use on the device, such as ``"16 GB"``, or a fraction of the device's
            memory, such as ``0.8``. On NumPy it is the memory of the process.
        to: ``"host"`` for pinned host memory, if the network is on a GPU; on a CPU, a folder for a file.
        recompute: whether arrays may be recomputed.
        smallest: bytes; smaller arrays stay.
        say: function that is called with each new plan as text; by default plans go to the logger ``mixprec``, level
            INFO.

    Returns:
        Offload: enter it for each step, or once for all.

    Raises:
        mixprec.base.messages.OneLineError: the budget is invalid, or memory cannot be allocated. Inside of the context
            :class:`~mixprec.activation_memory.planning.DoesNotFit`, if no plan meets the budget.

    Example:
        >>> import chainer, mixprec, numpy as np
        >>> model = chainer.links.Classifier(chainer.links.Linear(3, 2))
        >>> optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(model)
        >>> with mixprec.offload("2 GB", to="/tmp") as memory:
        ...     optimizer.update(model, np.ones((4, 3), np.float32), np.zeros(4, np.int32))
        >>> print(memory.report())
        no retained array is large enough to be moved
    """
    if not isinstance(to, (str, os.PathLike)) or not os.fspath(to):
        raise OneLineError(f'arrays are offloaded to "host" or to a folder; found {to!r}')
    arguments.flag("recompute", recompute)
    budget, least = check_budget(budget), arguments.whole("smallest", smallest, 1)
    return Offload(Plans(budget, recompute, least, arguments.function("say", say)), to, smallest)


class Offload:
    """A context in which retained arrays are kept, recomputed or moved; see :func:`offload`.

    Args:
        plans: :class:`~mixprec.activation_memory.made_plans.Plans`.
        to: as for :func:`offload`.
        smallest: as for :func:`offload`.
    """

    def __init__(self, plans, to, smallest):
        self._plans = plans
        self._to = to
        self._smallest = smallest
        self._copies = None
        self._memory = Memory()
        self._round = None
        self._in_use = 0  # bytes, before the recorded round
        self._meter = None  # for the next round, started before its first event
        self._measuring = contextlib.ExitStack()
        self._depth = 0  # of nested backward passes
        self._stack = None

    @property
    def plans(self):
        """List of :class:`~mixprec.activation_memory.planning.Plan`, one for each kind of round."""
        return [made.plan for made in self._plans.made]

    def __enter__(self) -> "Offload":
        if _active.offload is not None:
            raise RuntimeError("mixprec.offload is active in this thread, and cannot be nested")
        if self._stack is not None:
            raise RuntimeError("mixprec.offload is active in another thread: use one for each")
        self._stack = contextlib.ExitStack()
        for each in _PATCHES:
            each.apply()
        self._stack.enter_context(watching.watch(made=self._forward))
        self._stack.enter_context(one_pass_only("mixprec.offload"))
        _active.offload = self
        self._expect()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        _active.offload = None
        self._stack.close()
        self._stack = self._meter = None
        try:
            self._finish(complete=error is None)
        finally:
            self._measuring.close()

    def afresh(self) -> "Offload":
        """Returns a new :class:`Offload` with the same arguments, without rounds and without ``say``."""
        return Offload(self._plans.afresh(), self._to, self._smallest)

    def report(self) -> str:
        """Returns the plans as text."""
        if not self.plans:
            return "the plan is made after two rounds" if self._plans.waits else _NOTHING
        return "\n\n".join(map(str, self.plans))

    def _forward(self, node, results):
        """Records functions that have joined the graph: this one, and earlier ones that are not known yet."""
        outputs = [y for y in results if "_node" in vars(y)]
        found, todo = {}, [y.creator_node for y in outputs if y.creator_node is not None]
        while todo:
            function = todo.pop()
            if function not in found and OFFLOADED not in vars(function):
                found[function] = None
                todo += [x.creator_node for x in function.inputs if x.creator_node is not None]
        if found and self._copies is None:
            self._copies = copies_for(outputs[0].raw_array, self._to)
        for function in sorted(found, key=lambda function: function.rank):
            self._current().forward(function)

    def _current(self):
        """Returns the current round, for a function that has gone forward."""
        if self._round is not None and not self._depth and (self._round.is_backward or self._round.is_abandoned):
            self._finish(complete=self._round.is_backward)
        if self._round is None:
            self._round = self._begin()
        return self._round

    def _begin(self):
        plans, self._in_use = self._plans, self._copies.allocated()
        if not plans.wants_recording:
            self._meter = None
            plans.grow(self._copies, self._in_use)
            begun = Round(self._copies, self._smallest, LeaveAtOnce(), self._memory)
            begun.policy = Following(plans.made, begun, self._deviate)
            return begun
        self._expect()
        meter, self._meter = self._meter, None
        return Round(self._copies, self._smallest, LeaveAtOnce(), self._memory, meter)

    def _expect(self):
        """Starts to measure a round that must be recorded, before its first function goes forward."""
        if self._copies is not None and self._meter is None and self._plans.wants_recording:
            self._meter = self._new_meter()

    def _new_meter(self):
        self._measuring.close()
        self._measuring.enter_context(self._copies.measuring())
        return metering.Meter(self._copies)

    def _deviate(self, round_, number):
        if not number:
            round_.measure(self._new_meter())  # without its first event
            return
        self._plans.has_deviated = True
        announce(
            "offload: the functions or shapes of the step differ from all recorded ones from %s on: the next step is "
            "recorded, without overlap",
            round_.names[number],
        )

    def _owns(self, function):
        return self._round is not None and OFFLOADED in vars(function)

    def _backward(self, function, step):
        if chainer.config.enable_backprop:
            raise RuntimeError(
                "mixprec.offload does not support double backprop: run the forward pass and backward() outside of it"
            )
        self._round.backward(function, step)

    @contextlib.contextmanager
    def _pass(self):
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth and self._round is not None:
                self._round.settle()

    def _finish(self, *, complete):
        """Ends the current round; makes a plan if it was recorded often enough."""
        ended, self._round = self._round, None
        if ended is None:
            return
        ended.end()
        if ended.meter is not None:
            self._measuring.close()
            if complete and ended.is_backward:
                self._plans.add(ended, self._in_use)


def _bringing_back(backprop_step):
    @functools.wraps(backprop_step)
    def run(function, *arguments):
        offload = _active.offload
        if offload is not None and offload._owns(function):
            offload._backward(function, lambda: backprop_step(function, *arguments))
            return
        for buffer in vars(function).get(OFFLOADED, ()):  # its graph has left the context
            buffer.ensure()
        backprop_step(function, *arguments)

    return run


def _settling(backprop_to_all):
    @functools.wraps(backprop_to_all)
    def run(*arguments):
        if _active.offload is None:
            backprop_to_all(*arguments)
        else:
            with _active.offload._pass():
                backprop_to_all(*arguments)

    return run


_WHEN = "mixprec.offload"
_WHY = "Without it functions go backward without the arrays that were moved away. Other functions are not affected."
_PATCHES = [
    Patch("chainer._backprop_utils:backprop_step", _bringing_back, _WHY, _WHEN),
    Patch("chainer._backprop:_backprop_to_all", _settling, _WHY, _WHEN),
]
