"""benchmarks.bars.row_worker and chainer_step: what runs in the process of a row."""

import contextlib
import gc
import logging
import types
import weakref
from typing import ClassVar

import chainer
import numpy as np
import pytest

from benchmarks.bars import chainer_step, config_rows, row_worker
from benchmarks.bars.row_worker import BenchmarkRow, Block, Launches, Task, WarmStep
from benchmarks.bars.timed_step import Step, memory_of_process
from benchmarks.processes import Worker
from models import MODELS

pytestmark = pytest.mark.slow

CPU, GPU = (Task("resnet8", None, specifier, 8, 64) for specifier in ("@numpy", "@cupy:0"))


class Noted(Step):
    """A device that does nothing but note; a step takes the host a second, and the device three more."""

    def __init__(self):
        self.events, self.now, self.queue = [], 0.0, 0.0

    def __call__(self):
        self.events.append("step")
        self.now += 1.0
        self.queue += 3.0

    def warm_up(self):
        self.events.append("warm up")

    def synchronize(self):
        self.events.append("wait")
        self.now += self.queue
        self.queue = 0.0

    def release(self):
        self.events.append("release")

    def peak(self):
        self.events.append("peak")
        return 700


@pytest.fixture
def step(monkeypatch):
    step = Noted()
    monkeypatch.setattr(row_worker, "time", types.SimpleNamespace(perf_counter=lambda: step.now))
    return step


def _made(step, task):
    return WarmStep(BenchmarkRow("a", lambda task: step), task)


def test_a_block_is_warm_starts_with_an_idle_device_and_ends_with_one(step):
    row = _made(step, CPU)
    assert row.seconds == 4.0
    assert step.events == ["warm up", "wait", "step", "wait", "release"]
    step.events.clear()
    assert row.block(3) == Block(4.0, None, 700)
    assert step.events == ["warm up", "wait", *["step"] * 3, "wait", "peak", "release"]


def test_a_row_that_is_alone_gives_nothing_back(step):
    row = WarmStep(BenchmarkRow("a", lambda task: step), CPU, alone=True)
    for _ in range(2):
        assert row.block(3) == Block(4.0, None, 700)
    assert step.events == ["warm up", "wait", "step", "wait", *["warm up", "wait", *["step"] * 3, "wait", "peak"] * 2]


def test_on_a_gpu_the_time_of_the_host_is_that_of_a_call_with_an_empty_queue(step):
    row = _made(step, GPU)
    assert row.block(2) == Block(4.0, 1.0, 700)


def test_the_step_alone_is_counted_when_it_is_warm(step):
    @contextlib.contextmanager
    def count():
        counts = types.SimpleNamespace(launches=None, graph_launches=None, syncs=None)
        step.events.append("count")
        yield counts
        step.events.append("counted")
        counts.launches, counts.graph_launches, counts.syncs = 4, 1, 1

    row = _made(step, GPU)
    step.events.clear()
    assert row.launches(count) == Launches(5, 1)
    assert step.events == ["warm up", "count", "step", "counted", "release"]


def test_what_mixprec_announces_is_kept(monkeypatch):
    monkeypatch.setattr(row_worker, "_warm_step", [])
    monkeypatch.setattr(row_worker, "_notes", row_worker._Notes())
    logger = logging.getLogger("mixprec")
    try:
        row_worker.prepare(BenchmarkRow("a", lambda task: Noted()), CPU, False)
        logger.warning("%s is slow\nand more", "this")
        logger.info("nothing")
        assert row_worker.notes() == ["this is slow"]
        row_worker._warm_step[0].slower = "two steps differ"
        assert row_worker.notes() == ["this is slow", "runs eagerly: two steps differ"]
    finally:
        logger.removeHandler(row_worker._notes)


# Steps of Chainer


def test_on_a_cpu_a_step_is_warmed_up_once_and_its_peak_is_that_of_the_process():
    calls = []
    step = chainer_step.step_of(types.SimpleNamespace(xp=np), lambda: calls.append(1))
    step.warm_up()
    warm = len(calls)
    step.release()
    step.warm_up()
    assert warm == len(calls) > 0
    step.synchronize()


class Idle(Step):
    def __call__(self):
        pass

    def peak(self):
        return memory_of_process()


def _idle(task):
    return Idle()


def test_the_memory_of_a_row_is_not_that_of_its_parent():
    held = np.ones(2**27)  # 1 GiB, touched
    before = memory_of_process()
    assert before > held.nbytes
    with Worker() as worker:
        worker.call(row_worker.prepare, BenchmarkRow("idle", _idle), CPU, False)
        assert worker.call(row_worker.block, 1).peak < held.nbytes


