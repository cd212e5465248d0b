"""``scripts/benchmark.py capture``: the tables, what they are made of, and what a contestant on a GPU measures."""

import json
import subprocess
import sys
import types

import chainer
import pytest

import mixprec
from benchmarks import capture, capture_gpu, recording
from benchmarks.capture_gpu import CAPTURED, EAGER, Row
from benchmarks.device_memory import peak_of
from benchmarks.processes import Worker
from mixprec import backends, environment
from models import MODELS
from tests import ROOT
from tests.stand_ins import graph_array
from tests.stand_ins.graph_array import GraphArray
from tests.stand_ins.graph_on_host import GraphCuda
from tests.stand_ins.kernels_on_host import kernels_folder
from tests.stand_ins.stub_worker import StubWorker

SCRIPT = ROOT / "scripts" / "benchmark.py"
MB = 10**6


def _run(*arguments, cwd):
    command = [sys.executable, SCRIPT, "capture", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def test_tables_and_the_same_numbers_as_json(tmp_path):
    small = ("--arch", "resnet8", "--batch", "2,4", "--size", "32", "--repeats", "1", "--json", "capture.json")
    process = _run(*small, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    record = json.loads((tmp_path / "capture.json").read_text())
    assert record["settings"] == {"arch": "resnet8", "batch": [2, 4], "size": 32, "repeats": 1}
    assert {"date", "python", "numpy", "chainer", "mixprec", "commit", "cpu"} <= record.keys()
    assert [row["name"] for row in record["rows"]] == [capture.EAGER, capture.CAPTURED]
    for row in record["rows"]:
        assert row["milliseconds"] > 0
        numbers = f"{row['milliseconds']:10.2f}{row['spread']:8.2f}{row['ratio']:8.3f}"
        assert f"  {row['name']:48}{numbers}\n" in process.stdout
        assert row["ratio"] == pytest.approx(row["milliseconds"] / record["rows"][0]["milliseconds"])
    if not environment.usable_device_count():
        assert record["gpu"]["rows"] == []
        needs = "step time, host time of a graph and peak memory need a GPU: "
        assert f"{needs}{record['gpu']['missing']}\n" in process.stdout


def _launches_of_a_turn():
    launches, rates = [], set()
    capture._prepare(capture.CAPTURED, MODELS["resnet8"])
    recording.Graph.launch = lambda graph: launches.append(graph)
    upload = recording.Launcher.upload

    def noted(launcher, source, target):
        rates.add(bytes(source))
        upload(launcher, source, target)

    recording.Launcher.upload = noted
    capture._turn()
    return len(launches), len(rates)


def test_each_captured_step_is_a_launch_with_a_learning_rate_of_its_own():
    with Worker() as worker:
        assert worker.call(_launches_of_a_turn) == (10, 10)


@pytest.mark.parametrize(
    "arguments", [("--batch", "32,0"), ("--batch", "x"), ("--size", "0"), ("--arch", "resnext50_32x4d")]
)
def test_bad_arguments_end_with_exit_code_2(arguments, tmp_path):
    process = _run(*arguments, cwd=tmp_path)
    assert process.returncode == 2
    assert arguments[0] in process.stderr
    assert "Traceback" not in process.stderr


TIMES = {
    EAGER: [(0.010, 0.009), (0.020, 0.008), (0.012, 0.007)],
    CAPTURED: [(0.004, 2e-4), (0.005, 1e-4), (0.003, 3e-4)],
}
ENDS = {EAGER: (1000 * MB, 900 * MB, ""), CAPTURED: (1050 * MB, 950 * MB, "verified bit for bit")}


def test_ratios_are_medians_of_those_of_a_turn():
    row = capture_gpu.row_of(256, CAPTURED, TIMES, ENDS, "")
    assert row == Row(
        256,
        CAPTURED,
        milliseconds=4.0,
        spread=pytest.approx(1.0),
        ratio=pytest.approx(0.25),  # of 0.4, 0.25, 0.25; not 4 / 12
        host_milliseconds=pytest.approx(0.2),
        peak=1050 * MB,
        held=950 * MB,
        memory=1.05,
        bound=1.1,
        note="verified bit for bit",
    )


def test_only_a_captured_step_with_256_images_has_a_bound():
    bounds = {
        (name, batch): capture_gpu.row_of(batch, name, TIMES, ENDS, "").bound for name in TIMES for batch in (128, 256)
    }
    assert {key for key, bound in bounds.items() if bound is not None} == {(CAPTURED, 256)}


def test_without_the_eager_one_there_are_no_ratios():
    times, ends = {CAPTURED: TIMES[CAPTURED]}, {CAPTURED: ENDS[CAPTURED]}
    rows = [
        capture_gpu.row_of(256, EAGER, times, ends, "OutOfMemoryError: Out of memory"),
        capture_gpu.row_of(256, CAPTURED, times, ends, ""),
    ]
    assert (rows[0].milliseconds, rows[0].note) == (None, "OutOfMemoryError: Out of memory")
    assert (rows[1].ratio, rows[1].memory, rows[1].milliseconds) == (None, None, 4.0)
    lines = capture_gpu.table(rows, {"device": "GPU 0"}).splitlines()
    assert lines[2] == "  batch 256, eager      OutOfMemoryError: Out of memory"
    numbers = ["4.00", "1.00", "64000", "0.20", "1050", "950", "1.10"]
    assert lines[3].split() == ["batch", "256,", CAPTURED, *numbers, "verified", "bit", "for", "bit"]


class Hook:
    """In place of :class:`cupy.cuda.MemoryHook`."""

    last = None

    def __enter__(self):
        Hook.last = self


class Pools:
    """CuPy's pool, and that of graphs."""

    def __init__(self):
        self.default = self.pool_bytes = 0

    def total_bytes(self):
        return self.default

    def take(self, default, of_graphs, address=1):
        """As if memory had been allocated, unless its address is 0, after which both have so much."""
        self.default, self.pool_bytes = default, of_graphs
        Hook.last.alloc_postprocess(device_id=0, mem_size=1, mem_ptr=address)


def test_the_peak_is_that_of_both_pools_together():
    pools = Pools()
    peak = peak_of(Hook, lambda: pools.default + pools.pool_bytes)
    peak.__enter__()
    for default, of_graphs, address in [(5, 0, 1), (7, 0, 2), (0, 4, 3), (2, 6, 4), (2, 99, 0), (3, 1, 5)]:
        pools.take(default, of_graphs, address)
    assert peak is Hook.last
    assert peak.bytes == 8  # 7 and 6 at different times; 99 was refused


class StubDevice:
    """A GPU on the host, where each of two steps takes ten milliseconds, and images take a MB."""

    def __init__(self):
        self.pools = Pools()
        event = types.SimpleNamespace(record=lambda: None, synchronize=lambda: None)
        cuda = types.SimpleNamespace(
            Event=lambda: event,
            get_elapsed_time=lambda start, stop: 20.0,
            Device=lambda: types.SimpleNamespace(synchronize=lambda: None),
            MemoryHook=Hook,
        )
        self.xp = types.SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: self.pools)

    def use(self):
        pass

    def send(self, array):
        self.images = array if array.ndim == 4 else self.images
        return array


class StubStep:
    """What ``mixprec.capture`` returns: the fourth call takes memory for a graph."""

    def __init__(self, pools, optimizer):
        self.pools, self.optimizer, self.calls = pools, optimizer, 0

    @property
    def replays(self):
        return max(0, self.calls - 4)

    def __call__(self, *arguments):
        self.calls += 1
        if self.calls == 4:
            self.pools.take(30 * MB, 100 * MB)
            self.pools.take(10 * MB, 100 * MB)
        return self.optimizer.update(self.optimizer.target, *arguments)


def _gpus(monkeypatch, device_class):
    """Returns a list of those that were asked for so far, each of them new."""
    made, others = [], chainer.get_device

    def get_device(name):
        if name != "@cupy:0":
            return others(name)
        made.append(device_class())
        return made[-1]

    monkeypatch.setattr(chainer, "get_device", get_device)
    monkeypatch.setattr(chainer.global_config, "autotune", False)  # what contestants change
    return made


@pytest.fixture
def devices(monkeypatch):
    """All that the contestants use is here, and in the list that this gives, one device for each of them."""
    made = _gpus(monkeypatch, StubDevice)

    def capture_step(optimizer, *, required):
        assert required  # what runs eagerly must not be measured as captured
        return StubStep(made[-1].pools, optimizer)

    def to_device(link, device):
        device.pools.take(70 * MB, 0)
        return link

    monkeypatch.setattr(environment, "resolve_device", lambda wanted: ("@cupy:0", "GPU 0 of 1: Stub H200"))
    monkeypatch.setattr(chainer.Link, "to_device", to_device)
    monkeypatch.setattr(mixprec, "capture", capture_step, raising=False)
    monkeypatch.setattr(capture_gpu, "graphs_of", lambda array: made[-1].pools)
    monkeypatch.setattr(capture_gpu, "_STEPS", 2)
    monkeypatch.setattr(capture_gpu, "_WARM_UP", 5)
    monkeypatch.setattr(capture_gpu, "Worker", lambda: StubWorker(capture_gpu))
    return made


def test_rows_of_a_gpu(devices):
    rows, settings = capture_gpu.measure(MODELS["resnet8"], batches=[2, 256], size=8, repeats=1)
    assert settings == {"device": "GPU 0 of 1: Stub H200"}
    assert [(row.batch, row.name) for row in rows] == [(2, EAGER), (2, CAPTURED), (256, EAGER), (256, CAPTURED)]
    assert [device.images.shape for device in devices] == [(2, 3, 8, 8)] * 3 + [(256, 3, 8, 8)] * 3  # one for tuning
    assert chainer.global_config.autotune
    for eager, captured in (rows[:2], rows[2:]):
        assert (eager.milliseconds, captured.milliseconds, captured.ratio) == (10.0, 10.0, 1.0)
        assert (eager.peak, eager.held, eager.memory, eager.note) == (70 * MB, 70 * MB, 1.0, "")
        assert (captured.peak, captured.held, captured.memory) == (130 * MB, 110 * MB, 130 / 70)
        assert captured.note == "verified within bounds"
        assert eager.host_milliseconds > 0
    lines = capture_gpu.table(rows, settings).splitlines()
    assert lines[0] == "GPU 0 of 1: Stub H200"
    assert lines[5].startswith("  batch 256, captured      10.00    0.00   1.00     25600")
    assert lines[5].endswith("      130      110   1.86   1.10  verified within bounds")
    assert json.loads(json.dumps(capture_gpu.as_json(rows, settings)))["rows"][3]["bound"] == 1.1


class HostDevice(StubDevice):
    """A GPU whose graphs are computed on the host, which are really captured and launched."""

    def send(self, array):
        return graph_array.array(array)


@pytest.fixture
def graphs(monkeypatch, tmp_path_factory):
    cuda = GraphCuda(kernels_folder(tmp_path_factory))
    monkeypatch.setitem(backends._OTHERS, GraphArray, cuda)
    _gpus(monkeypatch, HostDevice)
    monkeypatch.setattr(chainer.Link, "to_device", lambda link, device: graph_array.send(link))
    monkeypatch.setattr(capture_gpu, "_STEPS", 2)
    return cuda.graphs


@pytest.mark.parametrize("name", [EAGER, CAPTURED])
def test_a_contestant_trains_on_a_stand_in(graphs, name):
    contestant = capture_gpu.Contestant(name, MODELS["resnet8"], "@cupy:0", 2, 8)
    launches = graphs.launches
    seconds, host_seconds = contestant.turn()
    assert seconds == 0.01
    assert host_seconds > 0
    _, held, note = contestant.end()
    assert graphs.launches - launches == (4 if name == CAPTURED else 0)
    assert (held > 0) == (note == "verified within bounds") == (name == CAPTURED)


def test_what_cannot_be_captured_is_a_row_with_the_reason(devices, monkeypatch):
    def refuse(optimizer, *, required):
        raise RuntimeError("train.py:3 reads a number")

    monkeypatch.setattr(mixprec, "capture", refuse)
    rows, settings = capture_gpu.measure(MODELS["resnet8"], batches=[2], size=8, repeats=1)
    assert rows[0].milliseconds == 10.0
    assert rows[1] == Row(2, CAPTURED, note="RuntimeError: train.py:3 reads a number")
    assert "  batch 2, captured     RuntimeError: train.py:3 reads a number" in capture_gpu.table(rows, settings)


def test_what_is_not_launched_as_a_graph_is_not_measured_as_captured(devices, monkeypatch):
    monkeypatch.setattr(StubStep, "replays", 0)
    monkeypatch.setattr(StubStep, "report", lambda step: "its shapes change", raising=False)
    _, row = capture_gpu.measure(MODELS["resnet8"], batches=[2], size=8, repeats=1)[0]
    assert row == Row(2, CAPTURED, note="RuntimeError: no graph was launched in 5 steps: its shapes change")


def test_a_deterministic_graph_is_verified_bit_for_bit(devices, monkeypatch):
    monkeypatch.setattr(chainer.global_config, "cudnn_deterministic", True)
    _, row = capture_gpu.measure(MODELS["resnet8"], batches=[2], size=8, repeats=1)[0]
    assert row.note == "verified bit for bit"


def test_why_a_contestant_failed_comes_out_of_its_process():
    with Worker() as worker:
        _, why = worker.attempt(capture_gpu._prepare, EAGER, MODELS["resnet8"], "@cupy:99", 2, 8)
    assert "Error: " in why


@pytest.mark.gpu
def test_a_captured_step_is_measured_on_the_gpu():
    rows, settings = capture_gpu.measure(MODELS["resnet18"], batches=[8], size=64, repeats=1)
    print(capture_gpu.table(rows, settings))
    assert [row.name for row in rows] == [EAGER, CAPTURED]
    for row in rows:
        assert row.milliseconds > 0, row.note
        assert row.host_milliseconds > 0
        assert row.peak >= row.held > 8 * 3 * 64 * 64 * 4
    assert rows[1].note
