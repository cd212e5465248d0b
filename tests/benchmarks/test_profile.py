"""Profiles: which calls belong to which layer and kind, what time is whose, and that watching changes nothing."""

import contextlib
import itertools
import json
import types

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import _backprop_utils, optimizers

import mixprec
from benchmarks import floors, profile
from benchmarks.gpu_check import quotes
from benchmarks.profile import clocks, kinds
from benchmarks.profile.clocks import DeviceClock, HostClock
from benchmarks.profile.profile_rows import Profile, Row, profile_of
from benchmarks.profile.spans import Key, Spans, Step
from benchmarks.profile.timed_calls import watching
from mixprec.app.run import synthetic_run
from mixprec.backends import primitives_of
from mixprec.backends.launch import CupyLauncher
from mixprec.backends.primitives import NAMES
from mixprec.optimizer.step import OptimizerStep
from mixprec.rewrite.fusions import Normalization
from models import MODELS
from tests.optimizer.batch.test_cubin import ARCHITECTURES, compiler_for

pytestmark = pytest.mark.slow

PRIMITIVES = primitives_of(np.empty(0))
RATES = types.SimpleNamespace(bandwidth=1e9, flops=dict.fromkeys(("float16", "bfloat16", "float32"), 1e9))
IMAGES = np.random.RandomState(0).normal(size=(4, 3, 8, 8)).astype(np.float32)
LABELS = np.arange(4, dtype=np.int32)


