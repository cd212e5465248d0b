"""The training command under ``mpiexec``: what N ranks do is what one process does; how they stop, fail, and go on."""

import json
import re
import shutil
import sys

import numpy as np
import pytest

from tests import ROOT, mpi
from tests.app.run import finished_run, rank_runs
from tests.cases import first

NORM = ("model.arch=small_norm", "training.ema_decay=0.9", "precision.compute=float16", "loss_scale.init_scale=1048576")
RESUME = ("--resume", "auto")
ABORTED = r"(Abort\(\d+\) on node .*\n)?"  # MPICH's own line, which may not get out in time


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    root = tmp_path_factory.mktemp("work")
    rank_runs.make_work(root)
    return root


@pytest.fixture(scope="module")
def one(work):
    """The results folder of one process, with 4 images in a step."""
    done = rank_runs.run(work, 1, "one", "training.batch_size=4")
    assert (done.returncode, done.stderr) == (0, "")
    return work / "one"


def _weights(folder):
    with np.load(folder / "model.npz") as arrays:
        return dict(arrays)


def _assert_close(found, expected):
    found, expected = _weights(found), _weights(expected)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-6, err_msg=name)


def _logged(folder):
    """The log by iteration."""
    return {entry["iteration"]: entry for entry in finished_run.log(folder)}


@pytest.mark.parametrize("ranks", first(0, [2, 4], 1))
def test_ranks_are_one_process_with_as_many_images(work, one, ranks):
    """22 images in steps of 4: the last step of an epoch has 2, and of 4 ranks two have none."""
    out = work / f"of{ranks}"
    done = rank_runs.run(work, ranks, out.name, f"training.batch_size={4 // ranks}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("with 4 images in a step") == 1
    assert {path.name for path in out.iterdir()} == {path.name for path in one.iterdir()}
    _assert_close(out, one)
    found, expected = _logged(out), _logged(one)
    assert found.keys() == expected.keys()
    for iteration, values in expected.items():
        assert found[iteration] == pytest.approx(values, rel=1e-5)
    about = (out / "environment.txt").read_text()
    assert _state(out) == "done"
    assert re.search(r"^ranks    " + "; ".join(rf"{rank} on \S+, process \d+" for rank in range(ranks)), about, re.M)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["loss=chainer.functions:softmax_cross_entropy", "class_weights=[1, 20, 3]"])
def test_the_loss_of_ranks_is_that_of_one_process(work, setting):
    """A weighted mean is one over all images of a step. Rank 0 alone has the extension."""
    settings = f"training.{setting}", "log.extensions=[chainer.training.extensions:FailOnNonNumber]"
    folders = [work / f"{setting.partition('=')[0]}_of{ranks}" for ranks in (1, 2)]
    for ranks, folder in enumerate(folders, 1):
        done = rank_runs.run(work, ranks, folder.name, f"training.batch_size={4 // ranks}", *settings)
        assert (done.returncode, done.stderr) == (0, "")
    _assert_close(*folders)
    one, both = map(_logged, folders)
    assert one.keys() == both.keys()
    for iteration, values in one.items():
        assert both[iteration] == pytest.approx(values, rel=1e-5)


@pytest.mark.slow
def test_other_images_under_the_same_names_are_refused(tmp_path):
    """On a machine of its own each rank has a folder of images at the same path."""
    for rank in "01":
        rank_runs.make_work(tmp_path / rank)
    folder = tmp_path / "1" / "images" / "train" / "a"
    first, second = sorted(folder.iterdir())[:2]
    contents = second.read_bytes() + b"\0", first.read_bytes()
    for path, content in zip((first, second), contents, strict=True):
        path.write_bytes(content)
    command = [sys.executable, "-m", "tests.app.run.faulty_rank", "none", "--config", "small.yaml", "--out", "out"]
    done = mpi.launch(2, ["/bin/sh", "-c", 'cd "$PMI_RANK" && exec "$@"', "sh", *command], tmp_path)
    assert done.returncode == 2
    number = "[0-9a-f]{64}"
    words = (
        f"error: the SHA-256 of the images' sizes in bytes in data.train is {number} on rank 0 and {number} on rank 1"
    )
    assert re.fullmatch(rf"{words}: all ranks must have the same\n", done.stderr)


def _state(folder):
    return json.loads((folder / "status.json").read_text())["state"]


@pytest.fixture(scope="module")
def whole(work):
    """The results folder of two ranks that were left alone."""
    done = rank_runs.run(work, 2, "whole", *NORM)
    assert (done.returncode, done.stderr) == (0, "")
    return work / "whole"


@pytest.mark.long
@pytest.mark.parametrize(("call", "words"), [(7, "in the evaluation of iteration 6"), (4, "at the end of iteration 4")])
def test_sigterm_to_rank_1_and_resume(work, whole, call, words):
    """Bit for bit: with averages, statistics and dropout of each rank's own."""
    out = work / f"stopped{call}"
    stopped = rank_runs.run(work, 2, out.name, *NORM, fault=f"term:1:{call}")
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert len(re.findall("stopped by SIGTERM .*", stopped.stdout)) == 1
    assert words in stopped.stdout
    assert _state(out) == "stopped"
    resumed = rank_runs.run(work, 2, out.name, *NORM, arguments=RESUME)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    _assert_same(out, whole)


