"""What benchmarks.gpu_check makes of results: the archive, what the summary quotes, wheels; and the real commands."""

import concurrent.futures
import contextlib
import itertools
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import types
import zipfile

import pytest

from benchmarks.bars import config_rows, pytorch_rows
from benchmarks.gpu_check import (
    archive,
    group,
    machine_report,
    properties,
    quotes,
    smoke,
    smoke_nccl,
    stage_summary,
    stages,
    tests_at_once,
    wheels,
)
from benchmarks.profile import kinds
from mixprec.backends.cudnn import library
from mixprec.training.log_report import LOG
from scripts import benchmark
from tests import ROOT
from tests.benchmarks import bars_record
from tests.stand_ins import compiled, deviceless_cudnn
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)
from tests.stand_ins.nccl_on_host import HostNccl

HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1"}

# The archive


def noise(size):
    return os.urandom(size)


def test_an_archive_is_always_small_enough(tmp_path, monkeypatch):
    """First what is cached is left out, then the middle of logs, in the end all but logs and summaries."""
    assert archive.LARGEST < 16 << 20
    monkeypatch.setattr(archive, "LARGEST", archive.LARGEST >> 4)
    monkeypatch.setattr(archive, "_LOG_SIZES", [size >> 4 for size in archive._LOG_SIZES])
    texts = {stage_summary.JSON: b"{}", stage_summary.TEXT: b"text"}
    small = archive.packed({**texts, "a/b.json": b"1"}, {"a.log": b"log"}, {"mixprec/x": b"2"})
    (tmp_path / "small").write_bytes(small)
    members = archive.unpacked(tmp_path / "small")
    assert members == {**texts, "a/b.json": b"1", "a.log": b"log", "cache/mixprec/x": b"2"}
    logs, found = {f"{number}.log": noise(1 << 16) for number in range(15)}, []
    for extra_logs, files in ((0, 0), (30, 0), (30, 20)):
        more = {f"more {number}.log": noise(1 << 16) for number in range(extra_logs)}
        large = {f"a/{number}.json": noise(1 << 16) for number in range(files)}
        data = archive.packed({**texts, **large}, {**logs, **more}, {"mixprec/x": noise(3 << 16)})
        assert len(data) <= archive.LARGEST
        (tmp_path / "large").write_bytes(data)
        members = archive.unpacked(tmp_path / "large")
        assert {stage_summary.JSON, stage_summary.TEXT, *logs, *more} <= set(members)
        counts = [sum(name.startswith(folder) for name in members) for folder in ("cache/", "a/")]
        found.append((round(len(members["0.log"]) / 2**10), *counts))
    assert found == [(64, 0, 0), (8, 1, 0), (1, 0, 0)]
    log = archive.cut(bytes(100) + b"end", 40)
    assert log == bytes(20) + b"\n... 63 bytes are left out ...\n" + bytes(17) + b"end"


def test_only_small_files_of_text_are_collected(tmp_path):
    for name in ("a.json", "deep/er/b.xml", "c.png", "snapshot_iter_1.npz", "d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "large.json").write_bytes(bytes(3 << 20))
    (tmp_path / "link.json").symlink_to("/etc/passwd")
    assert archive.collect(tmp_path) == {name: name.encode() for name in ("a.json", "d.txt", "deep/er/b.xml")}
    assert archive.collect(tmp_path / "absent") == {}


def test_what_is_cached_goes_home_as_far_as_there_is_room(tmp_path):
    """Choices, then of the rest what was there first."""
    sizes = {"cupy/a.cubin": 4, "cupy/b.cubin": 1, "mixprec/plans/b": 7, "mixprec/plans/a": 7}
    sizes |= {"mixprec/kernels/c": 1, "mixprec/x.json": 3, "pip/x": 1}
    for age, (name, size) in enumerate(sizes.items()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size << 20))
        os.utime(tmp_path / name, (age, age))
    found = ["mixprec/x.json", "mixprec/plans/b", "mixprec/kernels/c", "cupy/a.cubin", "cupy/b.cubin"]
    assert list(archive.cached(tmp_path)) == found


