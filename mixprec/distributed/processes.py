"""The processes that train together, one per rank: which rank this is, and how ranks agree.

The training command calls :func:`find` first, and passes the result on. Without an MPI launcher, or with one process,
it is :class:`Alone`, and mpi4py is not imported.
"""

import contextlib
import io
import logging
import os
import platform
import sys
import time
import traceback

import numpy as np

from mixprec.backends.mpi_duplicates import duplicate
from mixprec.base.installation import install_hint
from mixprec.base.messages import OneLineError, one_line
from mixprec.distributed import rank_watch
from mixprec.distributed.launched import ARRIVAL, rank_in, stay_at_exit

_MOMENT = 1.0  # seconds for rank 0 to print the message of all ranks


class RanksError(OneLineError):
    """The processes cannot train together; the message is one line."""


class Refused(Exception):
    """The run cannot begin; raised on all ranks.

    Attributes:
        line: the line that this rank must print, or ``None``.
    """

    def __init__(self, line):
        super().__init__(line)
        self.line = line


def find(environment=None):
    """Returns :class:`Alone`, or :class:`Together` if an MPI launcher has started several processes.

    Args:
        environment: dict of environment variables; ``None`` for the environment of this process.

    Raises:
        Refused: the processes cannot communicate.
    """
    stay_at_exit()
    launched = rank_in(os.environ if environment is None else environment)
    if launched is None or launched.size == 1:
        return Alone()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError without an MPI library
        started = f"{launched.size} processes were started"
        problem = f"{started}, and mpi4py cannot be imported ({error}): {install_hint('mpi')}"
    else:
        if MPI.COMM_WORLD.size == launched.size:
            try:
                return Together(MPI)
            except BaseException:  # other ranks wait for this one
                print(f"rank {launched.rank}: {traceback.format_exc()}", file=sys.stderr, flush=True)
                time.sleep(ARRIVAL)
                MPI.COMM_WORLD.Abort(1)
        problem = (
            f"{launched.size} processes were started, and mpi4py's MPI knows {MPI.COMM_WORLD.size}: start them by the "
            "mpiexec of that MPI"
        )
    # One process per machine prints it: processes of a machine share the installation.
    raise Refused(
        None if launched.local_rank else f"{f'rank {launched.rank}: ' if launched.rank else ''}error: {problem}"
    )


def refusal(error):
    """Returns in one line why a run cannot begin, for an input error or a ``MemoryError``."""
    if isinstance(error, MemoryError):
        error = f"out of memory before training began ({error}); --dry-run says what a run needs"
    return one_line(error)


class Alone:
    """A run of one process. :class:`Together` has the same methods; here they do almost nothing."""

    rank, local_rank = 0, 0
    is_first = True
    communicator = None
    described = None

    def __init__(self, size=1, local_size=1):
        self.size, self.local_size = size, local_size

    def together(self):
        """Returns a context for checks that may fail on some ranks only. See :class:`Together`."""
        return contextlib.nullcontext()

    def apart(self):
        """Returns an object with the same data for this rank that does not communicate."""
        return self

    def quietly(self, parse, argv):
        """Returns the result of a command-line parser. Only one rank prints; ``--help`` returns ``None``."""
        return parse(argv)

    def first(self, function, *args):
        """Returns the result of a function that is called on rank 0 only, and may refuse the run."""
        return function(*args)

    def compare(self, facts):
        """Refuses the run if facts, a dict, differ between ranks."""

    def connect(self):
        """Makes ``communicator``, a ChainerMN communicator."""

    def works_in(self, out):
        """Must be called when the run has locked its results folder: a watch unlocks it if rank 0 is killed."""

    def gather(self, value):
        """Returns the values of all ranks, on all ranks, in their order."""
        return [value]

    def gather_on_first(self, value):
        """Returns the values of all ranks on rank 0, ``None`` on the others."""
        return [value]

    def any(self, flag):
        """Whether a flag is set on any rank."""
        return flag

    def mean(self, array):
        """Returns the mean over ranks of a float64 NumPy array; bitwise equal on all ranks."""
        return array

    def leave(self):
        """Must be called at the end, so that this rank does not count as killed."""

    def fail(self, line, code):
        """Prints why the run has failed; returns the exit code, or ends all ranks with this code."""
        print(line, file=sys.stderr)
        return code


