"""The process that names a killed rank."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys

import pytest

from mixprec.distributed import rank_watch


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [False, True])
def test_a_rank_that_was_killed_is_named(leaves, capfd):
    """The other one has left before."""
    processes = _two_processes()
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


def _two_processes():
    return [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]


def _kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_a_watch_that_looks_late_names_the_rank_that_ended_first(first, tied, monkeypatch, capfd):
    """The launcher has ended the other one by then, as on a loaded machine, and that even before the first was gone."""
    processes, select_epoll = _two_processes(), select.epoll
    order = (1 - first, first) if tied else (first, 1 - first)
    ranks = {rank: process.pid for rank, process in zip((1, 2), processes, strict=True)}
    monkeypatch.setattr(os, "set_blocking", lambda *args: None)  # of standard input, which is this process's own here
    monkeypatch.setattr(rank_watch, "_kept", [])

    class Late:
        def __init__(self):
            self._epoll = select_epoll()
            self.register, self.unregister = self._epoll.register, self._epoll.unregister
            self._calls = 0

        def poll(self, maxevents):
            self._calls += 1
            if self._calls == 2 or not tied:  # in the first one the files of the ranks come
                while rank_watch._kept:
                    os.close(rank_watch._kept.pop(0 if first == 0 else -1))
                for place in order if processes[0].returncode is None else ():
                    _kill(processes[place])
            return self._epoll.poll(maxevents=maxevents)

    monkeypatch.setattr(select, "epoll", Late)
    descriptors = [os.pidfd_open(process.pid) for process in processes]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as messages:
            messages.bind(rank_watch._address(ranks))
            for rank in (1, 2) if tied else ():
                rank_watch.tie(ranks, rank)
            rank_watch._watch(messages, [f"{descriptors[rank - 1]}:{rank}:{ranks[rank]}" for rank in (1, 2)])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    line = f"rank {first + 1}: process {ranks[first + 1]} on {os.uname().nodename} was killed, or has crashed"
    assert capfd.readouterr().err == f"{line}; all ranks end\n"


OTHER = {"pid": 1, "host": "node7"}


LEFT = [
    ({}, {}, {"status.json", "log.jsonl"}, "failed"),
    ({}, {"state": "done"}, {"status.json", "log.jsonl"}, "done"),
    (OTHER, OTHER, {"status.json", "log.jsonl", "run.lock", ".tmp-x"}, "training"),  # of a run that took it over
    ({}, OTHER, {"status.json", "log.jsonl"}, "training"),
    (None, {}, {"status.json", "log.jsonl", ".tmp-x"}, "training"),
]


@pytest.mark.parametrize(("lock", "status", "left", "state"), LEFT)
def test_the_folder_of_a_rank_0_that_was_killed_says_so(tmp_path, lock, status, left, state):
    here = {"pid": 4711, "host": os.uname().nodename}
    if lock is not None:
        (tmp_path / "run.lock").write_text(json.dumps({**here, "since": "now", **lock}))
    (tmp_path / "status.json").write_text(json.dumps({"state": "training", "epoch": 2.5, **here, **status}))
    (tmp_path / ".tmp-x").touch()
    (tmp_path / "log.jsonl").touch()
    with contextlib.suppress(*rank_watch._NOT_OURS):
        rank_watch._clear(os.fsencode(tmp_path), 4711)
    said = json.loads((tmp_path / "status.json").read_text())
    assert ({path.name for path in tmp_path.iterdir()}, said["state"], said["epoch"]) == (left, state, 2.5)


@pytest.mark.parametrize("name", ["run.lock", "status.json"])
def test_no_link_is_followed(tmp_path, name):
    here, elsewhere = {"pid": 4711, "host": os.uname().nodename}, tmp_path / "elsewhere"
    out = tmp_path / "out"
    out.mkdir()
    if name == "status.json":
        (out / ".tmp-folder").mkdir()  # which is no reason to stop
    for file in ("run.lock", "status.json"):
        place = elsewhere if file == name else out / file
        place.write_text(json.dumps({"state": "training", **here}))
    (out / name).symlink_to(elsewhere)
    with contextlib.suppress(*rank_watch._NOT_OURS):
        rank_watch._clear(os.fsencode(out), 4711)
    assert (out / name).is_symlink()
    assert json.loads(elsewhere.read_text())["state"] == "training"
    assert (out / "run.lock").exists() == (name == "run.lock")


@pytest.mark.parametrize("text", ["", "null", "[]", '{"pid": 4711}', "{", 100000 * "["])
def test_a_folder_that_holds_something_else_is_left_alone(tmp_path, text):
    (tmp_path / "run.lock").write_text(text)
    with contextlib.suppress(*rank_watch._NOT_OURS):
        rank_watch._clear(os.fsencode(tmp_path), 4711)
    assert (tmp_path / "run.lock").read_text() == text


def test_one_of_several_ranks_that_fail_says_why(monkeypatch):
    monkeypatch.setattr(rank_watch, "_kept", [])
    ranks = {0: os.getpid()}
    assert [rank_watch.is_first_to_fail(ranks) for _ in range(3)] == [True, False, False]
    for claim in rank_watch._kept:
        os.close(claim)