def test_members_stay_in_their_folder(tmp_path):
    archive.write_files(tmp_path / "in", {"a/b": b"1", "../out": b"2", "/tmp/mixprec-no": b"3"})
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "a", "b"]
    assert not os.path.exists("/tmp/mixprec-no")


# Wheels


def wheel(folder, name, module):
    with zipfile.ZipFile(folder / name, "w") as file:
        file.writestr(f"{module}.py", "VALUE = 1\n")


def test_wheels_are_unpacked_where_the_package_is_missing(tmp_path):
    number = "".join(map(str, sys.version_info[:2]))
    for name in ("py3-none-any", "py2.py3-none-any", f"cp{number}-cp{number}-manylinux_2_17_x86_64", "cp38-abi3-any"):
        wheel(tmp_path, f"mixprec_absent_{len(name)}-1.0-{name}.whl", f"fits{len(name)}")
    wheel(tmp_path, "mixprec_odd-1.0-cp27-cp27m-any.whl", "odd")
    wheel(tmp_path, "numpy-9.9-py3-none-any.whl", "numpy")
    taken, left = wheels.unpack(tmp_path, tmp_path / "site")
    assert len(taken) == 4
    assert all(re.fullmatch(r"mixprec-absent-\d+==1\.0", title) for title in taken)
    assert left == [f"mixprec-odd==1.0: made for cp27, and this is Python {sys.version_info[0]}.{sys.version_info[1]}"]
    assert sorted(path.name[:4] for path in (tmp_path / "site").iterdir()) == ["fits"] * 4
    assert wheels.unpack(tmp_path / "no folder", tmp_path / "site") == ([], [])


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

def test_warning():
    import warnings
    warnings.warn("nobody has pinned this", DeprecationWarning)
"""


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """A folder with what pytest leaves with the options of the stage, and the lines that it has printed."""
    folder = tmp_path_factory.mktemp("pytest")
    (folder / "test_cases.py").write_text(CASES)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings =\n    error\n")
    options = [word for word in tests_at_once.options() if word not in ("-m", "gpu")]
    command = [sys.executable, "-m", "pytest", *options, f"--junitxml={folder / quotes.JUNIT}", "test_cases.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return folder, ended.stdout.splitlines()


def test_quotes_of_tests(tested):
    """A warning is no error, whatever the project's own settings say."""
    counts, *failures = quotes.tests(*tested)
    assert counts == "4 passed, 2 failed, 1 skipped"
    assert sorted(failures) == [
        'test_cases::test_error: failed on setup with "RuntimeError: no device"',
        "test_cases::test_with_words: AssertionError: not the same",
    ]
    assert any("nobody has pinned this" in line for line in tested[1])


def test_quotes_of_tests_that_were_killed(tested, tmp_path):
    """From the log, whole or broken off; a failure stands there with its reason before the run is over."""
    lines = tested[1]
    counts, *failures, end = quotes.tests(tmp_path, lines)
    assert sorted(counts.split(", ")) == ["1 skipped", "2 failed", "4 passed"]
    assert sorted(failures) == ["test_cases.py::test_error", "test_cases.py::test_with_words"]
    assert end == "pytest did not come to its end; these are counts of its log"
    ended = next(place for place, line in enumerate(lines) if "= FAILURES =" in line or "= ERRORS =" in line)
    assert any("AssertionError: not the same" in line for line in lines[:ended])
    third = [place for place, line in enumerate(lines) if re.match(r"\[gw", line)][2]
    counts, *_ = quotes.tests(tmp_path, lines[: third + 1])
    assert sum(int(word.split()[0]) for word in counts.split(", ")) == 3
    for wrong in ([], ["ImportError"]):
        with pytest.raises(ValueError, match="no test has run"):
            quotes.tests(tmp_path, wrong)


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
    assert quotes.bars(tmp_path, []) == lines
    path.write_text(json.dumps({**record, "complete": False}))
    assert quotes.bars(tmp_path, []) == [*lines, "the run did not come to its end"]
    path.write_text(json.dumps({**record, "rows": [bars_record.failed(32, "PyTorch FP32", "peer", "no torch")]}))
    with pytest.raises(ValueError, match="1 of 1 rows not measured, first PyTorch FP32, batch 32: no torch"):
        quotes.bars(tmp_path, [])
    killed = "no answer within 170 s; it had come to: "
    killed += "imports, 12 kernels compiled, 41 plans of cuDNN built, 0 engines measured"
    rows = [bars_record.failed(256, stages.UNTUNED, "ablation", killed)]
    path.write_text(json.dumps({**record, "rows": rows}))
    with pytest.raises(ValueError, match=f"first {stages.UNTUNED}, batch 256: {killed}$"):
        quotes.bars(tmp_path, [])
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"bars\.json: format: missing"):
        quotes.bars(tmp_path, [])


