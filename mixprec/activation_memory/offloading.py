"""Training with more activations than fit: :func:`offload` keeps, computes again or moves what is retained.

The first two rounds are recorded while everything is moved away at once; a plan is made then, and followed from the
third on. A *round* is the forward passes up to the end of their backward pass; with accumulated gradients a step has
several, which are alike and have one plan.
"""

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable

import chainer

from mixprec.activation_memory import metering
from mixprec.activation_memory.budget import check_budget, in_bytes
from mixprec.activation_memory.following import Following, Made
from mixprec.activation_memory.planning import plan
from mixprec.activation_memory.recording import Bus
from mixprec.activation_memory.rounds import LeaveAtOnce, Round
from mixprec.announcements import announce
from mixprec.backends.copies import copies_for
from mixprec.compat.registry import Patch
from mixprec.functions import watching

_RECORDED = 2  # rounds: times of the first one are those of a start
SMALLEST = 256 << 10  # bytes: a copy of less takes longer to ask for than to make
_NOTHING = "nothing has been retained that is large enough to be moved"
_logger = logging.getLogger("mixprec")


class _Active(threading.local):
    """Attribute ``offload``: the :class:`Offload` of this thread whose block is under way, or ``None``."""

    offload = None


_active = _Active()


def active():
    """Returns the :class:`Offload` whose block is under way in this thread, or ``None``."""
    return _active.offload


def offload(
    budget: str | float,
    to: str | os.PathLike[str] = "host",
    *,
    recompute: bool = True,
    smallest: int = SMALLEST,
    say: Callable[[str], object] = _logger.info,
) -> "Offload":
    """Returns a context for training steps whose activations do not fit, or are not to take more than a budget.

    What functions retain for the backward pass stays on the device, is computed again, or waits in another memory, as a
    plan says that is made from the first two rounds. Results are the same bit for bit. Parameters, small arrays and
    what is read soon never move, and an evaluation moves nothing.

    Args:
        budget: memory that the process may take on the device in all, such as ``"16 GB"``, or a share of the device's
            memory, such as ``0.8``. On NumPy it is the memory of the process.
        to: ``"host"`` for pinned memory of the host, if the network is on a GPU; a folder for a file there, on a CPU.
        recompute: whether arrays may be computed again.
        smallest: bytes; arrays below it stay.
        say: is called with each plan as text when it is made; by default it goes to the logger ``mixprec``, level INFO.

    Returns:
        Offload: enter it for each step, or once for all.

    Raises:
        mixprec.messages.OneLineError: a wrong budget, or memory that cannot be had. In the block
            :class:`~mixprec.activation_memory.planning.DoesNotFit`, if no plan meets the budget.

    Example:
        >>> import chainer, mixprec, numpy as np
        >>> model = chainer.links.Classifier(chainer.links.Linear(3, 2))
        >>> optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(model)
        >>> with mixprec.offload("2 GB", to="/tmp") as memory:
        ...     optimizer.update(model, np.ones((4, 3), np.float32), np.zeros(4, np.int32))
        >>> print(memory.report())
        nothing has been retained that is large enough to be moved
    """
    return Offload(budget, to, recompute, smallest, say)


