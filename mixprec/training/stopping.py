"""Handles SIGTERM, which SLURM and Kubernetes send about 30 s before SIGKILL: writes a snapshot to resume from."""

import copy
import json
import signal
import threading

import numpy as np
from chainer import Deserializer, reporter
from chainer.training import extension, triggers

from mixprec.backends.transfers import to_host
from mixprec.base.scoped import scoped
from mixprec.training.unsaved_triggers import EachIteration


class Stopped(Exception):
    """The run was asked to stop, and has stopped.

    Attributes:
        in_evaluation: whether an evaluation was interrupted, which a resumed run then does first.
        failure: the error if no snapshot could be written, otherwise ``None``.
    """

    def __init__(self, *, in_evaluation=False):
        super().__init__("SIGTERM")
        self.in_evaluation = in_evaluation
        self.failure = None


class Stopping(EachIteration):
    """Ends training on SIGTERM, with a snapshot from which it continues as if it had not been stopped.

    The current iteration is finished, with all extensions; then the snapshot is written, and ``Trainer.run`` raises
    :class:`Stopped`. An evaluation may take too long: it is interrupted after a batch. The snapshot then contains the
    observations of the iteration, and the resumed run starts with the remaining extensions: evaluation, log, plots,
    snapshot. A second SIGTERM ends the process at once.

    For that, extensions that read gradients or report values must come before the evaluation, and no trigger may fire
    twice in an iteration; Chainer's ``IntervalTrigger`` does not.

    Args:
        snapshot: extension from :func:`mixprec.training.snapshots.extension`.
        any_rank: function that returns whether a flag is set on any rank. All ranks ask after each iteration and each
            batch of an evaluation, and stop together.
    """

    priority = -1000  # after everything else, snapshots included

    def __init__(self, snapshot, any_rank=bool):
        self._snapshot = snapshot
        self._any_rank = any_rank
        self._asked = False
        self._unfinished = None  # observations of the iteration whose evaluation was interrupted
        self._finishing = False  # whether the current iteration finishes that one
        self._handler = None

    def initialize(self, trainer):
        """Installs the signal handler; replaces the first step by the rest of an unfinished iteration."""
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, self._ask)
        if self._unfinished is not None:
            step, trainer.updater.update = trainer.updater.update, lambda: self._update(step)

    def __call__(self, trainer):
        self._finishing = False
        if self._any_rank(self._asked):
            raise Stopped

    def check(self):
        """Must be called before each batch of an evaluation: interrupts it if the run was asked to stop."""
        if self._any_rank(self._asked):
            raise Stopped(in_evaluation=True)

    def on_error(self, trainer, exception, traceback):
        """Writes the snapshot; Chainer calls it before it finalizes iterators and extensions."""
        if not isinstance(exception, Stopped):
            return
        if exception.in_evaluation:
            self._unfinished = dict(trainer.observation)
        elif self._snapshot.writer.written == self._snapshot.filename.format(trainer):
            return
        try:
            self._snapshot(trainer)
        except Exception as error:  # Chainer would print it and continue: no snapshot, and other ranks waiting
            exception.failure = error

    def finalize(self):
        """Restores the signal handler."""
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
            self._handler = None

    def serialize(self, serializer):
        """Saves or loads the observations of an unfinished iteration, if there is one."""
        if isinstance(serializer, Deserializer):
            text = str(serializer("unfinished", None))
            self._unfinished = None if text == "null" else dict(map(_from_json, json.loads(text)))
        else:
            values = None if self._unfinished is None else list(filter(None, map(_to_json, self._unfinished.items())))
            serializer("unfinished", json.dumps(values))

    def end(self, period, unit):
        """Returns the trigger that ends training after ``period``, but not before an unfinished iteration is done."""
        return _Interval(period, unit, lambda is_due: self._unfinished is None and is_due())

    def evaluation(self, period, unit):
        """Returns the trigger of the evaluation, which also fires in an unfinished iteration."""
        return _Interval(period, unit, lambda is_due: is_due() or self._finishing)

    def snapshot_before(self, evaluation, due):
        """Returns the extension that writes a snapshot that is due before the evaluation of its iteration.

        The evaluation may take long, or fail: this keeps the training so far. A run that is resumed from it starts with
        the evaluation; the snapshot after the evaluation replaces it.

        Args:
            evaluation: trigger from :meth:`evaluation`.
            due: trigger of the snapshots.
        """

        def write(trainer):
            with scoped(self, _unfinished=dict(trainer.observation)):
                self._snapshot(trainer)

        def is_due(trainer):  # copies, as a trigger remembers when it was called
            return not self._finishing and copy.copy(evaluation)(trainer) and copy.copy(due)(trainer)

        return extension.make_extension(is_due, "snapshot_before_evaluation")(write)

    def _ask(self, number, frame):
        self._asked = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _update(self, step):
        if self._unfinished is None:
            step()
            return
        reporter.report(self._unfinished)
        self._unfinished, self._finishing = None, True


class _Interval(triggers.IntervalTrigger):
    """Chainer's trigger; ``decide`` calls it, at most once in an iteration, to find whether an interval is over."""

    def __init__(self, period, unit, decide):
        super().__init__(period, unit)
        self._decide = decide

    def __call__(self, trainer):
        return self._decide(lambda: triggers.IntervalTrigger.__call__(self, trainer))


def _to_json(item):
    """``[name, value, weight]`` with pairs of :func:`_number`; ``None`` for values that a log cannot contain."""
    name, value = item
    parts = list(map(_number, value if isinstance(value, tuple) else (value,)))
    return None if None in parts else [name, *parts]


def _number(value):
    """``[dtype, number]``, with ``None`` for the dtype of a Python number; ``None`` if it is not a number."""
    value = getattr(value, "array", value)  # a variable
    if type(value) in (bool, int, float):
        return [None, value]
    if getattr(value, "shape", None) != ():
        return None
    return [value.dtype.name, to_host(value)]  # a Python float holds every float16 and float32, and JSON every float


def _from_json(entry):
    name, *parts = entry
    values = tuple(value if dtype is None else np.asarray(value, dtype) for dtype, value in parts)
    return name, values if len(values) > 1 else values[0]
