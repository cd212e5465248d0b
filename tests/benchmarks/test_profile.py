"""Profiles: which calls belong to which layer and kind, what time is whose, and that watching changes nothing."""

import collections
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
from benchmarks import configured, floors, profile, update_gpu
from benchmarks.profile import clocks, kinds, timed_calls
from benchmarks.profile.clocks import DeviceClock, HostClock
from benchmarks.profile.profile_rows import Profile, Row, profile_of
from benchmarks.profile.spans import Key, Spans, Step
from benchmarks.profile.timed_calls import watching
from benchmarks.recording_device import null_device
from benchmarks.recording_device.primitive_calls import named
from benchmarks.step import by_hand
from mixprec import functions
from mixprec.backends import primitives_of
from mixprec.backends.cudnn.plans import Plan
from mixprec.backends.launch import CupyLauncher
from mixprec.backends.primitives import Primitives
from mixprec.optimizer.step import OptimizerStep
from mixprec.rewrite.deferred import Normalization
from models import MODELS
from tests.optimizer.batch.test_cubin import ARCHITECTURES, compiler_for
from tests.stand_ins.host_launch import HostLauncher

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


def _trained(network, loss_scale=8.0, rule=None, **conversion):
    """Returns a converted classifier, its optimizer, and a step that has run twice."""
    for link in network.links():
        for number, param in enumerate(link.params(include_uninit=False)):
            if param.ndim > 1:
                param.array[...] = np.random.RandomState(number).normal(0, 0.1, param.shape)
    model = L.Classifier(network)
    mixprec.convert(model, **conversion)
    optimizer = mixprec.MixedPrecisionOptimizer(rule or optimizers.MomentumSGD(0.01), loss_scale).setup(model)

    def step():
        optimizer.update(model, IMAGES, LABELS)

    step()
    step()
    return model, optimizer, step


def _ticking():
    """A clock that moves by a second at each look."""
    return HostClock(itertools.count().__next__)


def _watched(optimizer, step, clock=None):
    spans = Spans(clock or _ticking())
    with watching(spans, optimizer, PRIMITIVES, RATES), spans.step():
        step()
    return spans.steps[0]


def _calls(step):
    """Number of calls by layer and name."""
    return {(key.layer, key.name): len(seconds) for key, seconds in step.calls.items()}


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
        ("(classifier)", kinds.LOSS, "mean_of_counted"),
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


def test_plain_chainer_has_kinds_by_function():
    _, optimizer, step = _trained(Small(), compute="float32", layout="nchw", fuse=False)
    found = {key[:3]: len(seconds) for key, seconds in _watched(optimizer, step).calls.items()}
    once = {
        ("conv1", kinds.CONV_FPROP, "Convolution2DFunction"),
        ("conv1", kinds.CONV_WGRAD, "Convolution2DGradW"),
        ("bn1", kinds.BN_FORWARD, "BatchNormalization"),
        ("bn1", kinds.BN_BACKWARD, "BatchNormalizationGrad"),
        ("(network)", kinds.ELEMENTWISE, "ReLU"),
        ("(network)", kinds.ELEMENTWISE, "ReLUGrad2"),
        ("stages/0", kinds.CONV_FPROP, "Convolution2DFunction"),
        ("stages/0", kinds.CONV_DGRAD, "Deconvolution2DFunction"),
        ("stages/0", kinds.CONV_WGRAD, "Convolution2DGradW"),
        ("fc", kinds.LINEAR, "LinearFunction"),
        ("fc", kinds.LINEAR, "LinearGradData"),
        ("fc", kinds.LINEAR, "LinearGradWeight"),
        ("(step)", kinds.UPDATE, "update"),
    }
    assert {key: found[key] for key in once} == dict.fromkeys(once, 1)
    assert sum(found[key] for key in found if key[1].startswith("conv")) == 5
    assert {key[0] for key in found if key[1] == kinds.LOSS} == {"(classifier)"}


