"""The stages of scripts/check_gpu.py: their commands, as far as they run here, and what the summary quotes."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.bars import chainer_rows, config_rows, pytorch_rows
from benchmarks.gpu_check import gpu_tests, group, quotes, segments, stages
from benchmarks.study import study_arms, study_report, study_runs
from benchmarks.study.studies import PARITY
from mixprec.app import config as configs
from mixprec.app.commands import train as command
from models import MODELS
from scripts import benchmark, make_textures
from tests import ROOT
from tests.benchmarks import bars_record
from tests.optimizer.batch.test_cubin import ARCHITECTURES, compiler_for

pytestmark = pytest.mark.slow

RECORD = "benchmarks/results/gpu-tests.json"


@pytest.fixture
def stage_of(tmp_path):
    return {stage.name: stage for stage in stages.stages(tmp_path)}


def words_after(stage, option):
    return [word for before, word in zip(stage.command, stage.command[1:], strict=False) if before == option]


# Commands


def test_two_calls_hold_what_the_page_says(stage_of):
    """If each stage takes what is planned. A row that is late says how far it has come before its stage is ended."""
    waiting, calls = [stage for stage in stage_of.values() if not stage.on_request], []
    for budget in (190, 450):
        left, ran = budget - group.GRACE - group.GONE - stages.DEVICE.seconds, []
        for stage in waiting:
            if stage.seconds <= left:
                left -= stage.seconds
                ran.append(stage)
        waiting = [stage for stage in waiting if stage not in ran]
        calls.append([stage.name for stage in ran])
    names = list(stage_of)
    first, second = (names.index(name) + 1 for name in ("captured-32", "plain-32"))
    assert calls[0] == [*names[:first], "segments"]
    assert calls[1] == [*(name for name in names[first:second] if name != "segments"), "profile-32", "nccl"]
    assert stage_of["talk"].limit <= 540
    for stage in stage_of.values():
        assert all(float(limit) < stage.limit for limit in words_after(stage, "--prepare-limit"))


def test_the_rows_of_the_bars_are_there_on_a_gpu(stage_of):
    rows = [
        *chainer_rows.bars("@cupy:0"),
        *config_rows.bars("@cupy:0", arch="resnet50", batch=32, size=224),
        *pytorch_rows.bars("@cupy:0"),
    ]
    wanted = {row for stage in stage_of.values() for row in words_after(stage, "--rows")}
    assert wanted <= {row.name for row in rows}


def test_scripts_take_the_arguments_of_each_stage(stage_of, monkeypatch):
    """Up to the work itself."""
    commands, asked = benchmark.step_commands, {}

    def work(*arguments):
        raise ZeroDivisionError(*arguments)

    monkeypatch.setattr(commands.bars_run, "turns_of", work)
    monkeypatch.setattr(commands.rates, "measure", work)
    monkeypatch.setattr(command, "carry_out", work)
    mains = {"benchmark.py": benchmark.main, "train_imagenet.py": lambda words: command.main(words, MODELS)}
    for name, stage in stage_of.items():
        _, script, *words = stage.command
        if (main := mains.get(os.path.basename(script))) is not None:
            for file in words_after(stage, "--json"):
                os.makedirs(os.path.dirname(file))
            with pytest.raises(ZeroDivisionError) as caught:
                main(words)
            asked[name] = caught.value.args
    others = {"environment", "smoke", "parity", "tests-changed", "segments", "nccl", "tests-others"}
    assert asked.keys() == stage_of.keys() - others
    talk, _ = asked["talk"]
    assert (talk.batch, talk.blocks, talk.rows) == ([32, 64, 128, 256], 2, list(stages.TALK))
    for name in ("kfac", "offload", "two-sizes"):
        arguments, *_ = asked[name]
        config = configs.load(arguments.config, arguments.set)
        assert (config.data.format, config.capture.mode, config.cudnn.autotune) == ("synthetic", "auto", "heuristic")


def test_parity_takes_the_arguments(stage_of, monkeypatch, capsys):
    made, trained = stage_of["parity"].command[2].split(" && ")
    monkeypatch.setattr(make_textures, "make_textures", lambda out, **parameters: (3500, parameters["side"], True))
    make_textures.main(made.split()[2:])
    assert capsys.readouterr().out.endswith("/textures: 3500 training and 40 validation images\n")
    words = trained.split()
    os.makedirs(os.path.dirname(words[words.index("--json") + 1]))
    asked = []

    def run_all(study, todo, **arguments):
        asked.append((study, todo, arguments["jobs"]))
        raise ZeroDivisionError

    monkeypatch.setattr(study_runs, "run_all", run_all)
    monkeypatch.setattr(study_arms.Study, "checked_epochs", lambda study, networks: 12)  # without the pictures
    with pytest.raises(ZeroDivisionError):
        benchmark.main(words[2:])
    ((study, todo, jobs),) = asked
    assert [(arm.name, seed) for arm, seed in todo] == [(name, seed) for seed in range(4) for name in ("fp32", "fp16")]
    assert jobs == 8
    assert configs.load(study.config, study.settings).capture.mode == "auto"


def test_training_on_synthetic_images_here(stage_of, tmp_path):
    words = list(stage_of["two-sizes"].command)
    small = ("training.device=cpu", "model.arch=resnet8", "data.size=24", "data.resize=24", "data.synthetic_images=32")
    words += [word for setting in (*small, "progressive.sizes=[16]") for word in ("--set", setting)]
    (tmp_path / "two-sizes").mkdir()  # as the check does
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    with pytest.raises(ValueError, match="capture: 0 of 2 steps were launches of a graph"):  # on a CPU there is none
        quotes.training(tmp_path / "two-sizes", lines)
    lines = [line.replace("capture: 0 of", "capture: 1 of") for line in lines]
    first, second, captured = quotes.training(tmp_path / "two-sizes", lines)
    assert first.startswith("epoch 1: loss ")
    assert second.endswith(" images/s")
    assert captured.startswith("capture: 1 of 2 ")


def test_named_tests_are_there():
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "--collect-only", "-n", "0"]
    ended = subprocess.run([*command, *stages.SMOKE, stages.NCCL], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
    assert all(name in ended.stdout for name in (*stages.SMOKE, stages.NCCL))


# What the summary quotes


def test_quotes_of_bars(tmp_path):
    """A captured row that runs eagerly is a failure."""

    def quoted(*rows, **changed):
        (tmp_path / quotes.BARS).write_text(json.dumps(bars_record.gpu(*rows, **changed)))
        return quotes.bars(tmp_path, [])

    numbers = {"launches": 3, "syncs": 0, "peak": 3 << 30, "ratio": 6.0}
    row = bars_record.measured(256, stages.BY_RULE, "ablation", 8000.0, **numbers)
    failed = bars_record.failed(32, "PyTorch FP32", "peer", "no torch")
    lines = [
        bars_record.GPU_DEVICE,
        f"batch 256, {stages.BY_RULE}: 8000 images/s (7920 to 8160), 32.00 ms, peak 3072 MiB, 3 launches, 0 syncs, "
        "6.00 times the base",
        "batch 32, PyTorch FP32: no torch",
    ]
    assert quoted(row, failed) == lines
    assert quoted(row, failed, complete=False) == [*lines, "the run did not come to its end"]
    with pytest.raises(ValueError, match="PyTorch FP32: no torch"):
        quoted(failed)
    note = "slow; runs eagerly: two steps differ"
    with pytest.raises(ValueError, match=f"8000 images/s .*; {note}"):
        quoted({**row, "note": note}, bars_record.measured(256, "fp32.yaml", "config", 900.0))


@pytest.mark.parametrize(("mean", "good"), [(1.4, True), (-1.6, False)])
def test_quotes_of_parity(tmp_path, mean, good):
    accuracies = {"fp32": 60.0, "fp16": 60.0 + mean}
    runs = [study_runs.Run(arm, seed, (accuracies[arm],), 0, 1.0) for arm in accuracies for seed in (0, 1)]
    (tmp_path / quotes.PARITY).write_text(json.dumps(study_report.as_json(PARITY.only(["fp16"]), runs)))
    if good:
        assert quotes.parity(tmp_path, [])[2] == "fp16, against fp32: +1.40 points on average of +1.40, +1.40"
    else:
        with pytest.raises(ValueError, match="points on average of"):
            quotes.parity(tmp_path, [])


# Tests on a GPU

CASES = """
import pytest

