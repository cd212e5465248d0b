"""The process that names a killed rank."""

import signal
import subprocess
import sys

import pytest

from mixprec.training import rank_watch


@pytest.mark.sweep
@pytest.mark.parametrize("leaves", [False, True])
def test_a_rank_that_was_killed_is_named(leaves, capfd):
    """The other one has left before."""
    processes = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    ranks = {4: processes[0].pid, 5: processes[1].pid}
    rank_watch.start(ranks)
    rank_watch.leave(ranks, [4, 5] if leaves else [4])
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    said = ""
    while not said and not leaves:
        said += capfd.readouterr().err
    line = f"rank 5: process {ranks[5]} on "
    assert said == "" if leaves else said.startswith(line) and said.endswith("killed, or has crashed; all ranks end\n")