def _assert_same(found, expected):
    assert finished_run.log(found) == finished_run.log(expected)
    for name in ("snapshot_iter_18.npz", "snapshot_best.npz", "model.npz"):
        first, second = (finished_run.members(folder / name) for folder in (found, expected))
        assert first.keys() == second.keys()
        assert [member for member in first if first[member] != second[member]] == [], name


@pytest.mark.parametrize(("then", "now", "call"), first(0, [(2, 1, 7), (1, 2, 7), (2, 4, 4)], 1))
def test_another_number_of_ranks_goes_on(work, one, then, now, call):
    """With as many images in a step the run is the one that was left alone; after an epoch, and in the middle of it."""
    out = work / f"moved{then}{now}{call}"
    stopped = rank_runs.run(work, then, out.name, f"training.batch_size={4 // then}", fault=f"term:0:{call}")
    assert (stopped.returncode, stopped.stderr) == (0, "")
    resumed = rank_runs.run(work, now, out.name, f"training.batch_size={4 // now}", arguments=RESUME)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert f"changed: ranks {then} -> {now}\n" in resumed.stdout
    _assert_close(out, one)


REFUSED = {
    "version": r"error: the version of mixprec is \S+\+0 on rank 0 and \S+\+1 on rank 1: all ranks must have the same",
    "argument": r"error: optimizer.lr is 1.0 on rank 0 and 2.0 on rank 1: all ranks must have the same",
    "usage": r"rank 1: error: unrecognized arguments: --nothing \(see --help\)",
    "usage:all": r"error: unrecognized arguments: --nothing \(see --help\)",
    "missing": r'error: 2 processes were started, and mpi4py cannot be imported \(.*\): pip install -e "\.\[mpi\]"',
    "disk": r"rank 1: error: \S+/disk1/images/train/a/00.jpg: not an image in a known format .*",
}


@pytest.mark.parametrize("fault", first(0, REFUSED, 3))
def test_bad_input_is_one_line(work, fault):
    if fault == "disk":
        for rank in range(2):
            (work / f"disk{rank}").mkdir()
            rank_runs.make_work(work / f"disk{rank}")
        (work / "disk1" / "images" / "train" / "a" / "00.jpg").write_bytes(b"no image" * 50)
    done = rank_runs.run(work, 2, "refused", fault=fault)
    assert done.returncode == 2
    assert re.fullmatch(REFUSED[fault] + "\n", done.stderr)
    assert not (work / "refused").exists()


BEFORE = {  # with the exit code, and what comes before the line that names the rank
    "MIXPREC_NATIVE=x": (2, r"error: MIXPREC_NATIVE=x: allowed: .*\n"),
    "PYTHONPATH={}": (1, r"Traceback (?s:.*)\nImportError: broken\n"),
}


@pytest.mark.parametrize("variable", first(0, BEFORE, 1))
def test_a_rank_that_ends_before_mpi_has_begun_ends_all(work, tmp_path, variable):
    (tmp_path / "chainer.py").write_text("raise ImportError('broken')")
    command = [sys.executable, "-m", "mixprec", "train", "--config", work / "small.yaml", "--out", tmp_path / "out"]
    environment = 'if [ "$PMI_RANK" = 1 ]; then export "$0"; fi; exec "$@"'
    setting = variable.format(f"{tmp_path}:{ROOT}")
    done = mpi.launch(2, ["sh", "-c", environment, setting, *command], work)
    code, words = BEFORE[variable]
    assert re.fullmatch(words + r"rank 1: ended before training began; all ranks end\n" + ABORTED, done.stderr)
    assert done.returncode == code


FAILED = {
    "raise:1:6": (1, r"rank 1: Traceback (?s:.*)\nZeroDivisionError: a fault\n\n" + ABORTED),
    "image:1:6": (1, r"rank \d: error: \S+/images/train/\S+: not an image .*; --resume auto goes on .*\n" + ABORTED),
    "kill:1:6": (9, r"rank 1: process \d+ on \S+ was killed, or has crashed; all ranks end\n"),
    "exit:0:6": (None, r"rank 0: process \d+ on \S+ was killed, or has crashed; all ranks end\n"),
    "full:0:6": (1, r"rank 0: error: \S+: cannot be written \(No space left on device\)\n" + ABORTED),
    "interrupt:1:6": (130, r"rank 1: interrupted; --resume auto goes on .*\n" + ABORTED),
}


@pytest.mark.parametrize("fault", first(0, FAILED, 4))
def test_the_end_of_one_rank_ends_all(work, tmp_path, fault):
    """And the run goes on from its last snapshot, as it does from any."""
    shutil.copytree(work / "images", tmp_path / "images")
    shutil.copy(work / "small.yaml", tmp_path)
    done = rank_runs.run(tmp_path, 2, "out", fault=fault)
    code, error = FAILED[fault]
    assert done.returncode == code if code else done.returncode
    assert re.fullmatch(error, done.stderr), done.stderr
    if fault in ("kill:1:6", "full:0:6"):
        resumed = rank_runs.run(tmp_path, 2, "out", arguments=RESUME)
        assert (resumed.returncode, resumed.stderr) == (0, "")


@pytest.mark.slow
def test_a_dry_run_says_what_each_rank_needs_and_writes_nothing(work):
    done = rank_runs.run(work, 2, "dry", arguments=("--dry-run",))
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^memory: a step takes about .* MiB for each of 2 ranks, and this machine ", done.stdout, re.M)
    assert done.stdout.count("dry run: all is well") == 1
    assert not (work / "dry").exists()
