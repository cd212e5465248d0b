"""benchmarks.bars.row_worker, chainer_step and progress: what runs in the process of a row."""

import contextlib
import gc
import itertools
import logging
import math
import types
import weakref
from typing import ClassVar

import chainer
import numpy as np
import pytest

from benchmarks.bars import chainer_step, config_rows, progress, row_worker
from benchmarks.bars.row_worker import BenchmarkRow, Block, Launches, Task, WarmStep
from benchmarks.bars.timed_step import Step
from mixprec.backends import launch
from mixprec.backends.cudnn import context, settings
from mixprec.backends.geometry import Convolution
from models import MODELS
from tests.stand_ins.cuda_on_host import HostCuda, send

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


@pytest.mark.parametrize("alone", [False, True])
def test_a_block_is_warm_starts_with_an_idle_device_and_ends_with_one(step, alone):
    row = WarmStep(BenchmarkRow("a", lambda task: step), CPU, alone=alone)
    given_back = [] if alone else ["release"]
    assert row.seconds == 4.0
    assert step.events == ["warm up", "wait", "step", "wait", *given_back]
    for _ in range(2):
        step.events.clear()
        assert row.block(3) == Block(4.0, None, 700)
        assert step.events == ["warm up", "wait", *["step"] * 3, "wait", "peak", *given_back]


def test_on_a_gpu_host_time_is_of_a_call_with_an_empty_queue_and_a_step_is_counted(step):
    @contextlib.contextmanager
    def count():
        counts = types.SimpleNamespace(launches=4, graph_launches=1, syncs=1)
        step.events.append("count")
        yield counts
        step.events.append("counted")

    row = WarmStep(BenchmarkRow("a", lambda task: step), GPU)
    assert row.block(2) == Block(4.0, 1.0, 700)
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


class StubHook:
    """CuPy's hook; ``active`` are those in force."""

    active: ClassVar[list] = []

    def __enter__(self):
        self.active.append(self)
        return self

    def __exit__(self, *error):
        self.active.remove(self)


class StubGpu:
    """A device whose pool grows, and a captured step that is a graph after some eager calls."""

    def __init__(self):
        self.events, self.pool, self.pool_bytes = [], 0, 0
        self.why_not, self.eager, self.replays, self.calls = None, 5, 0, 0
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
        self.pool, self.pool_bytes = max(self.pool, 300), 100
        for hook in StubHook.active:
            hook.alloc_postprocess(mem_ptr=1, size=300)
            self.pool_bytes = 200
            hook.alloc_postprocess(mem_ptr=0, size=300)  # there was no room

    def captured(self):
        self.run()
        self.calls += 1
        self.replays += self.calls > self.eager and self.why_not is None

    def reset(self):
        self.events.append("reset")
        self.calls = self.eager - 2  # as after Specialization.drop: two eager calls at least

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
    assert (gpu.events[-2:], step.peak()) == (["wait", "free"], 0)
    step.warm_up()
    assert step.peak() == 400
    assert first > gpu.events.count("step") - first > 0
    gpu.pool = 500
    step()
    assert step.peak() == 400  # timed steps have no hook, which would take time


def test_a_captured_step_is_a_graph_again_after_each_release(gpu):
    step = chainer_step.step_of(gpu, gpu.captured, gpu)
    for _ in range(2):
        step.warm_up()
        assert (gpu.replays > 0, step.peak()) == (True, 400)
        gpu.replays = 0
        step.release()
        assert (gpu.events[-3:], step.peak()) == (["reset", "wait", "free"], 0)


def test_a_graph_that_is_kept_is_captured_once(gpu, monkeypatch):
    monkeypatch.setattr(row_worker, "time", types.SimpleNamespace(perf_counter=itertools.count().__next__))
    row = WarmStep(BenchmarkRow("a", lambda task: chainer_step.step_of(gpu, gpu.captured, gpu)), GPU, alone=True)
    eager = gpu.calls - gpu.replays
    for _ in range(3):
        row.block(3)
    assert (gpu.calls - gpu.replays, row.slower) == (eager, "")
    assert not {"reset", "free"} & set(gpu.events)
    gpu.why_not = "no memory\nfor it"
    row.block(3)
    assert row.slower == "no memory"
    gpu.why_not, gpu.eager = None, math.inf
    with pytest.raises(RuntimeError, match="no graph was launched in 20 steps: two steps differ"):
        row.block(3)


class Seen(chainer.LinkHook):
    """Keeps weak references to the nodes of all that links return."""

    name = "Seen"

    def forward_postprocess(self, args):
        self.found = [*getattr(self, "found", ()), weakref.ref(args.out.node)]


def test_what_the_classifier_holds_is_gone_after_a_release():
    task = Task("resnet8", MODELS["resnet8"], "@numpy", 4, 32)
    bars = {bar.name: bar for bar in config_rows.bars("@numpy", arch="resnet8", batch=4, size=32)}
    step = bars["nhwc_fused_batched.yaml"].make(task)
    with Seen() as seen:
        step()
    assert any(reference() is not None for reference in seen.found)
    step.release()
    gc.collect()
    assert not any(reference() is not None for reference in seen.found)


# What is counted while a row is prepared


def test_kernels_plans_and_measurements_are_counted(capsys, monkeypatch):
    monkeypatch.setattr(launch, "binary_of", lambda source: b"")
    before = launch.binary_of, context.Plan, context.fastest
    said, rng = [], np.random.default_rng(0)
    x, w = send(tuple(rng.normal(size=shape).astype(np.float16) for shape in ((2, 6, 5, 16), (24, 3, 3, 16))))
    settings.configure(autotune="measure", cache=None)
    with progress.reporting("a row", said.append):
        launch.binary_of("")
        cuda = HostCuda()
        cuda.conv_fprop(x, w, Convolution((1, 1), (1, 1)))
    assert said[0] == "imports, 0 kernels compiled, 0 plans of cuDNN built, 0 engines measured"
    kernels, plans, measured = (int(part.split()[0]) for part in said[-1].split(", ")[1:])
    assert (kernels, plans) == (1, len(cuda.cudnn.plans()))
    assert measured >= 1
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"a row: {said[-1]}; ")
    assert before == (launch.binary_of, context.Plan, context.fastest)
