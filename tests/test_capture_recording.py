"""What makes a captured step right, proven without a GPU: two steps in a row ask the device for the same.

The device is a stand-in that computes nothing and takes notes: of kernels, operations of cuDNN, functions of arrays,
each with its addresses and numbers; of new memory, uploads and reads. Its memory comes from a pool, so that addresses
come again. That the comparison finds what a graph would get wrong is shown by models with a planted fault.
"""

import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers

import mixprec
from mixprec.backends import recording
from mixprec.backends.notes import taking
from models import MODELS

WARMUP = 3
# By name: the class, and the hyperparameter that a schedule moves. One of each rule in mixprec/update/rules at least.
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
}
CASES = [("resnet18", name) for name in OPTIMIZERS]
CASES += [("resnet50", name) for name in ("CorrectedMomentumSGD", "AdamW", "LAMB")]


@pytest.fixture(autouse=True)
def _installed():
    recording.install()


@pytest.fixture
def uploads(monkeypatch):
    """The bytes of all uploads by the launcher."""
    found, upload = [], recording.Launcher.upload

    def keeping(self, source, target):
        found.append(source.tobytes())
        upload(self, source, target)

    monkeypatch.setattr(recording.Launcher, "upload", keeping)
    return found


class Run:
    """Training on the stand-in for a device, always on the same batch.

    Args:
        model: a classifier of images, which is converted.
        optimizer: of Chainer's, which is wrapped with dynamic loss scaling, and gets hooks.
    """

    def __init__(self, model, optimizer):
        mixprec.convert(model, np.zeros((2, 3, 32, 32), np.float32))
        recording.send(model)
        self.optimizer = mixprec.MixedPrecisionOptimizer(optimizer).setup(model)
        assert self.optimizer.scales_dynamically
        self.optimizer.add_hook(optimizer_hooks.WeightDecay(1e-4))
        self.optimizer.add_hook(optimizer_hooks.GradientClipping(1.0))
        self.batch = recording.array(np.zeros((4, 3, 32, 32), np.float32)), recording.array(np.zeros(4, np.int32))

    def steps(self, number):
        """Runs steps; returns the notes of each."""
        found = []
        for _ in range(number):
            with taking() as notes:
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
    assert {"conv_fprop", "conv_dgrad", "conv_wgrad", "batch_norm", "check", "update"} < asked
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