class Offload:
    """A context in which retained arrays are kept, computed again or moved; see :func:`offload`.

    Args:
        budget, to, recompute, smallest, say: as for :func:`offload`.

    Attributes:
        plans: list of :class:`~mixprec.activation_memory.planning.Plan`, one for each kind of round.
        recordings: list of :class:`~mixprec.activation_memory.recording.Recording` that they were made from.
    """

    def __init__(self, budget, to, recompute, smallest, say):
        self._budget = check_budget(budget)
        self._to = to
        self._recompute = recompute
        self._smallest = smallest
        self._say = say
        self._copies = None
        self._round = None
        self._meter = None  # for the next round, from before its first event on
        self._depth = 0  # of backward passes within each other
        self._unplanned = []  # [signature, recording, how often it was recorded]
        self._made = []
        self._deviated = False
        self._stack = None
        self.plans, self.recordings = [], []

    def __enter__(self) -> "Offload":
        if _active.offload is not None:
            raise RuntimeError("mixprec.offload is active in this thread: blocks of it cannot be nested")
        self._stack = contextlib.ExitStack()
        for each in _PATCHES:
            each.apply()
        self._stack.enter_context(watching.watch(made=self._forward))
        _active.offload = self
        self._expect()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        _active.offload = None
        self._stack.close()
        self._finish(complete=error is None)
        if self._meter is not None:
            self._meter.stop()
            self._meter = None

    def report(self) -> str:
        """Returns the plans as text."""
        if not self.plans:
            waiting = any(recording.buffers for _, recording, _ in self._unplanned)
            return "the plan is made after two rounds" if waiting else _NOTHING
        return "\n\n".join(map(str, self.plans))

    def _forward(self, node, results):
        """Takes note of functions that have joined the graph: these, and those before them that are not known yet."""
        found, todo = [], [y.creator_node for y in results if "_node" in vars(y)]
        todo = [function for function in todo if function is not None]
        seen = set()
        while todo:
            function = todo.pop()
            if function in seen or self._knows(function):
                continue
            seen.add(function)
            found.append(function)
            todo += [x.creator_node for x in function.inputs if x.creator_node is not None]
        for function in sorted(found, key=lambda function: function.rank):
            self._current(function).forward(function)

    def _knows(self, function):
        return "_offloaded" in vars(function)

    def _current(self, function):
        """Returns the round that a function belongs to that has gone forward."""
        if self._copies is None:
            self._copies = _copies_for(function, self._to)
        if self._round is not None and not self._depth and (self._round.is_backward or self._round.is_abandoned):
            self._finish(complete=self._round.is_backward)
        if self._round is None:
            self._round = self._begin()
        return self._round

    def _begin(self):
        if self._made and not self._deviated:
            if self._meter is not None:  # the plan has been made since
                self._meter.stop()
                self._meter = None
            begun = Round(self._copies, self._smallest, LeaveAtOnce())
            begun.policy = Following(self._made, begun, self._deviate)
            return begun
        self._expect()
        meter, self._meter = self._meter, None
        return Round(self._copies, self._smallest, LeaveAtOnce(), meter)

    def _expect(self):
        """Begins to measure a round, if it is to be recorded, before its first function goes forward."""
        if self._copies is not None and self._meter is None and (self._deviated or not self._made):
            self._meter = metering.Meter(self._copies)
            self._meter.start()

    def _deviate(self, round_, number):
        if not number:
            round_.measure(metering.Meter(self._copies))  # its first event is missing in it
            return
        self._deviated = True
        name = round_.names[number]
        announce(
            "offload: the step has other functions or shapes than any recorded one, from %s on: a step that is "
            "recorded follows, without overlap",
            name,
        )

    def _backward(self, function, step):
        if self._round is None:
            step()
        elif chainer.config.enable_backprop:
            raise RuntimeError("mixprec.offload has no double backprop: call backward() outside of its block")
        else:
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
                self._expect()

    def _finish(self, *, complete):
        """Ends the round under way; makes a plan if it was recorded often enough."""
        ended, self._round = self._round, None
        if ended is None:
            return
        ended.settle()
        if ended.meter is None:
            return
        ended.meter.stop()
        if complete and ended.is_backward:
            self._deviated = False
            self._recorded(ended)

    def _recorded(self, ended):
        if any(made.signature == ended.signature for made in self._made):
            return
        recording = metering.recording_of(ended, ended.recipes)
        for place, (signature, before, times) in enumerate(self._unplanned):
            if signature == ended.signature and len(before.buffers) == len(recording.buffers):
                recording = metering.merged(before, recording)
                if times + 1 >= _RECORDED:
                    del self._unplanned[place]
                    self._plan(recording, ended)
                else:
                    self._unplanned[place] = signature, recording, times + 1
                return
        self._unplanned.append((ended.signature, recording, 1))

    def _plan(self, recording, ended):
        budget = in_bytes(self._budget, self._copies.total())
        found = plan(recording, budget, Bus(*self._copies.bus()), recompute=self._recompute, smallest=self._smallest)
        self._made.append(Made(found, recording, ended.signature))
        self.plans.append(found)
        self.recordings.append(recording)
        self._copies.trim()
        self._say(str(found))


def _copies_for(function, to):
    output = next(y() for y in function.outputs if y() is not None)
    return copies_for(output.get_variable_or_none().raw_array, to)


def _bringing_back(backprop_step):
    @functools.wraps(backprop_step)
    def run(function, *arguments):
        if _active.offload is None:
            backprop_step(function, *arguments)
        else:
            _active.offload._backward(function, lambda: backprop_step(function, *arguments))

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
_WHY = "Without it functions go backward without the arrays that were moved away. It does nothing outside of a block."
_PATCHES = [
    Patch("chainer._backprop_utils:backprop_step", _bringing_back, _WHY, _WHEN),
    Patch("chainer._backprop:_backprop_to_all", _settling, _WHY, _WHEN),
]
