"""What makes a captured step right, proven without a GPU: two steps in a row ask the device for the same.

The device is a stand-in that computes nothing and takes notes: of kernels, operations of cuDNN, functions of arrays,
each with its addresses and numbers; of new memory, uploads and reads. Its memory comes from a pool, so that addresses
come again. That the comparison finds what a graph would get wrong is shown in ``test_gpu.py``.
"""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers

import mixprec
from benchmarks.recording_device import null_device
from mixprec.backends.device_log import recording
from mixprec.graph_capture.cuda_graphs import graphs_of
from mixprec.graph_capture.verification import Verification
from mixprec.graph_capture.watch import difference, watching
from models import MODELS
from tests.cases import first

WARMUP = 3
# By name: the class, and the hyperparameter that a schedule moves.
OPTIMIZERS = {
    "MomentumSGD": (optimizers.MomentumSGD, "lr"),
    "AdaDelta": (optimizers.AdaDelta, "rho"),
    "AdamW": (optimizers.AdamW, "alpha"),
    "MSVAG": (optimizers.MSVAG, "lr"),
    "LAMB": (mixprec.LAMB, "lr"),
    "ScheduleFreeSGD": (mixprec.ScheduleFreeSGD, "lr"),
}
CASES = [
    ("resnet8", "LAMB"),
    ("resnet18", "MomentumSGD"),
    *(("resnet8", name) for name in OPTIMIZERS if name != "LAMB"),
]


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


@pytest.mark.parametrize(("model", "name"), first(2, CASES))
def test_two_steps_in_a_row_ask_for_the_same(model, name, uploads):
    cls, moved = OPTIMIZERS[name]
    run = Run(L.Classifier(MODELS[model](10)), cls())
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


class CarriesInPlace(chainer.Chain):
    """What is carried from step to step has one place, which a graph can repeat."""

    def __init__(self):
        super().__init__()
        self._kept = None
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.bn = L.BatchNormalization(8)
            self.fc = L.Linear(8, 10)

    def forward(self, x):
        h = F.average(F.dropout(F.relu(self.bn(self.conv(x)))), axis=(2, 3))
        if self._kept is None:
            self._kept = self.xp.zeros_like(h.array)
        h = h + self._kept
        self._kept[...] = h.array
        return self.fc(h)


def test_what_a_captured_step_looks_at_is_the_same_without_fault():
    run = Run(L.Classifier(CarriesInPlace()), optimizers.MomentumSGD())
    run.steps(2)
    seen = []
    for _ in range(2):
        with run.graphs.on_stream(), watching(run.graphs) as notes:
            run.optimizer.update(run.optimizer.target, *run.batch)
        seen.append(notes)
    assert difference(*seen) is None


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