def test_floors_are_those_of_shapes():
    _, optimizer, step = _trained(Small())
    floors = {(key.layer, key.name): key for key in _watched(optimizer, step).calls}
    key = floors["stages/0", "conv_wgrad"]
    assert key.shapes == "4x8x8x8 4x8x8x8"
    assert (key.floor, key.limit) == (2 * 4 * 8 * 8 * 8 * 8 * 9 / 1e9, "operations")
    key = floors["bn1", "batch_norm_backward"]  # dy, x and dx; mean, invstd, gamma, beta and two gradients
    assert key.limit == "bytes"
    assert key.floor == pytest.approx((3 * 4 * 8 * 8 * 8 * 2 + 6 * 8 * 4) / 1e9)


@pytest.mark.parametrize("tf32", [False, True])
def test_floors_of_convolutions_that_tf32_rounds(tf32):
    scale = ["loss_scale.mode=none", "precision.compute=float32", f"cudnn.allow_tf32={str(tf32).lower()}"]
    config = configured.load("static_graph.yaml", arch="resnet8", batch=2, size=32, overrides=scale)
    known = types.SimpleNamespace(bandwidth=1e18, flops={"float32": 1e9, "tf32": 8e9})
    found = profile.measure(config, MODELS["resnet8"], "@numpy", known, steps=1)
    (first,) = (row for row in found.rows if row.layer == "conv1" and row.kind == kinds.CONV_FPROP)
    assert first.floor == pytest.approx(2 * 2 * 32 * 32 * 16 * 27 / (8e9 if tf32 else 1e9) * 1e6)
    last = {row.layer: row for row in found.rows if row.kind in (kinds.CONV_DGRAD, kinds.CONV_WGRAD)}["layer3/0/conv2"]
    assert last.floor == pytest.approx(2 * 2 * 8 * 8 * 64 * 64 * 9 / (8e9 if tf32 else 1e9) * 1e6)
    (linear,) = (row for row in found.rows if row.name == "linear")  # of which cudnn.allow_tf32 says nothing
    assert linear.floor == pytest.approx(2 * 2 * 64 * 1000 / 1e9 * 1e6)


@pytest.mark.parametrize("rule", ["MomentumSGD", "Adam"])
def test_the_floor_of_an_update_is_that_of_the_benchmark_of_updates(rule):
    model, optimizer, step = _trained(Small(), rule=getattr(optimizers, rule)(0.01))
    (key,) = (key for key in _watched(optimizer, step).calls if key.kind == kinds.UPDATE)
    sizes = collections.Counter()
    for param in model.params():
        sizes[param.dtype.name] += param.size
    assert set(sizes) == {"float16", "float32"}
    moved = sum(size * update_gpu.BYTES[rule][dtype] for dtype, size in sizes.items())
    assert (key.floor, key.limit) == (pytest.approx(moved / RATES.bandwidth, rel=1e-12), "bytes")


