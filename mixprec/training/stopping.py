"""SIGTERM, which SLURM and Kubernetes send some 30 s before they kill: a snapshot, and a run that can go on from it."""

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
    """The run was asked to stop, and has.

    Attributes:
        in_evaluation: whether an evaluation was broken off, which is then the first thing that the resumed run does.
        failure: the error if there is no snapshot; ``None`` if there is.
    """

    def __init__(self, *, in_evaluation=False):
        super().__init__("SIGTERM")
        self.in_evaluation = in_evaluation
        self.failure = None


class Stopping(EachIteration):
    """Ends training on SIGTERM, with a snapshot from which it goes on as if it had not been stopped.

    The iteration under way is finished, with all extensions; then comes the snapshot, and ``Trainer.run`` raises
    :class:`Stopped`. An evaluation may take longer than there is time: it is broken off after a batch. The snapshot
    then holds what was observed in the iteration, and the resumed run begins with the extensions that are still to
    come: evaluation, log, plots, snapshot. A second SIGTERM ends the process at once.

    For that, what reads gradients or reports values must come before the evaluation, and everything has a trigger that
    does not fire twice in an iteration, such as Chainer's ``IntervalTrigger``.

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
        self._unfinished = None  # what was observed in the iteration whose evaluation was broken off
        self._finishing = False  # whether the present iteration is that one
        self._handler = None

    def initialize(self, trainer):
        """Listens for the signal, and puts what is left of an unfinished iteration in the place of the first step."""
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, self._ask)
        if self._unfinished is not None:
            step, trainer.updater.update = trainer.updater.update, lambda: self._update(step)

    def __call__(self, trainer):
        self._finishing = False
        if self._any_rank(self._asked):
            raise Stopped

    def check(self):
        """To be called before each batch of an evaluation: breaks it off if the run was asked to stop."""
        if self._any_rank(self._asked):
            raise Stopped(in_evaluation=True)

    def on_error(self, trainer, exception, traceback):
        """Writes the snapshot; Chainer calls it before it ends the iterators and whatever else has an end."""
        if not isinstance(exception, Stopped):
            return
        if exception.in_evaluation:
            self._unfinished = dict(trainer.observation)
        elif self._snapshot.writer.written == self._snapshot.filename.format(trainer):
            return
        try:
            self._snapshot(trainer)
        except Exception as error:  # Chainer would print it and go on: nothing written, and other ranks in wait
            exception.failure = error

    def finalize(self):
        """No longer listens."""
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
            self._handler = None

    def serialize(self, serializer):
        """Saves or loads what was observed in an unfinished iteration, if this is one."""
        if isinstance(serializer, Deserializer):
            text = str(serializer("unfinished", None))
            self._unfinished = None if text == "null" else dict(map(_from_json, json.loads(text)))
        else:
            values = None if self._unfinished is None else list(filter(None, map(_to_json, self._unfinished.items())))
            serializer("unfinished", json.dumps(values))

    def end(self, period, unit):
        """Returns the trigger that ends training after ``period``, and not before an unfinished iteration."""
        return _Interval(period, unit, lambda is_due: self._unfinished is None and is_due())

    def evaluation(self, period, unit):
        """Returns the trigger of the evaluation, which also fires in an unfinished iteration."""
        return _Interval(period, unit, lambda is_due: is_due() or self._finishing)

    def snapshot_before(self, evaluation, due):
        """Returns the extension that writes a snapshot that is due before the evaluation of its iteration.

        The evaluation may take long, or fail: what was trained until then is not lost. A run that goes on from it
        begins with the evaluation; the snapshot that follows the evaluation replaces it.

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
    """Chainer's trigger; ``decide`` asks it whether an interval is over, which it may be asked once in an iteration."""

    def __init__(self, period, unit, decide):
        super().__init__(period, unit)
        self._decide = decide

    def __call__(self, trainer):
        return self._decide(lambda: triggers.IntervalTrigger.__call__(self, trainer))


def _to_json(item):
    """``[name, value, weight]`` with pairs of :func:`_number`; ``None`` for what no log would take."""
    name, value = item
    parts = list(map(_number, value if isinstance(value, tuple) else (value,)))
    return None if None in parts else [name, *parts]


def _number(value):
    """``[dtype, number]``, with ``None`` for the dtype of a Python number; ``None`` if it is no number."""
    value = getattr(value, "array", value)  # of a variable
    if type(value) in (bool, int, float):
        return [None, value]
    if getattr(value, "shape", None) != ():
        return None
    return [value.dtype.name, to_host(value)]  # a Python float holds every float16 and float32, and JSON every float


def _from_json(entry):
    name, *parts = entry
    values = tuple(value if dtype is None else np.asarray(value, dtype) for dtype, value in parts)
    return name, values if len(values) > 1 else values[0]
