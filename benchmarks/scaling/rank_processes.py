"""Processes under ``mpiexec`` for measurements: each does what it is asked, and sleeps in between.

A rank that waits for another one in MPI keeps a core busy. These ranks wait for the measuring process, on a socket.
"""

import multiprocessing.connection
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

from mixprec.base import standard_streams

if __name__ == "__main__":
    standard_streams.guard()

from benchmarks import processes

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_START = 60.0  # seconds that ranks may take to start
_GRACE = 10.0  # seconds in which they may end
_POLL = 0.2
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class RankError(RuntimeError):
    """Ranks could not be started, or one of them has failed; the message is one line."""


class Ranks:
    """Processes with ranks, each with one thread of BLAS; they start at once, and end with the ``with`` block.

    Args:
        number: of them; one is a process of its own, with an MPI that has no other rank.

    Raises:
        RankError: they do not start.
    """

    def __init__(self, number):
        mpiexec = _mpiexec()
        self._number, self._connections = number, []
        self._folder = tempfile.TemporaryDirectory()
        self._output = pathlib.Path(self._folder.name, "output")  # mpiexec has much to say when a rank fails
        with socket.socket(socket.AF_UNIX) as listener:
            address = os.path.join(self._folder.name, "ranks")
            listener.bind(address)
            listener.listen(number)
            listener.settimeout(_POLL)
            with self._output.open("w") as output:
                self._process = _start(mpiexec, number, address, output)
            try:
                self._accept(listener)
            except BaseException:
                self.end(0.0)
                raise

    def __enter__(self):
        return self

    def __exit__(self, kind, *error):
        self.end(0.0 if kind else _GRACE)

    def ask(self, function, *arguments):
        """Has all ranks call a function at the top of a module; :meth:`answers` returns what came of it."""
        for connection in self._connections:
            connection.send((function, arguments))

    def answers(self):
        """Waits for all ranks; returns the list of what the function returned there, in the order of ranks.

        Raises:
            RankError: it has failed on a rank, or a rank has died.
        """
        found, left = {}, {connection: rank for rank, connection in enumerate(self._connections)}
        while left:
            for connection in multiprocessing.connection.wait(left):
                rank = left.pop(connection)
                try:
                    found[rank], error = connection.recv()
                except (EOFError, OSError):
                    raise self._died(f"rank {rank} of {self._number} died") from None
                if error is not None:
                    raise RankError(f"rank {rank} of {self._number}: {processes.reason_of(error)}") from error
        return [found[rank] for rank in range(self._number)]

    def call(self, function, *arguments):
        """Does both."""
        self.ask(function, *arguments)
        return self.answers()

    def end(self, grace=_GRACE):
        """Ends the processes, by force if they do not do so by themselves.

        Args:
            grace: seconds for that.
        """
        for connection in self._connections:
            connection.close()
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.terminate()  # mpiexec ends its ranks
            self._process.wait()
        self._folder.cleanup()

    def _accept(self, listener):
        found = {}
        for _ in range(round(_START / _POLL)):
            if self._process.poll() is not None:
                break
            try:
                accepted, _ = listener.accept()
            except TimeoutError:
                continue
            accepted.setblocking(True)
            connection = multiprocessing.connection.Connection(accepted.detach())
            found[connection.recv()] = connection
            if len(found) == self._number:
                self._connections = [found[rank] for rank in range(self._number)]
                return
        raise self._died(f"mpiexec started {len(found)} of {self._number} processes")

    def _died(self, text):
        """The error, with the last line that ranks have written."""
        said = self._output.read_text(errors="replace").partition("\n=====")[0].strip()
        return RankError(f"{text}: {said.splitlines()[-1]}" if said else text)


def _mpiexec():
    beside = pathlib.Path(sys.executable).with_name("mpiexec")
    mpiexec = beside if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise RankError("there is no mpiexec: pip install -e '.[mpi]'")
    return mpiexec


def _start(mpiexec, number, address, output):
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    command = [mpiexec, "-n", str(number), sys.executable, "-m", "benchmarks.scaling.rank_processes", address]
    streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
    environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": path}
    # A session of its own: Ctrl-C is for the measuring process, which then ends the ranks.
    return subprocess.Popen(command, env=environment, start_new_session=True, **streams)


def _serve(address):
    from mpi4py import MPI

    with socket.socket(socket.AF_UNIX) as mine:
        mine.connect(address)
        connection = multiprocessing.connection.Connection(mine.detach())
    connection.send(MPI.COMM_WORLD.rank)
    processes.serve(connection)


if __name__ == "__main__":
    _serve(sys.argv[1])
