"""A heartbeat of a run, ``status.json`` in the results folder: the current state of training.

The trainer of rank 0 has a :class:`Heartbeat`. The training command runs it inside of :meth:`Heartbeat.watching`.
"""

import contextlib
import json
import math
import os
import platform
import time

from mixprec.base import files
from mixprec.base.process_limits import start_of
from mixprec.training.stopping import Stopped
from mixprec.training.unsaved_triggers import EachIteration

FILE = "status.json"
_SECONDS = 1  # from one heartbeat to the next, at least


class Heartbeat(EachIteration):
    """Writes ``status.json`` at most once a second, after steps or batches of an evaluation.

    It also reveals a run that was killed: the file says ``training``, and its process is gone. The file is written by
    renaming, so that it is never incomplete, and not synced to disk: a heartbeat need not survive a power cut. If it
    cannot be written, training continues without it. It reads nothing from a GPU, and snapshots do not include it.

    The remaining time is estimated from the rate of this process since its first step, which may take long. Evaluations
    are included once there has been one.

    Args:
        epochs: length of training in epochs.
        steps: :class:`mixprec.training.schedule.Steps` of the run.
        clock: function that returns seconds.
    """

    name = "heartbeat"
    priority = 1000  # first: an error in another extension, even at the beginning, is a failure of the run

    def __init__(self, epochs, steps, clock=time.monotonic):
        self._epochs, self._steps, self._clock = epochs, steps, clock
        self._trainer, self._iterations, self._process = None, None, {}
        # The position after the last completed step: the loader's position would include a failed step.
        self._iteration, self._epoch = 0, 0.0
        self._first = None  # epoch and time after the first step of this process
        self._next = -math.inf

    def initialize(self, trainer):
        """Writes that training starts, or continues."""
        self._trainer, pid = trainer, os.getpid()
        self._process = {"pid": pid, "host": platform.node(), "start": start_of(pid)}
        self._look(trainer.updater)
        # Counted from here, as a resumed run may have steps of another size. A part of a step counts as one, a rounding
        # error does not.
        left = self._steps.until(self._epochs) - self._steps.until(self._epoch)
        self._iterations = self._iteration + math.ceil(left - 1e-6)
        self._beat("training")

    def __call__(self, trainer):
        self._look(trainer.updater)
        if self._first is None:
            self._first = self._epoch, self._clock()
        self._beat("training")

    def evaluating(self):
        """Must be called before each batch of an evaluation."""
        self._beat("evaluating")

    @contextlib.contextmanager
    def watching(self):
        """A context for a run: the last heartbeat says how the run ended."""
        try:
            yield
        except BaseException as error:
            self._write("stopped" if _is_stop(error) else "failed")
            raise
        self._write("done")

    def _look(self, updater):
        self._iteration, self._epoch = updater.iteration, float(updater.epoch_detail)

    def _beat(self, state):
        if self._clock() >= self._next:
            self._write(state)

    def _write(self, state):
        if self._trainer is None:  # training has not begun
            return
        now = self._clock()
        self._next = now + _SECONDS
        status = {
            "state": state,
            "iteration": self._iteration,
            "epoch": self._epoch,
            "epochs": self._epochs,
            "iterations": self._iterations,
            "seconds_left": self._left(state, now),
            "elapsed_time": self._trainer.elapsed_time,
            "time": time.time(),
            **self._process,
        }
        with contextlib.suppress(OSError):
            files.write_text(os.path.join(self._trainer.out, FILE), json.dumps(status) + "\n", sync=False)

    def _left(self, state, now):
        if state == "done":
            return 0.0
        if self._first is None or state in ("stopped", "failed"):
            return None
        first, since = self._first
        left, done = max(0.0, self._epochs - self._epoch), self._epoch - first
        return left * (now - since) / done if done > 0 else None


def _is_stop(error):
    """Returns whether the run was asked to stop, and nothing has failed."""
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, Stopped) and error.failure is None)