class Copying(chainer.Chain):
    """Images are split into two, which are put beside each other again; a function of the old style; a link twice."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 1, nobias=True)
            self.twice = L.Convolution2D(16, 16, 1, nobias=True)
            self.fc = L.Linear(16 * 64, 10)

    def forward(self, x):
        h = self.conv(x)
        h = self.twice(self.twice(F.concat((h, F.sigmoid(h)))))
        return OldStyle()(self.fc(h))


class OldStyle(chainer.Function):
    def forward(self, inputs):
        return (inputs[0] * 2,)

    def backward(self, inputs, gradients):
        return (gradients[0] * 2,)


def test_functions_that_compute_by_themselves_and_sums_of_gradients():
    _, optimizer, step = _trained(Copying())
    found = _watched(optimizer, step)
    calls = _calls(found)
    for name in ("Concatenation", "Concatenation backward", "OldStyle", "OldStyle backward"):
        assert calls["(network)", name] == 1
    assert calls["twice", "conv_fprop"] == calls["twice", "conv_wgrad"] == 2
    (key,) = (key for key in found.calls if key.kind == kinds.GRADIENT_SUM and key.shapes.startswith("4x8"))
    assert (key.layer, key.name) == ("(network)", "add")
    assert next(key.kind for key in found.calls if key.name == "Concatenation") == kinds.LAYOUT
    assert next(key.kind for key in found.calls if key.name == "OldStyle backward") == kinds.OTHER


@pytest.mark.parametrize("name", ["static_graph.yaml", "fp32.yaml"])
def test_resnet18(name):
    """20 convolutions; the first needs no gradient of its images, and 8 blocks sum up two gradients each.

    But for that of the pooled images these go into a batch normalization of mixprec, which adds them.
    """
    scale = ["loss_scale.mode=static", "loss_scale.init_scale=8"]  # no steps to find one
    config = configured.load(name, arch="resnet18", batch=2, size=32, overrides=scale)
    found = profile.measure(config, MODELS["resnet18"], "@numpy", RATES, steps=1)
    counts = {kind: calls for kind, (calls, _, _) in found.by_kind().items()}
    wanted = {kinds.CONV_FPROP: 20, kinds.CONV_DGRAD: 19, kinds.CONV_WGRAD: 20, kinds.BN_FORWARD: 20}
    wanted |= {kinds.BN_BACKWARD: 20, kinds.POOLING: 4, kinds.LINEAR: 3, kinds.UPDATE: 1}
    wanted[kinds.GRADIENT_SUM] = 8 if name == "fp32.yaml" else 1
    assert {kind: counts[kind] for kind in wanted} == wanted
    dgrads = {row.layer for row in found.rows if row.kind == kinds.CONV_DGRAD}
    wgrads = {row.layer for row in found.rows if row.kind == kinds.CONV_WGRAD}
    assert len(dgrads) == 19
    assert wgrads - dgrads == {"conv1"}
    stages = {f"layer{stage}" for stage in range(1, 5)}
    assert found.by_group().keys() == {"conv1", "bn1", "fc", "(network)", "(classifier)", "(step)"} | stages
    assert all(row.microseconds >= 0 and row.floor > 0 for row in found.rows)
    assert sum(row.microseconds for row in found.rows) + found.rest == pytest.approx(found.step)
    assert (found.steps, found.late) == (1, 0)
    relus = [row.name for row in found.rows if row.kind == kinds.ELEMENTWISE and "relu" in row.name.lower()]
    assert bool(relus) == (name == "fp32.yaml")  # the others are fused, watched or not


def test_every_call_of_a_primitive_is_in_one_row(monkeypatch):
    _, optimizer, step = _trained(MODELS["resnet8"](10))
    for name in vars(Primitives):
        if not name.startswith("_"):
            monkeypatch.setitem(vars(PRIMITIVES), name, named(name, getattr(PRIMITIVES, name)))
    mine = dict(vars(PRIMITIVES))
    with null_device.calls() as calls:
        found = _watched(optimizer, step)
    assert vars(PRIMITIVES) == mine
    rows = collections.Counter()
    for key, seconds in found.calls.items():
        if hasattr(PRIMITIVES, key.name):
            rows[key.name] += len(seconds)
    assert rows == collections.Counter(call.name for call in calls)
    assert rows["conv_fprop"] == rows["conv_wgrad"] == 9


def test_all_time_is_in_a_row_or_in_the_rest():
    _, optimizer, step = _trained(Small())
    found = _watched(optimizer, step)
    own = [second for seconds in found.calls.values() for second in seconds]
    assert min(own) >= 1
    assert sum(own) + found.rest == found.seconds
    assert found.seconds == 1 + 2 * len(own)  # each call looks twice at the clock, and so does the step


def _wrapped():
    """All that a profile replaces, as it is now."""
    classes = [chainer.FunctionNode]
    for cls in classes:
        classes += cls.__subclasses__()
    forwards = {cls: vars(cls).get("forward") for cls in classes}
    functions = _backprop_utils.backprop_step, _backprop_utils._reduce, Normalization.compute, OptimizerStep.run
    return forwards, functions, dict(vars(PRIMITIVES)), dict(chainer._get_link_hooks())


def test_nothing_stays_wrapped():
    _, optimizer, step = _trained(Small())
    before = _wrapped()
    _watched(optimizer, step)
    assert _wrapped() == before
    spans = Spans(_ticking())
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(ValueError, match="labels"))
        stack.enter_context(watching(spans, optimizer, PRIMITIVES, RATES))
        stack.enter_context(spans.step())
        assert _wrapped() != before
        optimizer.update(optimizer.target, IMAGES, LABELS + 100)
    assert _wrapped() == before
    assert not spans.steps


def test_a_call_that_fails_is_in_no_row():
    _, optimizer, step = _trained(Small())
    spans = Spans(_ticking())
    with watching(spans, optimizer, PRIMITIVES, RATES), spans.step():
        with contextlib.suppress(Exception):
            PRIMITIVES.linear(np.ones(3), "nothing to multiply by")
        step()
    (found,) = spans.steps
    assert _calls(found)["fc", "linear"] == 1
    assert all(key.shapes != "3" for key in found.calls)
    assert sum(map(sum, found.calls.values())) + found.rest == found.seconds


@pytest.mark.parametrize("conversion", [{}, {"layout": "nchw", "fuse": False}])
def test_watching_changes_no_bit(conversion):
    plain, watched = (_trained(MODELS["resnet8"](10), **conversion) for _ in range(2))
    for _ in range(2):
        plain[2]()
        _watched(*watched[1:])
    for (name, one), (_, other) in zip(plain[0].namedparams(), watched[0].namedparams(), strict=True):
        np.testing.assert_array_equal(one.array, other.array, err_msg=name)
        np.testing.assert_array_equal(one.grad, other.grad, err_msg=name)


def test_outside_of_steps_nothing_is_measured():
    _, optimizer, step = _trained(Small())
    spans = Spans(_ticking())
    with watching(spans, optimizer, PRIMITIVES, RATES):
        step()
    assert not spans.steps


def test_steps_of_a_captured_config_are_eager(monkeypatch):
    scale = ["loss_scale.mode=static", "loss_scale.init_scale=8"]
    config = configured.load("static_graph.yaml", arch="resnet8", batch=2, size=32, overrides=scale)
    seen, build = [], configured.updater_of
    monkeypatch.setattr(configured, "updater_of", lambda config, *rest: seen.append(config) or build(config, *rest))
    found = profile.measure(config, MODELS["resnet8"], "@numpy", RATES, steps=1)
    assert config.capture.mode != "off"
    assert [each.capture.mode for each in seen] == ["off"]
    assert found.by_kind()[kinds.CONV_FPROP][0] == 9


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


def test_a_device_is_held_back_before_the_events():
    device = Device()
    spans = Spans(DeviceClock(device, device))
    with spans.step(), spans.span() as span:
        span.key = Key("conv1", kinds.CONV_FPROP, "conv_fprop", "", "", 0.0, "bytes")
    assert device.log == [*HELD, "event", "event", "event", "synchronize"]
    assert spans.steps == [Step(0.003, 0.002, {span.key: [0.001]})]


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
    assert max(map(max, step.calls.values())) < 1  # no pause, of a second, in any of them
    assert sum(map(sum, step.calls.values())) + step.rest == pytest.approx(step.seconds)
    assert step.seconds < 1


def test_primitives_of_cuda_on_a_device_that_computes_nothing():
    null_device.install()
    network = null_device.send(by_hand.NETWORKS["resnet18"](10, "float16"))
    x, t = null_device.array(IMAGES), null_device.array(LABELS)
    device = Device()
    spans = Spans(DeviceClock(device, device))
    optimizer = types.SimpleNamespace(target=network)
    with watching(spans, optimizer, primitives_of(x), RATES), null_device.calls() as calls, spans.step():
        images = functions.to_nhwc(chainer.Variable(x, requires_grad=False), "float16", channels=4)
        functions.softmax_cross_entropy(network(images), t).backward()
    (step,) = spans.steps
    found = collections.Counter()
    for key, seconds in step.calls.items():
        found[key.name, key.shapes] += len(seconds)
    assert found == collections.Counter((call.name, floors.shapes_of(call.arguments)) for call in calls)
    assert sum(count for (name, _), count in found.items() if name == "conv_dgrad") == 19
    assert sum(len(seconds) for key, seconds in step.calls.items() if key.kind == kinds.GRADIENT_SUM) == 1
    assert HELD[2] in device.log[len(HELD) :]  # there are more than a hundred


def test_a_call_has_the_names_of_what_computes_it(monkeypatch):
    """Kernels and engines in their order, and not those that are launched between two calls."""
    ran = []
    monkeypatch.setattr(CupyLauncher, "launch", lambda launcher, kernel, blocks, arguments: ran.append(kernel.name))
    monkeypatch.setattr(Plan, "run", lambda plan, *addresses: ran.append(plan.engine))
    launcher, plan = object.__new__(CupyLauncher), object.__new__(Plan)
    plan.engine = "eng4_k2=1"

    def conv_fprop(x):
        for name in ("fold", "pad", "fold"):
            launcher.launch(types.SimpleNamespace(name=name), 1, [])
        plan.run(1, 2)
        return x

    device = types.SimpleNamespace(conv_fprop=conv_fprop, relu=lambda x: x)
    device = types.SimpleNamespace(**dict.fromkeys(timed_calls._PRIMITIVES) | vars(device))
    spans = Spans(HostClock())
    with watching(spans, types.SimpleNamespace(target=L.Linear(1, 1)), device, RATES), spans.step():
        device.conv_fprop(IMAGES)
        launcher.launch(types.SimpleNamespace(name="spin"), 1, [])
        device.relu(IMAGES)
    (step,) = spans.steps
    engines = {key.name: key.engines for key in step.calls}
    assert engines == {"conv_fprop": "fold, pad, eng4_k2=1", "relu": ""}
    assert ran == ["fold", "pad", "fold", "eng4_k2=1", "spin"]


def test_a_device_that_was_not_held_back_long_enough_is_held_back_longer():
    device = Device()
    clock = DeviceClock(device, device)
    spans = Spans(clock)
    device.quick = True
    for _ in range(8):
        with spans.step():
            pass
    assert clock.late == 8
    spun = [each[1] for each in device.log if each[0] == "spin"]
    assert spun == [min(30 * 10**6 * 2**number, 10**9) for number in range(8)]


def test_events_are_used_again():
    device = Device()
    made, event = [], device.Event
    device.Event = lambda: made.append(None) or event()
    spans = Spans(DeviceClock(device, device))
    for _ in range(3):
        with spans.step():
            pass
    assert len(made) == 3


def test_the_kernel_that_spins_ends():
    launcher = HostLauncher()
    kernel = launcher.compile(clocks.source(launcher.threads), ("spin",))["spin"]
    launcher.launch(kernel, 1, [1000])
    assert launcher.launches == [1]


@pytest.mark.cupy
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernel_that_spins_compiles_for_a_gpu(architecture):
    log = compiler_for(architecture)(clocks.source(CupyLauncher.threads), architecture)
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


def test_json():
    record = json.loads(json.dumps(profile.as_json(PROFILE)))
    assert record["rows"][1]["gain"] == 1500.0
    assert record["rows"][1]["share"] == 0.5
    assert record["rows"][3]["share"] is None
    assert record["kinds"][0] == {"kind": "conv fprop", "calls": 2, "microseconds": 3000.0, "floor": 1500.0}
    assert record["groups"]["layer1"] == {"BN forward": 500.0, "conv fprop": 3000.0}
    assert (record["step"], record["rest"], record["eager"], record["steps"], record["late"]) == (5000, 500, 8000, 3, 2)


def test_kinds_are_of_primitives_that_there_are():
    assert kinds._PRIMITIVES.keys() <= vars(Primitives).keys()
    assert set(kinds._PRIMITIVES.values()) | set(kinds._FUNCTIONS.values()) <= set(kinds.KINDS)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["static_graph.yaml", "fp32.yaml"])
def test_on_a_gpu(name):
    config = configured.load(name, arch="resnet18", batch=8, size=64)
    found = profile.measure(config, MODELS["resnet18"], "@cupy:0", RATES, steps=3)
    counts = {kind: calls for kind, (calls, _, _) in found.by_kind().items()}
    assert [counts[kind] for kind in (kinds.CONV_FPROP, kinds.CONV_DGRAD, kinds.CONV_WGRAD)] == [20, 19, 20]
    assert all(row.microseconds > 0 for row in found.rows if row.kind in (kinds.CONV_FPROP, kinds.BN_FORWARD))
    assert sum(row.microseconds for row in found.rows) + found.rest == pytest.approx(found.step, rel=0.1)
    assert not any("spin" in row.name + row.engines for row in found.rows)
    if name == "static_graph.yaml":  # in plain Chainer's functions nothing is noted
        assert all(row.engines for row in found.rows if row.kind in (kinds.CONV_FPROP, kinds.BN_FORWARD))
    assert primitives_of(chainer.get_device("@cupy:0").send(IMAGES)).conv_fprop.__name__ == "conv_fprop"