class StubHook:
    """CuPy's hook; ``active`` are those in force."""

    active: ClassVar[list] = []

    def __enter__(self):
        self.active.append(self)
        return self

    def __exit__(self, *error):
        self.active.remove(self)


class StubGpu:
    """A device whose pool grows, and a captured step that is a graph after five calls."""

    def __init__(self):
        self.events, self.pool, self.pool_bytes = [], 0, 0
        device = types.SimpleNamespace(synchronize=lambda: self.events.append("wait"))
        self.xp = types.SimpleNamespace(
            empty=np.empty,
            cuda=types.SimpleNamespace(Device=lambda: device, MemoryHook=StubHook),
            get_default_memory_pool=lambda: types.SimpleNamespace(total_bytes=lambda: self.pool),
        )

    def release(self):
        self.events.append("free")
        self.pool = 100

    def run(self):
        self.events.append("step")
        self.pool = max(self.pool, 400)
        for hook in StubHook.active:
            hook.alloc_postprocess(mem_ptr=1, size=300)


class StubCaptured:
    def __init__(self, device, why_not=None, eager=5):
        self.device, self.why_not, self.eager = device, why_not, eager
        self.replays, self.calls = 0, 0

    def __call__(self):
        self.device.run()
        self.calls += 1
        if self.calls > self.eager and self.why_not is None:
            self.replays += 1
            self.device.pool_bytes = 50

    def reset(self):
        self.device.events.append("reset")
        self.calls, self.device.pool_bytes = self.eager - 2, 0  # as after Specialization.drop: two eager calls at least

    def report(self):
        return "two steps differ"


@pytest.fixture
def gpu(monkeypatch):
    device = StubGpu()
    monkeypatch.setattr(chainer_step, "graphs_of", lambda array: device)
    return device


def test_on_a_gpu_pools_are_emptied_and_peaks_are_those_of_steps(gpu):
    step = chainer_step.step_of(gpu, gpu.run)
    step.warm_up()
    first = gpu.events.count("step")
    step.release()
    assert gpu.events[-2:] == ["wait", "free"]
    assert step.peak() == 0
    step.warm_up()
    assert step.peak() == 400
    assert first > gpu.events.count("step") - first > 0
    gpu.pool = 500
    step()
    assert step.peak() == 400  # timed steps have no hook, which would take time


def test_a_captured_step_is_a_graph_again_after_each_release(gpu):
    captured = StubCaptured(gpu)
    step = chainer_step.step_of(gpu, captured, captured)
    for _ in range(2):
        step.warm_up()
        assert captured.replays
        assert step.peak() == 400
        captured.replays = 0
        step.release()
        assert gpu.events[-3:] == ["reset", "wait", "free"]
        assert step.peak() == 0


def test_a_graph_that_is_kept_is_captured_once(gpu):
    captured = StubCaptured(gpu)
    row = WarmStep(BenchmarkRow("a", lambda task: chainer_step.step_of(gpu, captured, captured)), GPU, alone=True)
    eager = captured.calls - captured.replays
    for _ in range(3):
        row.block(3)
    assert (captured.calls - captured.replays, row.slower) == (eager, "")
    assert not {"reset", "free"} & set(gpu.events)
    captured.why_not = "no memory\nfor it"
    row.block(3)
    assert row.slower == "no memory"


def test_what_is_not_launched_as_a_graph_is_not_measured_as_captured(gpu):
    captured = StubCaptured(gpu, eager=10**6)
    with pytest.raises(RuntimeError, match="no graph was launched in 20 steps: two steps differ"):
        chainer_step.step_of(gpu, captured, captured).warm_up()


def test_what_cannot_be_captured_runs_eagerly_and_is_not_reset(gpu):
    captured = StubCaptured(gpu, why_not="cuBLAS")  # which was announced, and is in the row's note
    step = chainer_step.step_of(gpu, captured, captured)
    step.warm_up()
    step.release()
    assert "reset" not in gpu.events
    assert 0 < gpu.events.count("step") <= 4


class Seen(chainer.LinkHook):
    """Appends weak references to the nodes of all that links return."""

    name = "Seen"

    def __init__(self, found):
        super().__init__()
        self.found = found

    def forward_postprocess(self, args):
        self.found.append(weakref.ref(args.out.node))


def test_what_the_classifier_holds_is_gone_after_a_release():
    task = Task("resnet8", MODELS["resnet8"], "@numpy", 4, 32)
    bars = {bar.name: bar for bar in config_rows.bars("@numpy", arch="resnet8", batch=4, size=32)}
    for name in ("fp32.yaml", "nhwc_fused_batched.yaml"):
        step = bars[name].make(task)
        alive = []
        with Seen(alive):
            step()
        assert any(reference() is not None for reference in alive)
        step.release()
        gc.collect()
        assert not any(reference() is not None for reference in alive)
