"""Ranks of the training command that leave in every way, from every place: all end, with one line that names the rank.

What is said of an ordinary exception, and of a rank that is killed, is in ``test_ranks_command``.
"""

import json
import re
import time

import pytest

from tests.app.run import rank_runs
from tests.cases import first

ABORTED = r"(Abort\(\d+\) on node .*\n)?"  # MPICH's own line, which may not get out in time
ENDED = r"rank \d: ended by {}( \(\S+leaving_rank.py, line \d+\))?; --resume auto goes on from .*\n"
EXIT = "SystemExit: 3"

WAYS = {  # with the exit code, and what is said of it
    "exit3:1:forward": (3, EXIT),
    "exit0:0:evaluation batch": (1, "SystemExit: 0"),  # the run has failed: it has lost a rank
    "own:1:update": (1, "Own"),  # its text raises, too
    "exit:1:states": (1, "SystemExit"),
    "generator:0:extension": (1, "GeneratorExit"),
    "exit256:1:forward": (1, "SystemExit: 256"),  # of which a shell sees 0
    "parse:1:forward": (2, "SystemExit: 2"),
    "exit3:1:loader": (3, EXIT),
    "exit3:0:weights": (3, EXIT),
    "exit3:1:connect": (3, EXIT),
    "exit3:all:forward": (3, EXIT),  # rank 0 says it
}


@pytest.fixture
def work(tmp_path):
    rank_runs.make_work(tmp_path)
    return tmp_path


def _run(work, fault, *settings, ranks=2, arguments=()):
    options = {"fault": fault, "program": ("leaving_rank",), "arguments": arguments}
    return rank_runs.run(work, ranks, "out", "training.epochs=1", *settings, **options)


@pytest.mark.parametrize("fault", first(0, WAYS, 4))
def test_each_way_out_ends_all_ranks_with_one_line(work, fault):
    done = _run(work, fault)
    code, words = WAYS[fault]
    said = ""
    if fault.startswith("parse"):  # by argparse itself
        said = r"usage: net .*\nnet: error: .*\n"
    assert re.fullmatch(said + ENDED.format(words) + ABORTED, done.stderr), done.stderr
    rank = fault.split(":")[1]
    assert f"rank {0 if rank == 'all' else rank}: " in done.stderr
    assert done.returncode == code
    _assert_nothing_is_left_of_it(work / "out")


def _assert_nothing_is_left_of_it(out):
    """Of rank 0, which the launcher ends as well: its files are cleared within a moment."""
    deadline = time.monotonic() + 30
    while True:
        left = {path.name for path in out.iterdir()} if out.exists() else set()
        state = json.loads((out / "status.json").read_text())["state"] if "status.json" in left else "failed"
        found = {name for name in left if name == "run.lock" or name.startswith(".tmp-")}
        if (found, state) == (set(), "failed"):
            return
        assert time.monotonic() < deadline, (found, state)
        time.sleep(0.05)


OTHERS = {
    "speechless:1:forward": (1, r"rank 1: Traceback (?s:.*)\S*Speechless: <exception str\(\) failed>\n\n"),
    "exit3:1:find": (1, r"rank 1: Traceback (?s:.*)\nSystemExit: 3\n\n"),
    "exit3:1:parser": (2, r"rank 1: error: \n"),
    "exit0:1:parser": (2, r"error: --help is False on rank 0 and True on rank 1: all ranks must have the same\n"),
}


@pytest.mark.parametrize("fault", first(0, OTHERS, 1))
def test_errors_and_what_comes_before_training_end_all_ranks(work, fault):
    done = _run(work, fault)
    code, words = OTHERS[fault]
    assert re.fullmatch(words + ABORTED, done.stderr), done.stderr
    assert done.returncode == code
    _assert_nothing_is_left_of_it(work / "out")


@pytest.mark.slow
def test_a_crash_at_the_end_of_a_process_loses_no_work(work):
    _run(work, "crash at exit:all:connect")
    assert json.loads((work / "out" / "status.json").read_text())["state"] == "done"
    assert (work / "out" / "model.npz").exists()


@pytest.mark.long
def test_help_of_all_ranks_is_printed_once(work):
    done = _run(work, "none", arguments=("--help",))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Trains an image classifier") == 1