def test_the_row_without_autotuning_counts_as_one_of_mixprec(tmp_path):
    record = bars_record.gpu()
    record["rows"] = [
        {**row, "name": stages.UNTUNED, "group": "ablation"}
        for row in record["rows"]
        if row["name"] == "static_graph.yaml"
    ]
    (tmp_path / "bars.json").write_text(json.dumps(record))
    assert f"batch 256, best of mixprec: {stages.UNTUNED}, 8199 images/s" in "\n".join(quotes.bars(tmp_path, []))


def test_quotes_of_a_profile(tmp_path):
    """Each kind has its line, and what is in no call too; beside it the step as it was captured."""
    assert sorted(name for names in quotes._KINDS.values() for name in names) == sorted(kinds.KINDS)
    own, captured = tmp_path / "profile", tmp_path / quotes.CAPTURED
    own.mkdir()
    rows = [("conv fprop", 53, 6800.0, 5000.0), ("loss", 3, 40.0, 1.0), ("linear", 3, 35.0, 1.5)]
    found = [dict(zip(("kind", "calls", "microseconds", "floor"), row, strict=True)) for row in rows]
    (own / quotes.PROFILE).write_text(json.dumps({"step": 50000.0, "rest": 400.0, "kinds": found}))
    lines = [
        "an eager step of 50.00 ms",
        "fprop: 53 calls, 6.800 ms, at least 5.000",
        "loss and the rest: 6 calls, 0.075 ms, at least 0.003",
        "in no call (copies, other kernels, gaps): 0.400 ms",
    ]
    assert quotes.profile(own, []) == lines
    captured.mkdir()
    record = bars_record.gpu()
    record["rows"] = [row for row in record["rows"] if (row["batch"], row["name"]) == (256, "static_graph.yaml")]
    (captured / quotes.BARS).write_text(json.dumps(record))
    milliseconds = record["rows"][0]["milliseconds"]
    text = f"a captured step of {milliseconds:.2f} ms, {milliseconds - 6.875:+.2f} beside all calls: copies, gaps"
    assert quotes.profile(own, []) == [*lines, text]


def test_quotes_of_training(tmp_path):
    assert quotes.LOG == LOG
    printed = ["epoch 1", "stopped by SIGTERM at the end of iteration 90"]
    entries = [{"epoch": epoch, "images/s": rate} for epoch, rate in enumerate((10.0, 400.0, 300.0, 500.0), 1)]
    (tmp_path / LOG).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    with pytest.raises(ValueError, match="SIGTERM has left no snapshot"):
        quotes.training(tmp_path, printed)
    (tmp_path / "snapshot_iter_90.npz").write_text("")
    assert quotes.training(tmp_path, printed) == [
        "400 images/s in training, median of epochs 2 to 4; evaluation, plots and snapshots not counted",
        "stopped by SIGTERM at the end of iteration 90",
        "snapshot: snapshot_iter_90.npz",
    ]


def test_quotes_of_properties(tmp_path):
    shutil.copy(deviceless_cudnn.FOLDER / "dev_B200.json", tmp_path / properties.NAME)
    first, second = quotes.properties(tmp_path, [])
    assert first == "NVIDIA B200, compute capability 10.0"
    assert f"NAME: {deviceless_cudnn.GPUS['B200']} in" in second


