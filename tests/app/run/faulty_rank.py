"""The training command as one of several ranks, with a small network and a fault: ``faulty_rank.py FAULT ARGUMENTS``.

FAULT is ``none``, or ``what:rank:call``: what happens to a rank in its call of the network, which are counted from the
first step on. Tests of several ranks run it under ``mpiexec``.
"""

import errno
import os
import pathlib
import signal
import sys

import chainer
import chainer.functions as F
import chainer.links as L

from mixprec.app.commands import train as command
from mixprec.app.run import surroundings
from mixprec.base import files
from mixprec.training.plots import Plots
from models import MODELS

RANK = int(os.environ.get("PMI_RANK", "0"))


def _spoil():
    for path in pathlib.Path("images/train").rglob("*.jpg"):
        path.unlink()
        path.write_bytes(b"no image" * 50)


def _fill():
    def replacing(path, sync=True):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    files.replacing = replacing


def _fail():
    raise ZeroDivisionError("a fault")


FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "exit": lambda: os._exit(3),
    "full": _fill,
    "image": _spoil,
    "raise": _fail,
}


class Small(chainer.Chain):
    """Without batch normalization: N ranks are one process."""

    def __init__(self, classes, *, norm=False, dropout=0.0):
        super().__init__()
        self._dropout = dropout
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3)
            self.norm = L.BatchNormalization(4) if norm else F.identity
            self.linear = L.Linear(4, classes)

    def forward(self, x):
        _count()
        h = F.relu(self.norm(self.conv(x)))
        return self.linear(F.dropout(F.average_pooling_2d(h, h.shape[2:]), self._dropout))


def small_norm(classes):
    return Small(classes, norm=True, dropout=0.25)


_calls, _fault = 0, ("none", -1, -1)


def _count():
    global _calls
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # the run has not begun
        return
    _calls += 1
    what, rank, call = _fault
    if (rank, call) == (RANK, _calls):
        FAULTS[what]()


def main(fault, *argv):
    global _fault
    what, _, place = fault.partition(":")
    if what == "version":
        command.VERSION += f"+{RANK}"
    elif what == "missing":
        sys.modules["mpi4py"] = None
    elif what == "argument":
        argv = [*argv, "--set", f"optimizer.lr={RANK + 1}"]
    elif what == "usage":
        argv = [*argv, *(["--nothing"] if RANK == 1 or place == "all" else [])]
    elif what == "disk":  # each rank has files of its own
        os.chdir(f"disk{RANK}")
    elif place:
        rank, call = map(int, place.split(":"))
        _fault = what, rank, call
    Plots.__call__ = lambda self, trainer: None  # which takes most of the time
    report = surroundings.report
    surroundings.report = lambda ranks=None: report(ranks) if ranks else ""
    return command.main(list(argv), {**MODELS, "small": Small, "small_norm": small_norm})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