pytestmark = pytest.mark.gpu

@pytest.mark.parametrize("n", range(3))
def test_good(n):
    pass

def test_wrong(request):
    assert 1 == 2, "not the same"

@pytest.mark.skip(reason="no")
def test_skipped():
    pass

@pytest.fixture
def broken():
    raise RuntimeError("no device")

def test_error(broken):
    pass

def test_warning():
    import warnings
    warnings.warn("this package is not pinned", DeprecationWarning)
"""
OTHER = """
import os, pytest

@pytest.mark.gpu
def test_it():
    if "DIE" in os.environ:
        os.kill(os.getppid(), 9)
"""
POOLING, LINKS = "tests/backends/cuda/test_pooling.py", "tests/links/test_gpu.py"


@pytest.fixture
def project(tmp_path):
    """A copy of what the stage needs, with two files of tests, one of them known to the record."""
    root = tmp_path / "project"
    texts = {
        f"benchmarks/gpu_check/{name}": (ROOT / "benchmarks" / "gpu_check" / name).read_text()
        for name in ("gpu_tests.py", "__init__.py")
    }
    texts |= {"benchmarks/__init__.py": "", RECORD: "{}", POOLING: CASES, LINKS: OTHER, "tests/test_cpu.py": ""}
    texts |= {"mixprec/backends/cuda/pooling.py": "1", "mixprec/backends/kernels/pooling_planes.cu": "2"}
    texts |= {"mixprec/backends/kernels/loss.cu": "3", "mixprec/links/one.py": "4"}
    texts["pytest.ini"] = "[pytest]\nmarkers = gpu: x\nfilterwarnings = error\n"
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / RECORD).write_text(json.dumps({**gpu_tests.digests(root), POOLING: "another"}))
    return root


def run_tests(root, which, **variables):
    folder = root.parent / f"tests-{which}"
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu_check.gpu_tests", folder, which]
    environment = {**os.environ, "PYTHONPATH": str(root), **variables}
    ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    return folder, ended


def test_changed_tests_run_and_passed_ones_are_the_next_record(project):
    (project / LINKS).write_text("import mixprec_no  # gpu")
    folder, ended = run_tests(project, "changed")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    counts, *failures = quotes.tests(folder, ended.stdout.splitlines())
    assert counts == "4 passed, 3 failed, 1 skipped"
    assert sorted(failures) == [
        f"{POOLING}::test_error, setup: E   RuntimeError: no device",
        f"{POOLING}::test_wrong, call: E   assert 1 == 2",
        f"{LINKS}, import: E   ModuleNotFoundError: No module named 'mixprec_no'",
    ]
    record = json.loads((project / RECORD).read_text())
    assert json.loads((folder / gpu_tests.PASSED).read_text()) == record  # files that have failed are not known yet
    (project / POOLING).write_text(CASES.replace("1 == 2", "2 == 2").replace('raise RuntimeError("no device")', "pass"))
    (project / LINKS).write_text(OTHER)
    folder, ended = run_tests(project, "changed")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (project / RECORD).write_bytes((folder / gpu_tests.PASSED).read_bytes())
    folder, ended = run_tests(project, "changed")
    assert (ended.returncode, quotes.tests(folder, ended.stdout.splitlines())) == (0, ["no such file of tests"])


def test_a_run_that_is_killed_says_what_it_has_seen(project):
    folder, ended = run_tests(project, "others", DIE="1")
    assert ended.returncode == -9
    assert not (folder / gpu_tests.PASSED).exists()
    found = {"passed": 1, "failed": 12, "skipped": 0, "complete": False, "failures": list("abcdefghijkl")}
    (folder / gpu_tests.OUTCOMES).write_text(json.dumps(found))
    counts = "1 passed, 12 failed, 0 skipped; pytest did not come to its end"
    assert quotes.tests(folder, []) == [counts, *"abcdefghij", "and 2 more"]
    (folder / gpu_tests.OUTCOMES).write_text(json.dumps({**found, "passed": 0}))
    with pytest.raises(ValueError, match="0 passed, 12 failed, 0 skipped"):
        quotes.tests(folder, [])


CHANGED = [
    ("mixprec/backends/cuda/pooling.py", [POOLING]),
    ("mixprec/backends/kernels/pooling_planes.cu", [POOLING]),
    ("mixprec/backends/kernels/loss.cu", []),
    ("mixprec/links/one.py", [LINKS]),
    (LINKS, [LINKS]),
]


@pytest.mark.parametrize(("changed", "files"), CHANGED)
def test_a_digest_is_of_the_tests_and_of_what_they_test(project, changed, files):
    before = gpu_tests.digests(project)
    assert sorted(before) == [POOLING, LINKS]
    (project / changed).write_text((project / changed).read_text() + "\n# gpu")
    after = gpu_tests.digests(project)
    assert [name for name, digest in after.items() if before[name] != digest] == files


@pytest.mark.cupy
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_copy_in_pieces_compiles_for_a_gpu(architecture):
    log = compiler_for()(segments.source(256), architecture)
    assert "meet" in log
    assert "copy_slices" in log
    assert "warning" not in log


@pytest.mark.gpu
def test_segments_on_a_gpu():
    assert segments.main() == 0
