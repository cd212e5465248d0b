"""``scripts/benchmark.py bars``: its statistics, who runs when, what a failure leaves, the rows of plain Chainer."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import time
import types
import weakref

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer import optimizers
from chainer.backends import cuda

from mixprec import environment
from mixprec.benchmark.bars import contestant as bars_contestant
from mixprec.benchmark.bars import plain as bars_plain
from mixprec.benchmark.bars import turns as bars
from mixprec.benchmark.bars.contestant import Bar, Block
from mixprec.benchmark.bars.turns import Row
from models import MODELS

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "scripts" / "benchmark.py"
MB = 10**6
NOT_TIMED = bars_contestant._REFILL


def _run(*arguments, cwd):
    command = [sys.executable, SCRIPT, "bars", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def test_table_and_the_same_numbers_as_json(tmp_path):
    small = ("--arch", "resnet8", "--batch", "2", "--size", "32", "--blocks", "1", "--block-steps", "1")
    process = _run(*small, "--json", "bars.json", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bars.json"]
    record = json.loads((tmp_path / "bars.json").read_text())
    assert record["settings"] == {"arch": "resnet8", "batch": [2], "size": 32, "blocks": 1, "block_steps": 1}
    assert {"date", "python", "numpy", "chainer", "mixprec", "commit", "cpu"} <= record.keys()
    assert record["versions"]["Chainer"] == "7.8.1"
    assert process.stdout.startswith(f"{record['device']}\nresnet8, 32x32 pixels, ")
    first, second = record["rows"]
    assert first.keys() == second.keys() == {field.name for field in dataclasses.fields(Row)}
    assert first["blocks"] == [first["median"]] == [first["minimum"]] == [first["maximum"]]
    assert first["median"] * first["milliseconds"] == pytest.approx(2000)
    assert (first["batch"], first["ratio"], first["reason"]) == (2, 1.0, "")
    assert f"{first['median']:10.1f}" in process.stdout
    if not environment.usable_device_count():
        assert [row["name"] for row in record["rows"]] == ["plain Chainer FP32", "plain Chainer FP32, cuDNN"]
        assert first["peak"] is None
        assert process.stdout.endswith("\n  plain Chainer FP32, cuDNN  needs a GPU\n")
        assert (second["blocks"], second["ratio"], second["reason"]) == (None, None, "needs a GPU")


@pytest.mark.parametrize(
    "arguments",
    [("--batch", "32,0"), ("--blocks", "0"), ("--block-steps", "x"), ("--arch", "x")],
)
def test_bad_arguments_end_with_exit_code_2(arguments, tmp_path):
    process = _run(*arguments, cwd=tmp_path)
    assert process.returncode == 2
    assert arguments[0] in process.stderr
    assert "Traceback" not in process.stderr


def test_what_is_measured_by_default():
    assert bars.defaults("@numpy") == {"arch": "resnet18", "batch": [8], "size": 64}
    assert bars.defaults("@cupy:0") == {"arch": "resnet50", "batch": [32, 64, 128, 256], "size": 224}


# Statistics and table

BASE = [Block(4.0, 900 * MB), Block(5.0, 900 * MB), Block(2.0, 900 * MB)]
OTHER = [Block(1.0, 500 * MB), Block(2.5, 700 * MB), Block(1.6, 600 * MB)]


def test_a_row_has_medians_of_blocks_and_the_ratio_of_turns():
    assert bars.row_of(16, "other", OTHER, BASE, "") == Row(
        16,
        "other",
        blocks=(16.0, 6.4, 10.0),
        median=10.0,
        minimum=6.4,
        maximum=16.0,
        milliseconds=1600.0,
        ratio=2.0,  # of 4, 2, 1.25; that of the medians is 2.5
        peak=700 * MB,
    )


def test_without_the_first_row_there_is_no_ratio_and_on_a_cpu_no_peak():
    row = bars.row_of(16, "other", [Block(1.0, None)], [], "")
    assert (row.median, row.ratio, row.peak) == (16.0, None, None)


def test_what_failed_has_a_reason_and_no_numbers():
    assert bars.row_of(16, "other", [], BASE, "needs a GPU") == Row(16, "other", reason="needs a GPU")


def test_table():
    rows = [
        Row(8, "first", (90.0, 100.25, 1000.0), 100.25, 90.0, 1000.0, 79.8, 1.0, 1500 * MB),
        Row(8, "the second", (50.0,), 50.0, 50.0, 50.0, 160.0),
        Row(16, "first", reason="OutOfMemoryError: Out of memory allocating 3 bytes"),
    ]
    assert bars.table(rows).splitlines() == [
        "batch 8         images/s          min-max  ms a step   ratio  peak MB",
        "  first            100.2      90.0-1000.0       79.8    1.00     1500",
        "  the second        50.0        50.0-50.0      160.0",
        "batch 16        images/s          min-max  ms a step   ratio  peak MB",
        "  first       OutOfMemoryError: Out of memory allocating 3 bytes",
    ]


def test_json():
    settings = {"arch": "resnet8", "blocks": 3}
    record = json.loads(json.dumps(bars.as_json([bars.row_of(16, "other", OTHER, BASE, "")], "GPU 0", **settings)))
    assert (record["settings"], record["device"]) == (settings, "GPU 0")
    numbers = {"blocks": [16.0, 6.4, 10.0], "median": 10.0, "minimum": 6.4, "maximum": 16.0, "milliseconds": 1600.0}
    assert record["rows"] == [
        {"batch": 16, "name": "other", **numbers, "ratio": 2.0, "peak": 700 * MB, "reason": ""},
    ]


# Who runs when: rows, clock and processes of this process


class StubProcess:
    """A process in this one, that notes in a list when it starts and ends."""

    def __init__(self, events):
        self.events, self.contestant = events, []

    def __enter__(self):
        self.events.append("start")
        return self

    def __exit__(self, *error):
        self.contestant.clear()
        self.events.append("end")


class Race:
    """Stands for machine, rows and clock; ``events`` are the names of the rows whose steps have run, and more."""

    def __init__(self):
        self.now, self.events = 0.0, []

    def bar(self, name, seconds, fail=None):
        """Returns a bar whose steps take these seconds in turn; ``fail`` are the number of a step and an exception."""

        def make(network, device, batch, size):
            assert (network, device.xp, size) == ("network", np, 64)
            self.events.append(f"make {name} {batch}")
            steps = 0

            def step():
                nonlocal steps
                steps += 1
                if fail and steps == fail[0]:
                    raise fail[1]
                self.events.append(name)
                self.now += seconds

            return step

        return Bar(name, make)

    def measure(self, *ways, **settings):
        own = {"batches": [8], "size": 64, "blocks": 2, "block_steps": 3, **settings}
        return bars.measure("network", list(ways), "@numpy", **own)


@pytest.fixture
def race(monkeypatch):
    race = Race()

    def run_in(process, function, *arguments):
        monkeypatch.setattr(bars_contestant, "_contestant", process.contestant)
        return function(*arguments)

    monkeypatch.setattr(bars, "process", lambda: StubProcess(race.events))
    monkeypatch.setattr(bars, "run_in", run_in)
    monkeypatch.setattr(bars_contestant, "time", types.SimpleNamespace(perf_counter=lambda: race.now))
    return race


WARM_UP = bars_contestant._WARM_UP
BLOCK = 3 + NOT_TIMED  # steps, for a row


def test_all_rows_are_warm_before_blocks_alternate(race):
    race.measure(race.bar("a", 1.0), Bar("b", reason="needs a GPU"), race.bar("c", 2.0))
    start = [*["start", "make a 8"], *["a"] * WARM_UP, *["start", "make c 8"], *["c"] * WARM_UP]
    turn = [*["a"] * BLOCK, *["c"] * BLOCK]
    assert race.events == [*start, *turn, *turn, "end", "end"]


def test_batch_sizes_come_one_after_the_other(race):
    rows = race.measure(race.bar("a", 0.5), race.bar("b", 0.25), batches=[8, 4], blocks=1, block_steps=2)
    made = [event for event in race.events if " " in event or event in ("start", "end")]
    assert made == [f"{event} {batch}" if "make" in event else event for batch in (8, 4) for event in ORDER]
    assert [(row.batch, row.name, row.median, row.ratio, row.milliseconds) for row in rows] == [
        *[(8, "a", 16.0, 1.0, 500.0), (8, "b", 32.0, 2.0, 250.0)],
        *[(4, "a", 8.0, 1.0, 500.0), (4, "b", 16.0, 2.0, 250.0)],
    ]
    assert all(len(row.blocks) == 1 and not row.reason for row in rows)


ORDER = ["start", "make a", "start", "make b", "end", "end"]


class OutOfMemoryError(MemoryError):
    """As CuPy's, in two lines."""

    def __init__(self):
        super().__init__("Out of memory allocating 512 bytes\n(allocated so far: 0)")


