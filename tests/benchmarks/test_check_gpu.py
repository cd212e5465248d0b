"""scripts/check_gpu.py: a run without a GPU, stages that fail, hang and crash, signals, and what the summary quotes."""

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import types

import pytest

from benchmarks.bars import configs, peer, plain
from benchmarks.gpu_check import check, group, properties, quotes, stages, surroundings
from benchmarks.gpu_check.stages import Stage
from mixprec.backends.cudnn import library
from mixprec.training.log_report import LOG
from scripts import benchmark, check_gpu
from tests import ROOT
from tests.benchmarks import bars_record
from tests.stand_ins import deviceless_cudnn

SCRIPT = ROOT / "scripts" / "check_gpu.py"
HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1"}  # a machine with a GPU behaves as one without
GPU_STAGES = ["properties", "tests", "bars", "profile", "train"]


def start(*arguments, **variables):
    return subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, arguments)],
        env={**os.environ, **HIDDEN, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def record_in(out):
    return json.loads((out / "summary.json").read_text())


def states_in(out):
    return {stage["name"]: stage["state"] for stage in record_in(out)["stages"]}


# The script here, where no GPU is to be seen


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder and the printed lines of a run of all stages."""
    out = tmp_path_factory.mktemp("check") / "new" / "folder"
    process = start("--out", out)
    printed, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    return out, printed.splitlines()


def test_without_a_gpu_it_comes_to_its_end(finished):
    out, printed = finished
    expected = dict.fromkeys(["device", "environment", *GPU_STAGES[:-1], "images", "train"], "no device")
    expected |= {"environment": "ok", "images": "skipped"}
    assert list(states_in(out).items()) == list(expected.items())
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert files == {
        "summary.json",
        "summary.txt",
        "device.log",
        "device/device.json",
        "environment.log",
        "environment/environment.txt",
    }
    record = record_in(out)
    assert record["format"] == "mixprec check_gpu 1"
    assert record["complete"] is True
    stage_of = {stage["name"]: stage for stage in record["stages"]}
    reason = json.loads((out / "device" / "device.json").read_text())["reason"]
    assert reason
    assert [stage_of[name]["note"] for name in GPU_STAGES] == [reason] * len(GPU_STAGES)
    assert stage_of["images"]["note"] == "not needed: no device"
    assert printed[-1] == f"nothing failed, but no GPU was looked at; the summary is {out / 'summary.txt'}"
    assert [line for line in printed if line.endswith(" ...")] == [
        "device: at most 2 min ...",
        "environment: at most 3 min ...",
    ]
    for name in GPU_STAGES:
        assert f"{name}: no device: {reason}" in printed


def test_the_text_says_the_same(finished):
    out, _ = finished
    lines = (out / "summary.txt").read_text().splitlines()
    stages = {line.split()[0]: line for line in lines[4:] if not line.startswith(" ")}
    assert list(stages) == list(states_in(out))
    for name, state in states_in(out).items():
        assert stages[name].split(None, 1)[1].startswith(state)


def test_the_environment(finished):
    out, _ = finished
    text = (out / "environment" / "environment.txt").read_text()
    titles = [line[3:] for line in text.splitlines() if line.startswith("== ")]
    assert titles == [
        "machine",
        "python -m mixprec",
        "nvidia-smi",
        "nvidia-smi -q",
        "nvidia-smi topo -m",
        "distributions",
    ]
    import numpy

    assert f"\nnumpy=={numpy.__version__}\n" in text
    assert "\nfree disk " in text
    assert any(line.startswith("memory") for line in record_in(out)["stages"][1]["quotes"])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--stage", "tset"], "--stage: found 'tset', expected one of environment, properties, tests, bars, profile, "),
        (["--out", "{used}"], "--out {used}: not empty; each check has a folder of its own"),
        (["--out", "{used}/file"], "--out {used}/file: File exists"),
        (["--stages"], "unrecognized arguments: --stages"),
    ],
)
def test_bad_arguments_are_one_line(tmp_path, arguments, error, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        check_gpu.main([argument.format(used=tmp_path) for argument in arguments])
    printed, errors = capsys.readouterr()
    assert ended.value.code == 2
    assert printed == ""
    (line,) = errors.splitlines()
    assert line.startswith(f"error: {error.format(used=tmp_path)}")


def line_of(process, beginning):
    for line in process.stdout:
        if line.startswith(beginning):
            return
    raise AssertionError(f"the process ended without a line {beginning}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_stage_and_keeps_the_summary(tmp_path, number):
    out = tmp_path / "out"
    process = start("--out", out, "--stage", "train", "--stage", "environment")
    line_of(process, "device: at most")
    process.send_signal(number)
    printed, errors = process.communicate()
    assert (process.returncode, errors) == (128 + number, "")
    assert states_in(out) == {
        "device": "interrupted",
        "environment": "skipped",
        "images": "skipped",  # train needs it, so that it is chosen, too
        "train": "skipped",
    }
    assert record_in(out)["complete"] is False
    assert record_in(out)["stages"][0]["note"] == number.name
    assert printed.splitlines()[-1].startswith("not well: device")


def test_a_killed_check_leaves_what_is_known(tmp_path):
    out = tmp_path / "out"
    process = start("--out", out, "--stage", "properties", "--stage", "environment")
    line_of(process, "environment: at most")
    process.kill()
    process.communicate()
    assert states_in(out) == {"device": "no device", "environment": "running", "properties": "waiting"}
    assert record_in(out)["complete"] is False
    assert "environment  running" in (out / "summary.txt").read_text()


def test_a_driver_that_ends_whoever_asks_does_not_end_the_check(tmp_path):
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text("import os\n\nos._exit(99)\n")
    process = start("--out", tmp_path / "out", "--stage", "properties", PYTHONPATH=str(tmp_path))
    printed, errors = process.communicate()
    assert (process.returncode, errors) == (1, "")
    assert states_in(tmp_path / "out") == {"device": "failed", "properties": "skipped"}
    assert "exit status 99" in printed


# Stages of tests


def shell(name, script, limit=60.0, **keywords):
    return Stage(name, ("sh", "-c", script), limit, **keywords)


@pytest.fixture
def run(tmp_path):
    """Runs stages in a folder; returns their results by name, and the printed lines."""
    out = tmp_path / "out"
    out.mkdir()

    def run(*fakes, answer='{"device": "@cupy:0", "reason": "GPU 0"}', asking=None, root=tmp_path):
        printed = []
        asking = asking or shell("device", f"echo '{answer}' > {out}/device/device.json")
        results = check.check(
            list(fakes), asking, out, root=root, interruption=group.Interruption(), say=printed.append, grace=0.3
        )
        assert [stage["state"] for stage in record_in(out)["stages"]] == [result.state for result in results]
        return {result.name: result for result in results}, printed

    run.out = out
    return run


def is_gone(number):
    """Whether a process has ended; one that nobody has waited for has."""
    try:
        text = pathlib.Path("/proc", str(number), "stat").read_text()
    except FileNotFoundError:
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


STUBBORN = "trap '' TERM; while :; do sleep 0.05; done"


def test_stages_survive_each_other(run, tmp_path):
    results, printed = run(
        shell("fails", "echo first; printf 'half a line'; exit 3"),
        shell("hangs", f"({STUBBORN}) & echo $! > child; echo begun; {STUBBORN}", limit=2.0),
        shell("crashes", "kill -SEGV $$"),
        shell("bytes", "printf 'bad \\377 byte\\n\\n'", quote=quotes.last_line),
        Stage("absent", (str(tmp_path / "no-program"),), 60.0),
        shell("good", "echo fine", quote=quotes.last_line),
    )
    assert {name: (result.state, result.status) for name, result in results.items()} == {
        "fails": ("failed", 3),
        "hangs": ("timed out", -signal.SIGKILL),
        "crashes": ("failed", -signal.SIGSEGV),
        "bytes": ("ok", 0),
        "absent": ("failed", None),
        "good": ("ok", 0),
    }
    assert results["fails"].note == "exit status 3; last line: half a line"
    assert results["hangs"].note == "after 2 s; last line: begun"
    assert results["crashes"].note == "ended by SIGSEGV; last line: no output"
    assert results["bytes"].quotes == ["bad \N{REPLACEMENT CHARACTER} byte"]
    assert results["absent"].note.startswith("cannot be started: ")
    assert results["good"].quotes == ["fine"]
    assert is_gone((tmp_path / "child").read_text().strip())
    assert (run.out / "fails.log").read_text() == "first\nhalf a line"
    assert "hangs: at most 2 s ..." in printed
    assert f"    see {run.out / 'fails.log'}" in printed


def test_what_a_stage_leaves_running_is_ended(run, tmp_path):
    results, _ = run(shell("leaves", f"({STUBBORN}) & echo $! > child"))
    assert results["leaves"].state == "ok"
    assert is_gone((tmp_path / "child").read_text().strip())


def test_a_stage_without_its_results_has_failed(run):
    def quote(folder, log):
        raise ValueError("no snapshot")

    results, _ = run(shell("first", "true", quote=quote), shell("second", "exit 1", quote=quote))
    assert (results["first"].state, results["first"].note) == ("failed", "ended well, but: ValueError: no snapshot")
    assert results["second"].note == "exit status 1; last line: no output"


CPU = shell("cpu", "true")
GPU = shell("gpu", "true", needs_device=True)
NEEDED = shell("needed", "true")
USER = shell("user", "true", needs_device=True, after="needed")


def test_with_a_device_all_run(run):
    results, _ = run(CPU, GPU, NEEDED, USER)
    assert {result.state for result in results.values()} == {"ok"}
    assert list(results) == ["device", "cpu", "gpu", "needed", "user"]


@pytest.mark.parametrize(
    ("script", "state", "others", "note"),
    [
        ("""echo '{"device": null, "reason": "no driver"}' > out/device/device.json""", "no device", "no device", ""),
        ("kill -SEGV $$", "failed", "skipped", "ended by SIGSEGV; last line: no output"),
        (STUBBORN, "timed out", "skipped", "after 0.5 s; last line: no output"),
        ("echo '{' > out/device/device.json", "failed", "skipped", "ended well, but: JSONDecodeError: "),
        ("true", "failed", "skipped", "ended well, but: FileNotFoundError: "),
    ],
)
def test_without_a_device(run, script, state, others, note):
    results, _ = run(CPU, GPU, NEEDED, USER, asking=shell("device", script, limit=0.5 if note[:5] == "after" else 60))
    found = {name: result.state for name, result in results.items()}
    assert found == {"device": state, "cpu": "ok", "gpu": others, "needed": "skipped", "user": others}
    assert results["device"].note.startswith(note)
    if others == "no device":
        assert results["gpu"].note == "no driver"
        assert results["needed"].note == "not needed: no device"
    else:
        assert results["gpu"].note == f"whether there is a device is not known: device: {state}"
        assert results["needed"].note == "not needed: device unknown"


def test_no_gpu_is_asked_for_if_no_stage_needs_one(run):
    results, _ = run(CPU, NEEDED, asking=shell("device", "exit 1"))
    assert {name: result.state for name, result in results.items()} == {"cpu": "ok", "needed": "ok"}


def test_a_stage_whose_forerunner_failed_is_skipped(run):
    results, _ = run(shell("needed", "exit 1"), USER)
    assert (results["user"].state, results["user"].note) == ("skipped", "needs needed: failed")
    assert not results["user"].bad


def test_chosen_stages_keep_their_order_and_bring_what_they_need():
    found = [stage.name for stage in check.chosen([CPU, GPU, NEEDED, USER], ["user", "gpu"])]
    assert found == ["gpu", "needed", "user"]
    with pytest.raises(ValueError, match="found 'x', expected one of cpu, gpu, needed, user"):
        check.chosen([CPU, GPU, NEEDED, USER], ["cpu", "x"])


TRAINING = "trap 'echo stopped; exit 0' TERM; echo begun; {}; while :; do sleep 0.05; done"


def test_a_stage_without_an_end_is_stopped_some_time_after_it_has_begun(run, tmp_path):
    stop = group.Stop(tmp_path / "begun", 0.2)
    results, _ = run(
        shell("begins", TRAINING.format("touch begun"), stop=stop, quote=quotes.last_line),
        shell("never", TRAINING.format(":"), stop=group.Stop(tmp_path / "never", 0.0), limit=2.0),
    )
    assert (results["begins"].state, results["begins"].quotes) == ("ok", ["stopped"])
    assert (results["never"].state, results["never"].status) == ("timed out", 0)  # by the SIGTERM at its limit


def test_a_second_signal_does_not_wait(tmp_path, monkeypatch):
    """Time stands still, so that nothing but the second signal ends what ignores SIGTERM."""
    interruption, calls = group.Interruption(), []
    real, ready = group.time.sleep, tmp_path / "ready"

    def sleep(seconds):
        calls.append(seconds)
        assert len(calls) < 1000
        if ready.exists() and len(interruption.signals) < 2:
            interruption.signals.append(signal.SIGINT)
        real(seconds)

    monkeypatch.setattr(group, "time", types.SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    command = ["sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 0.05; done"]
    ended = group.run(command, tmp_path / "log", folder=tmp_path, limit=1.0, interruption=interruption)
    assert ended == group.Ended(-signal.SIGKILL, 0.0, timed_out=False, interrupted=True)


def test_an_ignored_sighup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with group.Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.signals == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# The commands of the real stages


@pytest.fixture
def command_of(tmp_path):
    """Returns the command of a stage as a list of words."""
    return lambda name: list({stage.name: stage for stage in stages.stages(ROOT, tmp_path)}[name].command)


def run_here(command):
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **HIDDEN}, capture_output=True, text=True)


def test_images_and_training(command_of, run, tmp_path):
    """The commands are right; a training that has begun is stopped, in small and on the CPU as on a GPU."""
    images, training = command_of("images"), command_of("train")
    images[images.index("10000")] = "100"
    ended = run_here(images)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("/images/textures: 70 training and 30 validation images\n")
    ended = run_here(training)
    (line,) = ended.stderr.splitlines()  # the device is looked for as soon as the config has turned out to be right
    assert ended.returncode == 2
    assert "90ep.yaml: training.device: found 'gpu', but " in line

    pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    training[training.index("training.device=gpu")] = "training.device=cpu"
    small = ("capture=false", "model.arch=resnet8", "training.batch_size=16", "data.size=32", "data.resize=32")
    training[-1] = str(run.out / "train")
    training += [word for setting in (*small, "data.threads=1") for word in ("--set", setting)]
    stop = group.Stop(run.out / "train" / quotes.LOG, 0.1)
    stage = Stage("train", tuple(training), 300.0, quotes.training, stop=stop)
    result = run(stage, root=ROOT)[0]["train"]
    assert (result.state, result.status) == ("ok", 0), (run.out / "train.log").read_text()
    rate, stopped, snapshot = result.quotes
    assert " images/s in training, " in rate
    assert stopped.startswith("stopped by SIGTERM ")
    assert snapshot == f"snapshot: {next((run.out / 'train').glob('snapshot_iter_*.npz')).name}"


def test_pytest_takes_the_arguments(command_of):
    ended = run_here([*command_of("tests"), "--collect-only", "tests/backends/test_gpu.py"])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "<Module test_gpu.py>" in ended.stdout


def test_the_rows_of_the_bars_are_there_on_a_gpu():
    bars = [
        *plain.bars("@cupy:0"),
        *configs.bars("@cupy:0", arch="resnet50", batch=32, size=224),
        *peer.bars("@cupy:0"),
    ]
    assert set(stages.ROWS) <= {bar.name for bar in bars}


@pytest.mark.parametrize("name", ["bars", "profile"])
def test_the_benchmark_takes_the_arguments(command_of, name, capsys):
    _, script, subcommand, *arguments = command_of(name)
    assert script == benchmark.__file__
    with pytest.raises(SystemExit) as ended:
        benchmark.main([subcommand, "--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for argument in arguments:
        if argument.startswith("--"):
            assert f" {argument} " in printed


class Properties:
    def __init__(self, source):
        self._text = "{\n}\n" if source == 0 else source

    def serialize(self):
        return self._text


def test_the_properties_are_written_as_cudnn_serializes_them(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "load", lambda: types.SimpleNamespace(create_device_properties=Properties))
    properties.main(tmp_path / "device.json")
    assert (tmp_path / "device.json").read_text() == "{\n}\n"


def _serialized(driver, text, path):
    cudnn = deviceless_cudnn.load(driver)
    first = cudnn.create_device_properties(text)
    created = cudnn.create_device_properties
    library.load = lambda: types.SimpleNamespace(
        create_device_properties=lambda source: first if source == 0 else created(source)
    )
    properties.main(path)


@pytest.mark.plans
def test_the_real_cudnn_writes_files_as_the_tests_have_them(tmp_path):
    try:
        library.load()
    except library.CudnnMissing as error:
        pytest.skip(f"{error}; make test-plans installs it")
    driver = deviceless_cudnn.compile_driver(tmp_path)
    text = (deviceless_cudnn.FOLDER / "dev_H200.json").read_text()
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(_serialized, driver, text, tmp_path / "device.json").result()
    assert (tmp_path / "device.json").read_text() == text


def test_a_driver_that_does_not_answer(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "path"
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text('#!/bin/sh\n[ "$1" = -q ] && exec sleep 60\necho "smi $*"\n[ -z "$1" ]\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(surroundings, "_LIMIT", 1)
    monkeypatch.setattr(surroundings, "_COMMANDS", surroundings._COMMANDS[1:])
    assert surroundings.main(str(tmp_path / "environment.txt")) == 1
    text = (tmp_path / "environment.txt").read_text()
    assert "== nvidia-smi\nsmi\n" in text
    assert "== nvidia-smi -q\nno answer in 1 s\n" in text
    assert "== nvidia-smi topo -m\nsmi topo -m\n" in text
    assert "\n== distributions\n" in text
    assert capsys.readouterr().out == "nvidia-smi -q: no answer in 1 s\nnvidia-smi topo -m: smi topo -m\n"


# What the summary quotes

CASES = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_good(n):
    pass

def test_with_words(request):
    assert 1 == 2, "not the same"

@pytest.mark.skip(reason="no")
def test_skipped():
    pass

@pytest.fixture
def broken():
    raise RuntimeError("no device")

def test_error(broken):
    pass
"""


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """A folder with what pytest leaves with the arguments of the stage, and its log."""
    folder = tmp_path_factory.mktemp("pytest")
    (folder / "test_cases.py").write_text(CASES)
    stage = {stage.name: stage for stage in stages.stages(ROOT, folder.parent)}["tests"]
    command = [word for word in stage.command if word not in ("-m", "gpu") and not word.startswith("--junit")]
    command = [sys.executable, "-m", *command[1:], f"--junitxml={folder / quotes.JUNIT}", "-c", os.devnull]
    with open(folder / "log", "wb") as log:
        ended = subprocess.run([*command, "--rootdir", folder, "test_cases.py"], cwd=folder, stdout=log)
    assert ended.returncode == 1
    return folder


def test_quotes_of_tests(tested):
    counts, *failures = quotes.tests(tested, tested / "log")
    assert counts == "3 passed, 2 failed, 1 skipped"
    assert failures == [
        "test_cases::test_with_words: AssertionError: not the same",
        'test_cases::test_error: failed on setup with "RuntimeError: no device"',
    ]


def test_quotes_of_tests_that_were_killed(tested, tmp_path):
    """From the log, whole or broken off while a test was running."""
    log = tested / "log"
    assert quotes.tests(tmp_path, log) == [
        "3 passed, 2 failed, 1 skipped",
        "test_cases.py::test_with_words",
        "test_cases.py::test_error",
        "pytest did not come to its end; these are counts of its log",
    ]
    text = log.read_text()
    (tmp_path / "log").write_text(text[: text.index("SKIPPED")])
    assert quotes.tests(tmp_path, tmp_path / "log") == [
        "3 passed, 1 failed",
        "test_cases.py::test_with_words",
        "test_cases.py::test_skipped was running",
        "pytest did not come to its end; these are counts of its log",
    ]
    for wrong in ("", "ImportError"):
        (tmp_path / "log").write_text(wrong)
        with pytest.raises(ValueError, match="no test has run"):
            quotes.tests(tmp_path, tmp_path / "log")


def test_quotes_of_bars(tmp_path):
    record = bars_record.gpu()
    record["settings"]["batch"] = [32, 256]
    record["rows"] = [row for row in record["rows"] if row["batch"] in (32, 256)]
    path = tmp_path / "bars.json"
    path.write_text(json.dumps(record))
    lines = [
        bars_record.GPU_DEVICE,
        "batch 256, best of plain: plain Chainer FP32, cuDNN, 774 images/s, 1.00 times the base",
        "batch 256, best of mixprec: static_graph.yaml, 8199 images/s, 10.59 times the base",
        "batch 256, best of peer: PyTorch CUDA graph, 5831 images/s, 7.53 times the base",
        "batch 32, best of plain: plain Chainer FP32, cuDNN, 477 images/s, 1.00 times the base",
        "batch 32, best of mixprec: static_graph.yaml, 5053 images/s, 10.59 times the base",
        "batch 32, best of peer: PyTorch CUDA graph, 3593 images/s, 7.53 times the base",
        "4 of 46 rows not measured, first plain Chainer mixed16, batch 32: "
        "ValueError: Chainer says a lot about what it lacks",
    ]
    assert quotes.bars(tmp_path, None) == lines
    path.write_text(json.dumps({**record, "complete": False}))
    assert quotes.bars(tmp_path, None) == [*lines, "the run did not come to its end"]
    path.write_text(json.dumps({**record, "rows": [bars_record.failed(32, "PyTorch FP32", "peer", "no torch")]}))
    with pytest.raises(ValueError, match="1 of 1 rows not measured, first PyTorch FP32, batch 32: no torch"):
        quotes.bars(tmp_path, None)
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"bars\.json: format: missing"):
        quotes.bars(tmp_path, None)


def test_quotes_of_training(tmp_path):
    assert quotes.LOG == LOG
    log = tmp_path / "train.log"
    log.write_text("epoch 1\nstopped by SIGTERM at the end of iteration 90\n")
    entries = [{"epoch": epoch, "images/s": rate} for epoch, rate in enumerate((10.0, 400.0, 300.0, 500.0), 1)]
    (tmp_path / LOG).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    with pytest.raises(ValueError, match="SIGTERM has left no snapshot"):
        quotes.training(tmp_path, log)
    (tmp_path / "snapshot_iter_90.npz").write_text("")
    assert quotes.training(tmp_path, log) == [
        "400 images/s in training, median of epochs 2 to 4; evaluation, plots and snapshots not counted",
        "stopped by SIGTERM at the end of iteration 90",
        "snapshot: snapshot_iter_90.npz",
    ]


def test_quotes_of_properties(tmp_path):
    shutil.copy(deviceless_cudnn.FOLDER / "dev_B200.json", tmp_path / properties.NAME)
    first, second = quotes.properties(tmp_path, None)
    assert first == "NVIDIA B200, compute capability 10.0"
    assert f"NAME: {deviceless_cudnn.GPUS['B200']} in" in second