class Small(chainer.Chain):
    """Two convolutions, the first with a batch normalization that waits for its ReLU until the second one begins."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.bn1 = L.BatchNormalization(8)
            self.stages = chainer.Sequential(L.Convolution2D(8, 8, 3, pad=1, nobias=True))
            self.fc = L.Linear(8 * 8 * 8, 10)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.stages(h))


def _trained(network, **conversion):
    """Returns a converted classifier, its optimizer, and a step that has run twice."""
    for link in network.links():
        for number, param in enumerate(link.params(include_uninit=False)):
            if param.ndim > 1:
                param.array[...] = np.random.RandomState(number).normal(0, 0.1, param.shape)
    model = L.Classifier(network)
    mixprec.convert(model, **conversion)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(0.01), 8.0).setup(model)

    def step():
        optimizer.update(model, IMAGES, LABELS)

    step()
    step()
    return model, optimizer, step


def _ticking():
    """A clock that moves by a second at each look."""
    return HostClock(itertools.count().__next__)


def _watched(optimizer, step):
    spans = Spans(_ticking())
    with watching(spans, optimizer, PRIMITIVES, RATES), spans.step():
        step()
    return spans.steps[0]


def test_each_call_of_a_small_network_has_its_layer_and_kind():
    _, optimizer, step = _trained(Small())
    found = _watched(optimizer, step)
    once = [
        ("conv1", kinds.CONV_FPROP, "conv_fprop"),
        ("bn1", kinds.BN_FORWARD, "batch_norm"),
        ("stages/0", kinds.CONV_FPROP, "conv_fprop"),
        ("fc", kinds.LAYOUT, "to_nchw"),
        ("fc", kinds.LINEAR, "linear"),
        ("(classifier)", kinds.LOSS, "softmax_cross_entropy"),
        ("(classifier)", kinds.LOSS, "accuracy"),
        ("(classifier)", kinds.LOSS, "softmax_cross_entropy_backward"),
        ("fc", kinds.LINEAR, "linear_dgrad"),
        ("fc", kinds.LINEAR, "linear_wgrad"),
        ("fc", kinds.ELEMENTWISE, "bias_grad"),
        ("fc", kinds.LAYOUT, "to_nhwc"),
        ("stages/0", kinds.CONV_DGRAD, "conv_dgrad"),
        ("stages/0", kinds.CONV_WGRAD, "conv_wgrad"),
        ("bn1", kinds.BN_BACKWARD, "batch_norm_backward"),
        ("conv1", kinds.CONV_WGRAD, "conv_wgrad"),
        ("(step)", kinds.UPDATE, "update"),
    ]
    primitives = {key[:3]: len(seconds) for key, seconds in found.calls.items() if not key.name[0].isupper()}
    assert primitives.pop(("conv1", kinds.LAYOUT, "to_nhwc")) == 1  # images
    assert primitives == dict.fromkeys(once, 1)
    own = [second for seconds in found.calls.values() for second in seconds]
    assert found.seconds == 1 + 2 * len(own)  # each call looks twice at the clock, and so does the step
    assert sum(own) + found.rest == found.seconds


def test_floors_of_convolutions_that_tf32_rounds():
    overrides = ["loss_scale.mode=none", "precision.compute=float32", "cudnn.allow_tf32=true"]
    config = synthetic_run.load("static_graph.yaml", arch="resnet8", batch=2, size=32, overrides=overrides)
    known = types.SimpleNamespace(bandwidth=1e18, flops={"float32": 1e9, "tf32": 8e9})
    found = profile.measure(config, MODELS["resnet8"], "@numpy", known, steps=1)
    (first,) = (row for row in found.rows if row.layer == "conv1" and row.kind == kinds.CONV_FPROP)
    assert first.floor == pytest.approx(2 * 2 * 32 * 32 * 16 * 27 / 8e9 * 1e6)
    (linear,) = (row for row in found.rows if row.name == "linear")  # of which cudnn.allow_tf32 says nothing
    assert linear.floor == pytest.approx(2 * 2 * 64 * 1000 / 1e9 * 1e6)


def test_the_floor_of_an_update_is_that_of_the_benchmark_of_updates():
    model, optimizer, step = _trained(Small())
    (key,) = (key for key in _watched(optimizer, step).calls if key.kind == kinds.UPDATE)
    moved = sum(param.size * floors.UPDATE_BYTES[param.dtype.name] for param in model.params())
    assert (key.floor, key.limit) == (pytest.approx(moved / RATES.bandwidth, rel=1e-12), "bytes")


class OldStyle(chainer.Function):
    def forward(self, inputs):
        return (inputs[0] * 2,)

    def backward(self, inputs, gradients):
        return (gradients[0] * 2,)


class Copying(Small):
    """Activations are put beside each other, and the next function is of the old style."""

    def forward(self, x):
        h = self.conv1(x)
        return self.fc(OldStyle()(F.concat((h, F.sigmoid(h)))[:, :8]))


def test_functions_that_compute_by_themselves_and_sums_of_gradients():
    _, optimizer, step = _trained(Copying())
    calls = _watched(optimizer, step).calls
    found = {(key.layer, key.name): key.kind for key in calls}
    assert found["(network)", "Concatenation"] == found["(network)", "Concatenation backward"] == kinds.LAYOUT
    assert found["(network)", "OldStyle"] == found["(network)", "OldStyle backward"] == kinds.OTHER
    assert [key.layer for key in calls if key.kind == kinds.GRADIENT_SUM] == ["(network)"]


@pytest.mark.parametrize("name", ["static_graph.yaml", "fp32.yaml"])
def test_resnet18(name, monkeypatch):
    """20 convolutions; the first needs no gradient of its images, and 8 blocks sum up two gradients each.

    These go into a batch normalization of mixprec, which adds them, the first of them with the max pooling. Three pairs
    of batch normalizations are one.
    """
    scale = ["loss_scale.mode=static", "loss_scale.init_scale=8"]  # no steps to find one
    config = synthetic_run.load(name, arch="resnet18", batch=2, size=32, overrides=scale)
    modes, build = [], synthetic_run.updater_of
    monkeypatch.setattr(synthetic_run, "updater_of", lambda own, *_: modes.append(own.capture.mode) or build(own, *_))
    found = profile.measure(config, MODELS["resnet18"], "@numpy", RATES, steps=1)
    assert modes == ["off"]  # steps are eager
    counts = {kind: calls for kind, (calls, _, _) in found.by_kind().items()}
    wanted = {kinds.CONV_FPROP: 20, kinds.CONV_DGRAD: 19, kinds.CONV_WGRAD: 20, kinds.BN_FORWARD: 20}
    wanted |= {kinds.BN_BACKWARD: 20, kinds.POOLING: 4, kinds.LINEAR: 3, kinds.UPDATE: 1}
    if name == "fp32.yaml":
        wanted[kinds.GRADIENT_SUM] = 8
    else:
        wanted |= dict.fromkeys((kinds.BN_FORWARD, kinds.BN_BACKWARD), 20 - 3) | {kinds.POOLING: 2}
        assert kinds.GRADIENT_SUM not in counts
    assert {kind: counts[kind] for kind in wanted} == wanted
    dgrads, wgrads = (
        {row.layer for row in found.rows if row.kind == kind} for kind in (kinds.CONV_DGRAD, kinds.CONV_WGRAD)
    )
    assert wgrads - dgrads == {"conv1"}
    stages = {f"layer{stage}" for stage in range(1, 5)}
    assert found.by_group().keys() == {"conv1", "bn1", "fc", "(network)", "(classifier)", "(step)"} | stages
    relus = [row.name for row in found.rows if row.kind == kinds.ELEMENTWISE and "relu" in row.name.lower()]
    assert bool(relus) == (name == "fp32.yaml")  # the others are fused, watched or not


def test_nothing_stays_wrapped():
    def wrapped():
        functions = _backprop_utils.backprop_step, _backprop_utils._reduce, Normalization.apply, OptimizerStep.run
        return chainer.FunctionNode.forward, functions, dict(vars(PRIMITIVES)), dict(chainer._get_link_hooks())

    _, optimizer, _ = _trained(Small())
    before, spans = wrapped(), Spans(_ticking())
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(ValueError, match="labels"))
        stack.enter_context(watching(spans, optimizer, PRIMITIVES, RATES))
        stack.enter_context(spans.step())
        assert wrapped() != before
        optimizer.update(optimizer.target, IMAGES, LABELS + 100)
    assert (wrapped(), spans.steps) == (before, [])


@pytest.mark.parametrize("conversion", [{}, {"layout": "nchw", "fuse": False}])
def test_watching_changes_no_bit_and_outside_of_steps_and_in_failures_nothing_is_measured(conversion):
    plain, watched = (_trained(MODELS["resnet8"](10), **conversion) for _ in range(2))
    spans = Spans(_ticking())
    with watching(spans, watched[1], PRIMITIVES, RATES):
        for _, _, step in (plain, watched):
            step()
        assert not spans.steps
        with spans.step():
            with contextlib.suppress(Exception):
                PRIMITIVES.linear(np.ones(3), "nothing to multiply by")
            watched[2]()
    plain[2]()
    (found,) = spans.steps
    assert all(key.shapes != "3" for key in found.calls)
    assert sum(map(sum, found.calls.values())) + found.rest == found.seconds
    for (name, one), (_, other) in zip(plain[0].namedparams(), watched[0].namedparams(), strict=True):
        np.testing.assert_array_equal(one.array, other.array, err_msg=name)
        np.testing.assert_array_equal(one.grad, other.grad, err_msg=name)


# The clock of a device


class Device:
    """Stands for ``cupy.cuda`` and the launcher of a device: an event takes it a millisecond, unless it is ahead.

    Attributes:
        log: what it was asked.
        quick: whether it has always done everything already.
    """

    threads = 256

    def __init__(self):
        self.log, self.now, self.quick = [], 0.0, False
        device = self

        class Event:
            def record(self):
                device.now += 1.0
                self.at = device.now
                device.log.append("event")

            @property
            def done(self):
                return device.quick

        self.Event = Event

    def get_current_stream(self):
        return types.SimpleNamespace(synchronize=lambda: self.log.append("synchronize"))

    @staticmethod
    def get_elapsed_time(start, stop):
        return stop.at - start.at

    def compile(self, source, names):
        assert all(f"{name}(" in source for name in names)
        return {name: name for name in names}

    def launch(self, kernel, blocks, arguments):
        assert blocks == 1
        self.now += 1000.0
        self.log.append((kernel, *arguments))


HELD = ["event", "synchronize", ("spin", 30 * 10**6), "event"]


def test_a_device_is_held_back_anew_for_each_hundred_calls_and_for_the_update():
    device = Device()
    clock = DeviceClock(device, device)
    spans = Spans(clock)
    key = Key("conv1", kinds.CONV_FPROP, "conv_fprop", "", "", 0.0, "bytes")
    with spans.step():
        with spans.span() as outer:
            for _ in range(120):
                with spans.span() as inner:
                    inner.key = key
            outer.key = key._replace(name="outer")
        with spans.span(fresh=True) as update:
            update.key = key._replace(name="update")
    log = device.log
    holds = [place for place, each in enumerate(log) if each == HELD[2]]
    assert [log[place - 2 : place + 2] for place in holds] == [HELD] * 3
    assert holds[1] == len(HELD) + 1 + 2 * 99 + 2  # the hundredth call is the 99th inner one
    assert log[holds[2] + 2 :] == ["event", "event", "event", "synchronize"]  # of the update, and of the end
    (step,) = spans.steps
    assert clock.late == 0
    assert len(step.calls[key]) == 120
    assert step.calls[update.key] == [0.001]
    without_pauses = 0.001 * (1 + 2 * 122 + 2)  # a millisecond for each event that is not in a pause
    assert step.seconds == pytest.approx(without_pauses)
    assert sum(map(sum, step.calls.values())) + step.rest == pytest.approx(without_pauses)


def test_a_device_that_was_not_held_back_long_enough_is_held_back_longer():
    device = Device()
    clock = DeviceClock(device, device)
    made, event = [], device.Event
    device.Event = lambda: made.append(None) or event()
    spans = Spans(clock)
    device.quick = True
    for _ in range(8):
        with spans.step():
            pass
    assert (clock.late, len(made)) == (8, 3)  # events are used again
    spun = [each[1] for each in device.log if each[0] == "spin"]
    assert spun == [min(30 * 10**6 * 2**number, 10**9) for number in range(8)]


@pytest.mark.cupy
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernel_that_spins_compiles_for_a_gpu(architecture):
    log = compiler_for()(clocks.source(CupyLauncher.threads), architecture)
    assert f"spin' for '{architecture}'" in log
    assert "warning" not in log


# Rows and tables


def test_rows_have_medians_of_steps():
    one = Key("a/b", kinds.CONV_FPROP, "conv_fprop", "2x3", "eng4", 1e-6, "bytes")
    two = Key("a/c", kinds.UPDATE, "update", "", "", 5e-6, "bytes")
    steps = [Step(10e-6, 2e-6, {one: [2e-6, 3e-6]}), Step(30e-6, 4e-6, {one: [4e-6, 8e-6], two: [9e-6]})]
    steps.append(Step(20e-6, 3e-6, {one: [1e-6, 1e-6], two: [8e-6]}))
    found = profile_of(steps, 50e-6, 1)
    assert [(row.name, row.engines) for row in found.rows] == [("conv_fprop", "eng4"), ("update", "")]
    assert [row.calls for row in found.rows] == [2, 1]
    assert [row.microseconds for row in found.rows] == pytest.approx([5.0, 8.0])
    assert [row.floor for row in found.rows] == pytest.approx([2.0, 5.0])
    assert [row.gain for row in found.rows] == pytest.approx([3.0, 3.0])
    assert (found.step, found.rest, found.eager) == pytest.approx((20.0, 3.0, 50.0))
    assert found.by_group() == {"a": {kinds.CONV_FPROP: pytest.approx(5.0), kinds.UPDATE: pytest.approx(8.0)}}


PROFILE = Profile(
    (
        Row("layer1/0/bn1", kinds.BN_FORWARD, "batch_norm", "2x8", "", 1, 500.0, 100.0, "bytes"),
        Row("layer1/0/conv1", kinds.CONV_FPROP, "conv_fprop", "2x8 8x8", "eng4_k2=1", 2, 3000.0, 1500.0, "operations"),
        Row("(step)", kinds.UPDATE, "update", "", "", 1, 1000.0, 900.0, "bytes"),
        Row("fc", kinds.LINEAR, "linear", "2x8 4x8", "", 1, 0.0, 1.0, "bytes"),
    ),
    5000.0,
    500.0,
    8000.0,
    3,
    2,
)


def test_table():
    assert profile.table(PROFILE, top=2).splitlines() == [
        "a step of 5.00 ms, median of 3; 8.00 ms as it runs without a profile; 2 times the device went on before the "
        "host was ready",
        "",
        "                                 calls        ms  % of step  floor ms  share",
        "conv fprop                           2     3.000       60.0     1.500   0.50",
        "BN forward                           1     0.500       10.0     0.100   0.20",
        "linear                               1     0.000        0.0     0.001",
        "update                               1     1.000       20.0     0.900   0.90",
        "in no row: other kernels, Python, gaps     0.500       10.0",
        "",
        "ms          fprop    dgrad    wgrad       BN   update    other      all",
        "layer1      3.000    0.000    0.000    0.500    0.000    0.000    3.500",
        "(step)      0.000    0.000    0.000    0.000    1.000    0.000    1.000",
        "fc          0.000    0.000    0.000    0.000    0.000    0.000    0.000",
        "",
        "layer           kind        name        calls        us  floor us   gain us       limit  shapes; engines",
        "layer1/0/conv1  conv fprop  conv_fprop      2    3000.0    1500.0    1500.0  operations  2x8 8x8; eng4_k2=1",
        "layer1/0/bn1    BN forward  batch_norm      1     500.0     100.0     400.0       bytes  2x8",
    ]


def test_json_and_what_a_check_quotes_of_it(tmp_path):
    (tmp_path / quotes.PROFILE).write_text(json.dumps(profile.as_json(PROFILE)))
    assert quotes.profile(tmp_path, [])[:2] == [
        "a step of 5.00 ms without waiting for the host",
        "conv fprop: 2 calls, 3.000 ms, at least 1.500",
    ]
    record = json.loads((tmp_path / quotes.PROFILE).read_text())
    assert [row["gain"] for row in record["rows"][1::2]] == [1500.0, -1.0]
    assert record["kinds"][0] == {"kind": "conv fprop", "calls": 2, "microseconds": 3000.0, "floor": 1500.0}
    assert record["groups"]["layer1"] == {"BN forward": 500.0, "conv fprop": 3000.0}
    assert (record["step"], record["rest"], record["eager"], record["steps"], record["late"]) == (5000, 500, 8000, 3, 2)


def test_kinds_are_of_primitives_that_there_are():
    assert kinds._PRIMITIVES.keys() <= set(NAMES)
    assert set(kinds._PRIMITIVES.values()) | set(kinds._FUNCTIONS.values()) <= set(kinds.KINDS)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["static_graph.yaml", "fp32.yaml"])
def test_on_a_gpu(name):
    config = synthetic_run.load(name, arch="resnet18", batch=8, size=64)
    found = profile.measure(config, MODELS["resnet18"], "@cupy:0", RATES, steps=3)
    counts = {kind: calls for kind, (calls, _, _) in found.by_kind().items()}
    assert [counts[kind] for kind in (kinds.CONV_FPROP, kinds.CONV_DGRAD, kinds.CONV_WGRAD)] == [20, 19, 20]
    assert not any("spin" in row.name + row.engines for row in found.rows)
    if name == "static_graph.yaml":  # in plain Chainer's functions nothing is noted
        assert all(row.engines for row in found.rows if row.kind in (kinds.CONV_FPROP, kinds.BN_FORWARD))
    assert primitives_of(chainer.get_device("@cupy:0").send(IMAGES)).conv_fprop.__name__ == "conv_fprop"
