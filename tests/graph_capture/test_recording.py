"""What makes a captured step right, proven without a GPU: two steps in a row ask the device for the same.

The device is a stand-in that computes nothing and takes notes: of kernels, operations of cuDNN, functions of arrays,
each with its addresses and numbers; of new memory, uploads and reads. Its memory comes from a pool, so that addresses
come again. That the comparison finds what a graph would get wrong is shown by models with a planted fault.
"""

import inspect
import re

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers

import mixprec
from benchmarks.recording_device import null_device
from mixprec.backends.device_log import recording
from mixprec.graph_capture import CaptureError
from mixprec.graph_capture.cuda_graphs import graphs_of
from mixprec.graph_capture.verification import Verification
from mixprec.graph_capture.watch import difference, watching
from models import MODELS

WARMUP = 3
# By name: the class, and the hyperparameter that a schedule moves. At least one of each in mixprec/optimizer/rules.
OPTIMIZERS = {
    "SGD": (optimizers.SGD, {}, "lr"),
    "MomentumSGD": (optimizers.MomentumSGD, {}, "lr"),
    "CorrectedMomentumSGD": (optimizers.CorrectedMomentumSGD, {}, "lr"),
    "NesterovAG": (optimizers.NesterovAG, {}, "lr"),
    "AdaGrad": (optimizers.AdaGrad, {}, "lr"),
    "AdaDelta": (optimizers.AdaDelta, {}, "rho"),
    "RMSprop": (optimizers.RMSprop, {}, "lr"),
    "RMSprop, eps inside": (optimizers.RMSprop, {"eps_inside_sqrt": True}, "lr"),
    "RMSpropGraves": (optimizers.RMSpropGraves, {}, "lr"),
    "SMORMS3": (optimizers.SMORMS3, {}, "lr"),
    "Adam": (optimizers.Adam, {}, "alpha"),
    "AdamW": (optimizers.AdamW, {}, "alpha"),
    "AMSGrad": (optimizers.AMSGrad, {}, "alpha"),
    "AdaBound": (optimizers.AdaBound, {}, "alpha"),
    "AMSBound": (optimizers.AMSBound, {}, "alpha"),
    "MSVAG": (optimizers.MSVAG, {}, "lr"),
    "LARS": (mixprec.LARS, {}, "lr"),
    "LAMB": (mixprec.LAMB, {}, "lr"),
    "SGDW": (mixprec.SGDW, {"nesterov": True}, "lr"),
    "ScheduleFreeSGD": (mixprec.ScheduleFreeSGD, {"lr": 0.1}, "lr"),
}
CASES = [("resnet8", name) for name in OPTIMIZERS] + [("resnet18", "MomentumSGD"), ("resnet50", "LAMB")]


@pytest.fixture(autouse=True)
def _installed():
    null_device.install()


@pytest.fixture
def uploads(monkeypatch):
    """The bytes of all uploads by the launcher."""
    found, upload = [], null_device.Launcher.upload

    def keeping(self, source, target):
        found.append(source.tobytes())
        upload(self, source, target)

    monkeypatch.setattr(null_device.Launcher, "upload", keeping)
    return found


class Run:
    """Training on the stand-in for a device, always on the same batch.

    Args:
        model: a classifier of images, which is converted.
        optimizer: of Chainer's, which is wrapped with dynamic loss scaling, and gets hooks.
    """

    def __init__(self, model, optimizer):
        mixprec.convert(model, np.zeros((2, 3, 32, 32), np.float32))
        null_device.send(model)
        self.optimizer = mixprec.MixedPrecisionOptimizer(optimizer).setup(model)
        assert self.optimizer.scales_dynamically
        self.optimizer.add_hook(optimizer_hooks.WeightDecay(1e-4))
        self.optimizer.add_hook(optimizer_hooks.GradientClipping(1.0))
        self.graphs = graphs_of(next(model.params()).array)
        self.batch = null_device.array(np.zeros((4, 3, 32, 32), np.float32)), null_device.array(np.zeros(4, np.int32))

    def steps(self, number):
        """Runs steps; returns the notes of each."""
        found = []
        for _ in range(number):
            with self.graphs.on_stream(), recording() as notes:
                self.optimizer.update(self.optimizer.target, *self.batch)
            found.append(notes)
        return found


# --- the proof


@pytest.mark.parametrize(("model", "name"), CASES, ids=[f"{model}, {name}" for model, name in CASES])
def test_two_steps_in_a_row_ask_for_the_same(model, name, uploads):
    cls, settings, moved = OPTIMIZERS[name]
    run = Run(L.Classifier(MODELS[model](10)), cls(**settings))
    run.steps(WARMUP)
    before, now = _with_a_schedule(run, moved, uploads)
    assert now == before
    asked = {note.name for note in now}
    assert {"conv_fprop", "conv_dgrad", "conv_wgrad", "batch_norm_apply", "check", "update"} < asked
    assert "read" not in {note.kind for note in now}
    # Without a schedule nothing is uploaded: there is nothing else that moves.
    run.steps(1)
    assert run.steps(1) == [[note for note in now if note.kind != "upload"]]
    assert run.optimizer.report().batched == len(list(run.optimizer.target.params()))


def _with_a_schedule(run, moved, uploads):
    """Runs two steps, each with another learning rate; returns their notes.

    Each uploads the head of one table, and the second of these differs from the first in the learning rate only.
    """
    found = []
    for value in (0.125, 0.0625):
        setattr(run.optimizer, moved, value)
        uploads.clear()
        (notes,) = run.steps(1)
        assert [note.name for note in notes if note.kind == "upload"] == ["table"]
        (table,) = uploads
        found.append((notes, np.frombuffer(table)))
    (before, old), (now, new) = found
    is_other = old.view(np.uint64) != new.view(np.uint64)
    assert set(old[is_other]) == {0.125}
    assert set(new[is_other]) == {0.0625}
    return before, now


