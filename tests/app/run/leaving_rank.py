"""The training command as one of two ranks, one of which leaves: ``leaving_rank.py WAY:RANK:PLACE ARGUMENTS``.

WAY is how it leaves, PLACE where. RANK is its number, ``all``, or ``others`` for all but rank 0. After ``none`` nothing
happens.
"""

import argparse
import atexit
import os
import sys
import time

import chainer
from chainer.training import extension

from mixprec.app.commands.command_line import Parser
from mixprec.app.parts.rank_states import RankStates
from mixprec.app.run import preparation, training_run
from mixprec.data.loaders.iterator import ImageIterator
from mixprec.distributed import processes
from mixprec.optimizer import wrapper
from mixprec.training import updater
from tests.app.run import faulty_rank


class Own(BaseException):
    """A way out of one's own."""

    def __str__(self):
        raise ValueError("no words")


class Speechless(Own, Exception):
    """An error of one's own."""


def _raise(error):
    raise error


def _parse():
    argparse.ArgumentParser("net").parse_args(["--nothing"])


def _crash_at_exit():
    """Rank 0 is slow with the weights."""
    if faulty_rank.RANK:
        atexit.register(os._exit, 3)
    else:
        before(training_run, "_save_weights", lambda *args: time.sleep(2))


WAYS = {
    "crash at exit": _crash_at_exit,
    "none": lambda: None,
    "exit0": lambda: sys.exit(0),
    "exit": sys.exit,
    "exit3": lambda: sys.exit(3),
    "exit256": lambda: sys.exit(256),
    "parse": _parse,
    "generator": lambda: _raise(GeneratorExit()),
    "own": lambda: _raise(Own()),
    "speechless": lambda: _raise(Speechless()),
}
STEP = 3


def before(owner, name, when=lambda *args: True):
    """Lets the rank leave when a function is called, and before it does anything."""
    original = getattr(owner, name)

    def leaving(*args, **kwds):
        if when(*args):
            leave()
        return original(*args, **kwds)

    setattr(owner, name, leaving)


class Leaving(extension.Extension):
    """An extension that leaves."""

    priority = 50

    def trigger(self, trainer):
        return True

    def __call__(self, trainer):
        if trainer.updater.iteration == STEP:
            leave()


def _extend():
    build = preparation.build_trainer

    def built(*args):
        trainer = build(*args)
        trainer.extend(Leaving(), name="leaving")
        return trainer

    preparation.build_trainer = built


_steps = 0


def trained(steps):
    return _steps >= steps


def _count():
    update = updater.TimedUpdater.update

    def counted(self):
        global _steps
        _steps += 1
        update(self)

    updater.TimedUpdater.update = counted


PLACES = {
    "find": lambda: before(processes, "duplicate"),
    "parser": lambda: before(Parser, "parse_args"),
    "connect": lambda: before(processes.Together, "connect"),
    "forward": lambda: before(faulty_rank.Small, "forward", lambda *args: trained(STEP)),
    "update": lambda: before(wrapper.MixedPrecisionOptimizer, "update", lambda *args: trained(STEP)),
    "extension": _extend,
    "loader": lambda: before(ImageIterator, "__next__", lambda *args: trained(STEP)),
    "evaluation batch": lambda: before(
        faulty_rank.Small, "forward", lambda *args: trained(STEP) and not chainer.config.train
    ),
    "states": lambda: before(RankStates, "in_files"),
    "weights": lambda: before(training_run, "_save_weights"),
}


def leave():
    WAYS[WAY]()


def main(fault, *argv):
    global WAY, PLACE
    WAY, _, where = fault.partition(":")
    rank, _, PLACE = where.partition(":")
    if rank in (str(faulty_rank.RANK), "all") or (rank == "others" and faulty_rank.RANK):
        _count()
        PLACES[PLACE]()
    return faulty_rank.main("none", *argv)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
