"""Processes that do work for the pages, and what becomes of them."""

import asyncio
import os
import sys
import time

import pytest

from mixprec.app.monitor.task_runner import TaskError, Tasks

SCRIPT = """
import json, os, sys, time
task, request = sys.argv[1], None
if task != "early":
    request = json.loads(sys.stdin.readline())
say = lambda value: print(json.dumps(value), flush=True)
if task == "answers":
    print("of a library", file=sys.stderr)
    say({"progress": 0.5, "text": "half" + chr(10) + "of it"})
    say({"got": request})
elif task == "fails":
    say({"progress": 0.5, "text": "half"})
    say({"error": "one" + chr(10) + "line"})
    sys.exit(2)
elif task == "garbage":
    print("no JSON")
elif task == "silent":
    sys.exit(3)
elif task == "half":
    say({"progress": 0.5, "text": "half"})
elif task == "killed":
    os.kill(os.getpid(), 9)
elif task in ("sleeps", "evaluate"):
    say({"progress": 0.0, "text": str(os.getpid())})
    time.sleep(request.get("seconds", 600))
    say({"got": request})
"""


@pytest.fixture
def tasks(tmp_path):
    (tmp_path / "work.py").write_text(SCRIPT)
    return Tasks(20, (sys.executable, str(tmp_path / "work.py")))


def _is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_answer_and_its_progress(tasks):
    seen = []
    answer = asyncio.run(tasks.run("answers", {"name": "ü"}, lambda *each: seen.append(each)))
    assert answer == {"got": {"name": "ü"}}
    assert seen == [(0.5, "half\\nof it")]


FAILURES = [
    ("fails", r"^one\\nline$"),
    ("garbage", "an answer that cannot be read"),
    ("silent", "ended with code 3"),
    ("half", "ended with code 0"),
    ("killed", r"ended with code -9 \(memory is full\?\)"),
]


@pytest.mark.parametrize(("task", "message"), FAILURES)
def test_failures_are_one_line(tasks, task, message):
    with pytest.raises(TaskError, match=message):
        asyncio.run(tasks.run(task, {}))


def test_a_process_that_does_not_read_what_it_is_sent(tasks):
    with pytest.raises(TaskError, match="ended with code 0"):
        asyncio.run(tasks.run("early", {"image": "x" * 20_000_000}))


def test_a_process_that_takes_too_long_is_ended(tasks):
    tasks._seconds, seen = 0.5, []
    with pytest.raises(TaskError, match=r"not done after 0.5 s"):
        asyncio.run(tasks.run("sleeps", {}, lambda share, text: seen.append(int(text))))
    assert not any(map(_is_there, seen))


@pytest.mark.parametrize("how", ["cancelled", "end of the server"])
def test_no_process_outlives_its_page(tasks, how):
    async def story():
        seen = []
        work = asyncio.create_task(tasks.run("sleeps", {}, lambda share, text: seen.append(int(text))))
        while not seen:
            await asyncio.sleep(0.01)
        tasks.end() if how != "cancelled" else work.cancel()
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else TaskError):
            await work
        return seen[0]

    pid = asyncio.run(story())
    deadline = time.monotonic() + 10
    while _is_there(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_there(pid)


def test_shared_work_is_done_once_and_outlives_those_who_wait(tasks):
    async def story():
        seen = []
        first = asyncio.create_task(tasks.share("evaluate", {"seconds": 1}, lambda *each: seen.append(each)))
        second = asyncio.create_task(tasks.share("evaluate", {"seconds": 1}, lambda *each: seen.append(each)))
        while len(seen) < 2:
            await asyncio.sleep(0.01)
        assert seen[0] == seen[1]  # of one process
        assert tasks.is_shared("evaluate", {"seconds": 1})
        first.cancel()
        assert await second == {"got": {"seconds": 1}}
        await asyncio.sleep(0)
        assert not tasks.is_shared("evaluate", {"seconds": 1})

    asyncio.run(story())


def test_shared_work_can_be_ended(tasks):
    async def story():
        seen = []
        work = asyncio.create_task(tasks.share("evaluate", {}, lambda share, text: seen.append(int(text))))
        while not seen:
            await asyncio.sleep(0.01)
        tasks.stop("evaluate", {})
        with pytest.raises(asyncio.CancelledError):
            await work
        assert not _is_there(seen[0])
        assert not tasks.is_shared("evaluate", {})

    asyncio.run(story())


def test_what_cannot_be_started_is_one_line():
    with pytest.raises(TaskError, match="no process can be started: No such file or directory"):
        asyncio.run(Tasks(1, ("/no/such/program",)).run("task", {}))


def test_two_at_once_and_evaluations_beside_them(tasks):
    most, running, order = 0, set(), []

    async def one(number, task):
        def progress(share, text):
            nonlocal most
            if text != "waiting for other work to end":
                running.add(number)
            most = max(most, len(running))

        await tasks.run(task, {"seconds": 0.3}, progress)
        running.discard(number)
        order.append(task)

    async def story():
        await asyncio.gather(one(0, "evaluate"), one(1, "evaluate"), *(one(number, "sleeps") for number in range(2, 6)))

    asyncio.run(story())
    assert most <= 3
    assert len(order) == 6