# --- planted faults


class Net(chainer.Chain):
    """A network with nothing that a graph could not repeat; faults go between its two halves."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.bn = L.BatchNormalization(8)
            self.fc = L.Linear(8, 10)

    def forward(self, x):
        h = F.dropout(F.relu(self.bn(self.conv(x))))
        h = self.between(F.average(h, axis=(2, 3)))
        return self.fc(h)

    def between(self, h):
        return h


class Reads(Net):
    def between(self, h):
        return h * (2.0 if float(F.sum(h).array) is not None else 3.0)  # fault


class Carries(Net):
    kept = None

    def between(self, h):
        if self.kept is not None:
            h = h + self.kept  # fault
        self.kept = h.array
        return h


class CarriesInPlace(Net):
    """This is right: what is carried has one place."""

    kept = None

    def between(self, h):
        if self.kept is None:
            self.kept = self.xp.zeros_like(h.array)
        h = h + self.kept
        self.kept[...] = h.array
        return h


class Counts(Net):
    k = 1.0

    def between(self, h):
        self.k *= 0.5
        return h * self.k  # fault


class Branches(Net):
    calls = 0

    def between(self, h):
        self.calls += 1
        return F.tanh(h) if self.calls % 2 else F.sigmoid(h)  # fault


class Decides(Net):
    def between(self, h):
        positive = h.array[:, 0] > 0
        return F.tanh(h) if positive.any() else h  # fault


class Uploads(Net):
    def between(self, h):
        return h * np.linspace(0, 1, 8, dtype=h.dtype)  # fault


# By model: what the host does in each step and must not, or None if steps differ; and what captured steps say of it.
FAULTS = {
    Carries: (None, "the function Add uses memory that is kept from one step to the next"),
    Counts: (None, "value of the function MulConstant is"),
    Branches: (None, "the step asks for the function"),
    Reads: ("read", "the host reads from the device"),
    Decides: ("read", "the host reads from the device"),
    Uploads: ("upload", "Mul: something of the host is copied to the device"),
}


@pytest.mark.parametrize("model", [Net, CarriesInPlace])
def test_a_model_without_fault_asks_for_the_same(model):
    run = Run(L.Classifier(model()), optimizers.MomentumSGD())
    run.steps(WARMUP)
    before, now = run.steps(2)
    assert now == before
    assert not {"read", "upload"} & {note.kind for note in now}


@pytest.mark.parametrize("model", FAULTS)
def test_a_planted_fault_is_found(model):
    """Either as two steps that differ, or as what the host must not do in either of them."""
    run = Run(L.Classifier(model()), optimizers.MomentumSGD())
    run.steps(WARMUP)
    before, now = run.steps(2)
    what, _ = FAULTS[model]
    assert {note.kind for note in now if note.kind in ("read", "upload")} == {what} - {None}
    if what is None:
        assert now != before


@pytest.mark.parametrize("model", [Net, CarriesInPlace])
def test_what_a_captured_step_looks_at_is_the_same_without_fault(model):
    run = Run(L.Classifier(model()), optimizers.MomentumSGD())
    run.steps(2)
    seen = []
    for _ in range(2):
        with run.graphs.on_stream(), watching(run.graphs) as notes:
            run.optimizer.update(run.optimizer.target, *run.batch)
        seen.append(notes)
    assert difference(*seen) is None


@pytest.mark.parametrize(("model", "reason"), [(model, FAULTS[model][1]) for model in FAULTS])
def test_captured_steps_name_a_planted_fault_and_its_line(model, reason, caplog):
    run = Run(L.Classifier(model()), optimizers.MomentumSGD())
    step = mixprec.capture(run.optimizer)
    _call(step, run.batch)
    assert step.replays == 0
    assert re.match(rf'{re.escape(__file__)}:\d+ ".*# fault": {reason}', step.why_not)
    line = int(re.search(r":(\d+) ", step.why_not)[1])
    source, first = inspect.getsourcelines(model)
    assert source[line - first].rstrip().endswith("# fault")
    assert [record.getMessage() for record in caplog.records].count(
        f"the training step runs eagerly, it cannot be captured: {step.why_not}"
    ) == 1


def test_where_a_planted_fault_is_an_error():
    run = Run(L.Classifier(Counts()), optimizers.MomentumSGD())
    step = mixprec.capture(run.optimizer, required=True)
    with pytest.raises(CaptureError, match=rf"required: {re.escape(__file__)}:\d+ .*# fault.*: value of the function"):
        _call(step, run.batch)


def _call(step, batch):
    for _ in range(9):  # after some of them it has made up its mind
        step(*batch)


def test_what_a_comparison_does_with_filters_is_flat():
    """CuPy would go through them in the order of their axes, which is not that of their memory."""
    null_device.install()
    W = null_device.array(np.ones((8, 3, 3, 4), np.float32)).transpose(0, 3, 1, 2)
    before = W.strides
    with recording() as notes:
        verification = Verification({"W": W}, bitwise=False)
        outcome = verification.outcome([])
        verification.turn_back()
        verification.take(outcome)
        verification.apart(outcome, [], {})
    launched = [note for note in notes if note.kind == "array"]
    assert [note.name for note in launched][:4] == ["copy", "copy", "setitem", "setitem"]
    shapes = [part[1] for note in launched for part in note.arguments if isinstance(part, tuple) and len(part) == 3]
    assert {shape for shape in shapes if shape} == {(8 * 4 * 3 * 3,)}
    assert W.strides == before