OUT = "OutOfMemoryError: Out of memory allocating 512 bytes"


def test_out_of_memory_while_warming_up_is_a_row_with_its_reason(race):
    rows = race.measure(race.bar("a", 1.0, (2, OutOfMemoryError())), race.bar("b", 2.0))
    assert rows[0] == Row(8, "a", reason=OUT)
    assert (rows[1].blocks, rows[1].ratio, rows[1].reason) == ((4.0, 4.0), None, "")
    assert race.events[:5] == ["start", "make a 8", "a", "end", "start"]  # its memory is free before b is made
    assert race.events.count("a") == 1


def test_a_failure_in_a_later_block_is_a_row_with_its_reason_and_the_others_go_on(race):
    second_block = WARM_UP + BLOCK + 1
    rows = race.measure(race.bar("a", 1.0), race.bar("b", 1.0, (second_block, OutOfMemoryError())), race.bar("c", 2.0))
    assert rows[1] == Row(8, "b", reason=f"block 2 of 2: {OUT}")
    assert [row.ratio for row in rows] == [1.0, None, 0.5]
    assert race.events[-2 * BLOCK - 3 :] == [*["a"] * BLOCK, "end", *["c"] * BLOCK, "end", "end"]


def test_when_the_first_row_fails_late_there_are_no_ratios(race):
    rows = race.measure(race.bar("a", 1.0, (WARM_UP + BLOCK + 1, ValueError())), race.bar("b", 2.0), blocks=3)
    assert rows[0] == Row(8, "a", reason="block 2 of 3: ValueError")
    assert (rows[1].blocks, rows[1].ratio) == ((4.0, 4.0, 4.0), None)


