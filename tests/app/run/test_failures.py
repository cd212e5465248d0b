"""What fails after training has begun has exit code 1, one line, and a snapshot to go on from."""

import os
import pathlib
import re
import shutil
import signal

import pytest

from mixprec.app.commands import train as command
from tests.app.run import finished_run
from tests.app.run.test_train_signals import CALLS, EVALUATIONS, Tiny, _assert_same, train, whole, work  # noqa: F401
from tests.cases import first

FAILS = len(CALLS) // 3 + 3  # the third step of the second epoch: there is a snapshot of the fifth


class Fails(Tiny):
    """A network that does something in its n-th call."""

    number, calls = None, 0
    then = staticmethod(lambda: None)

    def forward(self, x):
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # the run has begun
            Fails.calls += 1
            if Fails.calls == Fails.number:
                Fails.then()
        return super().forward(x)


@pytest.fixture
def fail(train, work, tmp_path, monkeypatch, capsys):  # noqa: F811
    """Runs the command, in which something happens, on images of its own; returns exit code and line of error."""
    shutil.copytree(work / "images", tmp_path / "images")
    shutil.copy(work / "small.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)

    def fail(then, *settings, call=FAILS):
        Fails.number, Fails.calls, Fails.then = call, 0, staticmethod(then)
        options = [word for setting in settings for word in ("--set", setting)]
        code = command.main(["--config", "small.yaml", "--out", "out", "--resume", "auto", *options], {"tiny": Fails})
        return code, capsys.readouterr().err

    return fail


def _remove():
    shutil.rmtree("images/train/a")


def _empty():
    _replace(b"")


def _spoil():
    _replace(b"no image" * 50)


def _replace(content):
    """Other files under the same names: to truncate one that DALI has mapped into memory ends the process."""
    for path in list(pathlib.Path("images/train/a").iterdir()):
        path.unlink()
        path.write_bytes(content)


def _remove_validation():
    shutil.rmtree("images/val/a")


def _exhaust():
    raise MemoryError("Unable to allocate 7 TiB")


INTACT = "; it was intact when it was scanned"


FAILURES = [
    (_remove, "dali", rf"train/a/\d+\.jpg: No such file or directory{INTACT}"),
    (_exhaust, "pillow", r"out of memory \(Unable to allocate 7 TiB\); --dry-run says what a run needs"),
    (_spoil, "dali", r"train/a/\d+\.jpg: not an image in a known format \(JPEG, .*\)"),
    (_empty, "pillow", r"train/a/\d+\.jpg: the file is empty"),
    (_remove_validation, "dali", rf"val/a/\d+\.jpg: No such file or directory{INTACT}"),
]


@pytest.mark.parametrize(("then", "loader", "words"), first(3, FAILURES))
def test_what_fails_in_training_is_no_bad_input(fail, then, loader, words):
    code, errors = fail(then, f"data.loader={loader}", "data.prefetch=1")
    assert code == 1
    (line,) = errors.splitlines()
    assert re.fullmatch(rf"error: .*{words}; --resume auto goes on from the last snapshot", line), line
    assert [name for name in os.listdir("out") if re.fullmatch(r"snapshot_iter_\d+\.npz", name)]
    assert "run.lock" not in os.listdir("out")


def test_a_results_folder_that_is_gone_is_one_line(fail):
    code, errors = fail(lambda: shutil.rmtree("out"), "snapshot.every=100 epochs")
    assert code == 1
    (line,) = errors.splitlines()
    assert re.fullmatch(r"error: \S*out/\S+: No such file or directory; --resume auto goes on from .*", line), line


@pytest.mark.parametrize("place", first(1, [EVALUATIONS[-1], EVALUATIONS[0]]))
def test_what_was_trained_before_an_evaluation_that_fails_is_not_lost(fail, whole, tmp_path, place):  # noqa: F811
    """Its epoch's snapshot is there, and the resumed run begins with the evaluation."""
    settings = ("snapshot.every=1 epoch",)
    code, errors = fail(_exhaust, *settings, call=place)
    step = CALLS[:place].count("step")
    assert (code, errors.count("\n")) == (1, 1)
    assert sorted(name for name in os.listdir("out") if "_iter_" in name)[0] == f"snapshot_iter_{min(step, 12)}.npz"
    assert os.path.exists(f"out/snapshot_iter_{step}.npz")
    assert fail(None, *settings, call=None) == (0, "")
    assert finished_run.log(tmp_path / "out") == finished_run.log(whole)
    _assert_same(tmp_path / "out", whole)