class Together:
    """One of several processes that train together.

    Args:
        mpi: the module ``mpi4py.MPI``.

    Attributes:
        rank, size: rank of this process, and number of processes.
        local_rank, local_size: the same on this machine.
        is_first: whether this is rank 0, which writes and prints.
        communicator: ChainerMN communicator, after :meth:`connect`.
        described: text that names all ranks, their hosts and processes.
    """

    def __init__(self, mpi):
        self._mpi = mpi
        self._comm = duplicate(mpi.COMM_WORLD, "training command")
        self.rank, self.size = self._comm.rank, self._comm.size
        self.is_first = self.rank == 0
        self.communicator = None
        hosts = self._comm.allgather((platform.node(), os.getpid()))
        self._here = {rank: process for rank, (host, process) in enumerate(hosts) if host == hosts[self.rank][0]}
        self.local_rank, self.local_size = list(self._here).index(self.rank), len(self._here)
        if self.rank == min(self._here):
            rank_watch.start(self._here)
        self._comm.allgather(None)  # now every machine has a watch
        rank_watch.tie(self._here, self.rank)
        self.described = "; ".join(f"{rank} on {host}, process {process}" for rank, (host, process) in enumerate(hosts))
        if not self.is_first:
            logging.getLogger("mixprec").setLevel(logging.ERROR)  # rank 0 logs the same

    def apart(self):
        """See :class:`Alone`; for rank 0."""
        return Alone(self.size, self.local_size)

    def quietly(self, parse, argv):
        """See :class:`Alone`."""
        said, help_, arguments = io.StringIO(), io.StringIO(), None
        with self.together():
            try:
                with contextlib.redirect_stderr(said), contextlib.redirect_stdout(help_):
                    arguments = parse(argv)
            except SystemExit as end:
                if end.code:
                    raise RanksError(said.getvalue().strip().removeprefix("error: ")) from None
        self.compare({"--help": arguments is None})
        if self.is_first:
            print(end=help_.getvalue(), flush=True)
        return arguments

    @contextlib.contextmanager
    def together(self):
        """A context for code that may raise on some ranks; then all raise :class:`Refused`. It must not communicate.

        If all ranks have failed, rank 0 prints its error; otherwise the first failed rank, with its number. Errors
        other than input errors are not caught: they end all ranks, by :meth:`fail`.
        """
        problem = None
        try:
            yield
        except (OneLineError, MemoryError) as error:
            problem = f"error: {refusal(error)}"
        found = self._comm.allgather(problem)
        failed = [rank for rank, problem in enumerate(found) if problem is not None]
        if failed:
            whose = "" if len(failed) == self.size else f"rank {failed[0]}: "
            raise Refused(f"{whose}{problem}" if self.rank == failed[0] else None)

    def first(self, function, *args):
        """See :class:`Alone`."""
        value = None
        with self.together():
            if self.is_first:
                value = function(*args)
        return self._comm.bcast(value)

    def compare(self, facts):
        """See :class:`Alone`.

        Raises:
            Refused: a fact differs from rank 0's; rank 0 prints the first such fact and rank.
        """
        first, *others = self._comm.allgather(facts)
        for rank, other in enumerate(others, 1):
            for name in dict.fromkeys([*first, *other]):
                if first.get(name) != other.get(name):
                    line = (
                        f"error: {name} is {first.get(name)} on rank 0 and {other.get(name)} on rank {rank}: all ranks "
                        "must have the same"
                    )
                    raise Refused(one_line(line) if self.is_first else None)

    def connect(self):
        """See :class:`Alone`."""
        import chainermn

        self.communicator = chainermn.create_communicator("naive")

    def works_in(self, out):
        """See :class:`Alone`."""
        if self.is_first:
            rank_watch.works_in(self._here, out)

    def gather(self, value):
        """See :class:`Alone`."""
        return self._comm.allgather(value)

    def gather_on_first(self, value):
        """See :class:`Alone`."""
        return self._comm.gather(value)

    def any(self, flag):
        """See :class:`Alone`."""
        own, largest = np.array([flag], np.int32), np.empty(1, np.int32)
        self._comm.Allreduce(own, largest, self._mpi.MAX)
        return bool(largest[0])

    def mean(self, array):
        """See :class:`Alone`."""
        total = np.empty_like(array)
        self._comm.Reduce(array, total)
        self._comm.Bcast(total)  # MPI does not guarantee bitwise equal sums on all ranks
        return total / self.size

    def leave(self):
        """See :class:`Alone`."""
        rank_watch.leave(self._here, [self.rank])

    def fail(self, line, code):
        """See :class:`Alone`. Ends other ranks, which may wait for this one; one failing rank prints why."""
        try:
            if not self.is_first:
                time.sleep(_MOMENT)
            if rank_watch.is_first_to_fail(self._here):
                print(f"rank {self.rank}: {line}", file=sys.stderr, flush=True)
            else:
                time.sleep(_MOMENT)  # the first rank to fail ends this one
            sys.stdout.flush()
            time.sleep(ARRIVAL)
        finally:  # even if printing fails
            rank_watch.leave(self._here, self._here)
            self._mpi.COMM_WORLD.Abort(code)