def test_a_batch_size_that_fails_leaves_the_others(race):
    def make(network, device, batch, size):
        return race.bar("a", 1.0, (1, OutOfMemoryError()) if batch == 8 else None).make(network, device, batch, size)

    rows = race.measure(Bar("a", make), batches=[8, 4])
    assert [(row.batch, row.median, row.reason) for row in rows] == [(8, None, OUT), (4, 4.0, "")]


def test_ctrl_c_ends_all_processes(race):
    with pytest.raises(KeyboardInterrupt):
        race.measure(race.bar("a", 1.0), race.bar("b", 1.0, (WARM_UP + 1, KeyboardInterrupt())))
    assert race.events[-2:] == ["end", "end"]


# Processes of their own


def _die(network, device, batch, size):
    os._exit(9)


def _die_later(network, device, batch, size):
    steps = iter(range(WARM_UP + 1))
    return lambda: next(steps, None) is None and os._exit(9)


def _raise(network, device, batch, size):
    raise ValueError(f"no room for {batch} images\nand more")


def _rest(network, device, batch, size):
    return lambda: time.sleep(1e-3)


def test_a_crash_is_a_row_with_its_reason():
    ways = [Bar("dies", _die), Bar("dies later", _die_later), Bar("raises", _raise), Bar("runs", _rest)]
    rows = bars.measure(None, ways, "@numpy", batches=[2], size=8, blocks=2, block_steps=1)
    died = "its process died: a crash, or the memory of the machine was not enough"
    assert rows[:2] == [Row(2, "dies", reason=died), Row(2, "dies later", reason=f"block 1 of 2: {died}")]
    assert rows[2] == Row(2, "raises", reason="ValueError: no room for 2 images")
    assert (rows[3].name, len(rows[3].blocks), rows[3].reason) == ("runs", 2, "")


# On a GPU


class StubDevice:
    """A GPU whose pool grows when a step allocates; steps in a block take 20 ms together."""

    def __init__(self):
        self.events, self.allocated, self.kept = [], 0, 0
        event = types.SimpleNamespace(record=lambda: None, synchronize=lambda: None)
        cuda = types.SimpleNamespace(
            Event=lambda: event,
            get_elapsed_time=lambda start, stop: 20.0,
            Device=lambda: types.SimpleNamespace(synchronize=lambda: self.events.append("wait")),
        )
        self.xp = types.SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: self)

    def use(self):
        self.events.append("use")

    def total_bytes(self):
        return self.allocated

    def free_all_blocks(self):
        self.events.append("free")
        self.allocated = self.kept


def test_a_contestant_on_a_gpu_holds_little_between_blocks(monkeypatch):
    device = StubDevice()
    needed = iter([900, *[300] * (WARM_UP - 1), *[400] * (NOT_TIMED + 2)])  # the first step chooses engines

    def make(network, device, batch, size):
        device.kept = 100

        def step():
            device.allocated = max(device.allocated, next(needed))
            device.events.append("step")

        return step

    monkeypatch.setattr(chainer, "get_device", lambda specifier: device)
    contestant = bars_contestant.Contestant(Bar("a", make), None, "@cupy:0", 8, 64)
    assert device.allocated == 100
    assert contestant.block(2) == Block(0.01, 400)
    assert device.allocated == 100
    freed = ["wait", "free"]
    assert device.events == ["use", *["step"] * WARM_UP, *freed, *["step"] * (NOT_TIMED + 2), *freed]