def test_a_driver_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch, capsys):
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "smi $*"\n[ "$1" = topo ] && exec sleep 60\n[ -z "$1" ]\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (_, _, matters), _, (topo, _, without) = machine_report._COMMANDS
    assert (matters, without) == (True, False)
    monkeypatch.setattr(machine_report, "_COMMANDS", ((("nvidia-smi",), 5, True), (topo, 1, False)))
    assert machine_report.main(tmp_path) == 0
    printed = capsys.readouterr().out
    assert "== nvidia-smi\nsmi\n" in printed
    assert "== nvidia-smi topo -m\nno answer in 1 s\n" in printed
    monkeypatch.setattr(machine_report, "_COMMANDS", (((*topo, "x"), 1, True),))
    assert machine_report.main(tmp_path) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "nvidia-smi topo -m x: no answer in 1 s"


# The commands of the real stages


@pytest.fixture
def stage_of(tmp_path):
    return {stage.name: stage for stage in stages.stages(ROOT, tmp_path)}


def run_here(command, **variables):
    environment = {**os.environ, **HIDDEN, **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_what_is_worth_most_comes_first(stage_of):
    names = list(stage_of)
    order = ["environment", "smoke-kernel", "mixprec-256", "mixprec-32", "profile", "pytorch-256", "pytorch-32"]
    order += ["tuned-256", "tuned-32", "tests", "train"]
    assert [name for name in names if name in order] == order
    first = names[: names.index("profile") + 1]
    assert sum(stage_of[name].limit for name in first if not name.startswith("smoke-")) + 60 <= 700


def test_pytest_takes_the_arguments(stage_of):
    *command, folder = stage_of["tests"].command
    assert folder == "tests"
    ended = run_here([*command, "--collect-only", "tests/links/test_gpu.py"])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "<Module test_gpu.py>" in ended.stdout


def test_the_rows_of_the_bars_are_there_on_a_gpu(stage_of):
    bars = [*config_rows.bars("@cupy:0", arch="resnet50", batch=32, size=224), *pytorch_rows.bars("@cupy:0")]
    rows = {
        stage.command[stage.command.index("--rows") + 1] for stage in stage_of.values() if "--rows" in stage.command
    }
    assert rows == {stages.UNTUNED, stages.EVERYTHING, stages.PYTORCH}
    assert rows <= {bar.name for bar in bars}


@pytest.mark.parametrize("name", ["mixprec-256", "pytorch-32", "tuned-32", "profile"])
def test_benchmarks_take_the_arguments(stage_of, name, monkeypatch):
    """Those of each stage, up to the work itself."""
    command = stage_of[name].command
    os.makedirs(os.path.dirname(command[-1]))
    asked = []
    monkeypatch.setattr(
        benchmark.step_commands.bars_run, "turns_of", lambda settings, specifier: asked.append(settings) or 1 / 0
    )
    monkeypatch.setattr(benchmark.step_commands.rates, "measure", lambda specifier: asked.append(specifier) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        benchmark.main(list(command[2:]))
    assert len(asked) == 1
    if name == "mixprec-256":
        assert (asked[0].batch, asked[0].prepare_limit, asked[0].limit, asked[0].no_rates) == ([256], 170.0, 25.0, True)


def test_training_needs_no_loader_and_no_images(stage_of, tmp_path):
    command = list(stage_of["train"].command)
    ended = run_here(command)
    (line,) = ended.stderr.splitlines()  # the device is looked for as soon as the config has turned out to be right
    assert ended.returncode == 2
    assert "90ep.yaml: training.device: found 'gpu', but " in line
    small = ("training.device=cpu", "capture=false", "model.arch=resnet8", "data.size=32", "data.resize=32")
    small += ("training.batch_size=16", "data.synthetic_images=64")
    command += [word for setting in small for word in ("--set", setting)]
    stop, output = group.Stop(tmp_path / "train" / LOG, 0.1), group.Output()
    keywords = {"folder": ROOT, "limit": 300.0, "interruption": group.Interruption(), "stop": stop}
    ended = group.run(command, output, **keywords)
    assert ended.status == 0, output.lines()
    rate, stopped, snapshot = quotes.training(tmp_path / "train", output.lines())
    assert " images/s in training, " in rate
    assert stopped.startswith("stopped by SIGTERM ")
    assert snapshot.startswith("snapshot: snapshot_iter_")


def test_smoke_checks_on_the_stand_in(tmp_path):
    """All but the captured step, whose graphs :mod:`tests.stand_ins.fake_cupy` does not have."""
    compiled.need_compiler()
    answers = {
        "kernel": r"an own kernel is right; compiled and loaded in [\d.]+ s",
        "convolution": r"a convolution is right to [\d.e-]+; cuDNN loaded and built \S+ in [\d.]+ s",
        "batch_norm": r"mask: 36 bytes for 288 elements, a bit for each element, little-endian; variance: unbiased; "
        r"in place: 5 of 5 runs at \(4, 6, 6, 16\) are right",
        "sums": r"CuPy's sum of two NHWC views is in .* order; conversions of layout in a step of a net with a sum of "
        "gradients: 1, that of the images",
    }
    program = """
import sys
from tests.stand_ins import fake_cupy
fake_cupy.install()
from benchmarks.gpu_check import smoke, smoke_batch_norm
from mixprec.backends.cudnn.plans import Plan
smoke_batch_norm.LARGE, smoke_batch_norm.RUNS = (4, 6, 6, 16), 5
failed = sum(smoke.main(name) for name in sys.argv[1:])
Plan.works_in_place = property(lambda plan: False, lambda plan, value: None)
smoke_batch_norm.LARGE = (4, 6, 6, 24)
sys.exit(failed + smoke.main("batch_norm"))
"""
    ended = run_here([sys.executable, "-c", program, *answers], XDG_CACHE_HOME=str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = [
        line for line in ended.stdout.splitlines() if not line.startswith(("mask: 36", "variance: ")) or ";" in line
    ]
    *lines, copied = lines
    for line, answer in zip(lines, answers.values(), strict=True):
        assert re.fullmatch(answer, line), line
    assert copied.endswith(" (4, 6, 6, 24) are right, with copies: the engine cannot write where it reads")


@pytest.mark.parametrize("fault", [None, "no graph", "another loss"])
def test_the_smoke_check_of_a_captured_step(host, monkeypatch, fault):  # noqa: F811
    monkeypatch.setattr(smoke, "_sent", host.send_link)
    monkeypatch.setattr(smoke, "_received", host.receive)
    if fault == "no graph":
        monkeypatch.setattr(smoke, "_STEPS", 2)
    if fault == "another loss":
        numbers = itertools.count()
        monkeypatch.setattr(smoke, "_received", lambda array: next(numbers))
    with host.eagerly(), contextlib.nullcontext() if fault is None else pytest.raises(AssertionError) as raised:
        answer = smoke.capture(types.SimpleNamespace(asarray=host.send))
    if fault is None:
        assert re.fullmatch(r"3 launches of a captured step, losses as in eager ones: [\d.]+ at last", answer)
    else:
        assert str(raised.value).startswith(
            {"no graph": "no graph was launched: "}.get(fault, "3 launches of a graph: ")
        )


@pytest.mark.parametrize("fault", [None, "a call", "another loss"])
def test_the_smoke_check_of_nccl(host, monkeypatch, fault):  # noqa: F811
    """A process alone has what it had."""
    monkeypatch.setattr(smoke, "_sent", host.send_link)
    monkeypatch.setattr(smoke, "_received", host.receive)
    monkeypatch.setattr(smoke_nccl, "_received", host.receive)
    monkeypatch.setattr(smoke_nccl, "_SIZE", 11)
    nccl = HostNccl(lambda array: [2 * array if fault == "a call" else array])
    monkeypatch.setattr(smoke_nccl.Alone, "nccl", nccl, raising=False)
    if fault == "another loss":
        numbers = itertools.count()
        monkeypatch.setattr(smoke, "_received", lambda array: next(numbers))
    with host.eagerly(), contextlib.nullcontext() if fault is None else pytest.raises(AssertionError) as raised:
        answer = smoke.nccl(types.SimpleNamespace(asarray=host.send))
    if fault is None:
        assert answer == (
            "calls are right, 6 launches of graphs with them, too; steps with a communicator, 3 of them launches, have "
            "the losses of steps without"
        )
    elif fault == "a call":
        assert str(raised.value) == "a call: 11 of 11 numbers in float16 are wrong, sum"
    else:
        assert "; eager steps with a communicator: losses [8.0, " in str(raised.value)


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