@pytest.mark.gpu
def test_plain_chainer_is_measured_on_the_gpu():
    ways = bars_plain.bars("@cupy:0")
    rows = bars.measure(MODELS["resnet18"], ways, "@cupy:0", batches=[8], size=64, blocks=2, block_steps=2)
    print(bars.table(rows))
    assert [row.name for row in rows] == [bars_plain.NO_CUDNN, bars_plain.CUDNN]
    for row, bar in zip(rows, ways, strict=True):
        assert row.reason == bar.reason  # none, but where there is no cuDNN
        assert row.reason or (row.median > 0 and row.peak > 8 * 3 * 64 * 64 * 4)
    assert not rows[0].reason


# The rows of plain Chainer


def test_rows_on_a_cpu():
    first, second = bars_plain.bars("@numpy")
    assert (first.name, first.reason) == ("plain Chainer FP32", "")
    assert second == Bar("plain Chainer FP32, cuDNN", reason="needs a GPU")


@pytest.mark.parametrize("enabled", [True, False])
def test_rows_on_a_gpu(enabled, monkeypatch):
    monkeypatch.setattr(cuda, "cudnn_enabled", enabled)
    note = "off: MIXPREC_CUDNN=0"
    monkeypatch.setattr(
        environment, "components", lambda: [environment.Component("Chainer's cuDNN", "missing", note=note)]
    )
    first, second = bars_plain.bars("@cupy:0")
    assert (first.name, first.reason) == ("plain Chainer FP32, no cuDNN", "")
    assert first.make.keywords == {"use_cudnn": "never"}
    assert (second.name, second.reason) == ("plain Chainer FP32, cuDNN", "" if enabled else note)
    assert not enabled or second.make.keywords == {"use_cudnn": "auto", "autotune": True}


def test_why_there_is_no_cudnn_is_what_the_environment_says():
    notes = [component.note for component in environment.components() if component.name == "Chainer's cuDNN"]
    assert [bars_plain._why_no_cudnn()] == notes
    assert notes[0]


class Spy(chainer.FunctionNode):
    """Doubles nothing; notes the configuration that its passes see."""

    def __init__(self, seen):
        self.seen = seen

    def forward(self, inputs):
        self.seen.append(("forward", chainer.config.use_cudnn, chainer.config.autotune))
        return inputs

    def backward(self, indexes, grads):
        self.seen.append(("backward", chainer.config.use_cudnn, chainer.config.autotune))
        return grads


class Spied(chainer.Chain):
    """A network of one layer; ``arrays`` are weak references to its logits."""

    def __init__(self, seen, arrays, classes):
        super().__init__()
        self.seen, self.arrays = seen, arrays
        with self.init_scope():
            self.layer = chainer.links.Linear(3 * 4 * 4, classes)

    def forward(self, x):
        (y,) = Spy(self.seen).apply((self.layer(x),))
        self.arrays.append(weakref.ref(y.array))
        return y


@pytest.mark.parametrize("config", [{"use_cudnn": "never"}, {"use_cudnn": "auto", "autotune": True}])
def test_the_configuration_is_in_force_in_a_step_and_only_there(config):
    before = chainer.config.use_cudnn, chainer.config.autotune
    seen = []
    network = functools.partial(Spied, seen, [])
    run = bars_plain.step(network, chainer.get_device("@numpy"), 2, 4, **config)
    assert seen == []
    run()
    inside = config["use_cudnn"], config.get("autotune", before[1])
    assert seen == [("forward", *inside), ("backward", *inside)]
    assert (chainer.config.use_cudnn, chainer.config.autotune) == before


def test_nothing_of_a_step_is_held_after_it():
    arrays = []
    run = bars_plain.step(functools.partial(Spied, [], arrays), chainer.get_device("@numpy"), 2, 4)
    run()
    run()
    assert [array() for array in arrays] == [None, None]


def test_a_step_is_one_of_a_training_loop_by_hand():
    models = []

    def network(classes):
        np.random.seed(0)
        models.append(MODELS["resnet8"](classes))
        return models[-1]

    with chainer.using_config("dtype", chainer.mixed16):  # as CHAINER_DTYPE may ask for
        run = bars_plain.step(network, chainer.get_device("@numpy"), 4, 8, use_cudnn="never")
    run()
    run()
    model = network(1000)
    optimizer = optimizers.CorrectedMomentumSGD(lr=0.01).setup(model)
    x = np.random.RandomState(0).normal(size=(4, 3, 8, 8)).astype(np.float32)
    for _ in range(2):
        loss = F.softmax_cross_entropy(model(x), np.arange(4, dtype=np.int32))
        model.cleargrads()
        loss.backward()
        optimizer.update()
    for (name, measured), expected in zip(models[0].namedparams(), model.params(), strict=True):
        assert measured.dtype == np.float32
        np.testing.assert_array_equal(measured.array, expected.array, err_msg=name)
