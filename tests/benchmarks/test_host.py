"""``scripts/benchmark.py host``: steps are replayed without computing, and only what is promised is replaced."""

import json
import subprocess
import sys

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import function_node

import mixprec
from benchmarks import host, launches
from benchmarks.processes import Worker
from benchmarks.replay import Tape
from mixprec.backends.cpu import PRIMITIVES
from models import MODELS
from tests import ROOT

SCRIPT = ROOT / "scripts" / "benchmark.py"
PARTS = ["forward and backward", "forward, backward, update"]
NAMES = ["plain Chainer", "mixprec.convert", "mixprec.convert, fuse=False", "mixprec.convert, layout='nchw'"]


class Net(chainer.Chain):
    """A convolution, a batch normalization, a branch and a sum: Chainer adds two gradients."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, pad=1)
            self.bn = L.BatchNormalization(8)
            self.fc = L.Linear(8 * 16, 5)

    def forward(self, x):
        h = F.relu(self.bn(self.conv(x)))
        return self.fc(F.relu(h + F.tanh(h)))


def _step(**settings):
    model = L.Classifier(Net())
    if settings:
        mixprec.convert(model, **settings)
    x, t = np.random.RandomState(0).normal(size=(2, 3, 4, 4)).astype(np.float32), np.array([0, 4], np.int32)

    def step():
        model.cleargrads()
        loss = model(x, t)
        loss.backward()
        return [loss.array.copy(), *(param.grad.copy() for _, param in sorted(model.namedparams()))]

    return model, step


SETTINGS = [{}, {"compute": "float16"}, {"compute": "float32", "layout": "nchw", "fuse": False}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_replayed_step_computes_nothing(settings):
    model, step = _step(**settings)
    for _ in range(2):
        step()
    results = []
    tape = Tape(lambda: results.append(step()))
    mean = model.predictor.bn.avg_mean.copy()
    for param in model.params():
        param.array[...] = np.nan  # would be seen in everything that is computed
    with tape.replaying() as start:
        for _ in range(3):
            start()
            results.append(step())
    for replayed in results[1:]:
        for found, expected in zip(replayed, results[0], strict=True):
            np.testing.assert_array_equal(found, expected, strict=True)
            assert np.isfinite(found).all()
    np.testing.assert_array_equal(model.predictor.bn.avg_mean, mean)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_afterwards_everything_computes_again(settings):
    _, step = _step(**settings)
    for _ in range(2):
        step()
    classes = [function_node.FunctionNode, *function_node.FunctionNode.__subclasses__()]
    before = [vars(cls).get("forward") for cls in classes]
    expected = step()
    with Tape(step).replaying() as start:
        start()
        step()
    assert [vars(cls).get("forward") for cls in classes] == before
    assert vars(PRIMITIVES) == {}
    for found, wanted in zip(step(), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_nodes_of_mixprec_run_and_their_primitives_are_replaced():
    _, step = _step(compute="float16")
    for _ in range(2):
        step()
    kinds = [kind for kind, _, _ in Tape(step).calls]
    assert kinds.count("batch_norm") == kinds.count("batch_norm_backward") == 1
    assert not any(kind.__module__.startswith("mixprec.") for kind in kinds if not isinstance(kind, str))
    assert [kind.__name__ for kind in kinds if not isinstance(kind, str)].count("Add") == 2  # of the net, of gradients


def test_a_step_that_computes_something_else_is_an_error():
    x = chainer.Variable(np.ones(3, np.float32))
    tape = Tape(lambda: F.exp(x))

    def replay(step):
        with tape.replaying() as start:
            start()
            step()

    with pytest.raises(RuntimeError, match="computes Sin, where Exp was recorded"):
        replay(lambda: F.sin(x))
    with pytest.raises(RuntimeError, match="computes Sin, which it did not when"):
        replay(lambda: F.sin(F.exp(x)))
    with pytest.raises(RuntimeError, match="ended before Exp, which"):
        replay(lambda: None)
    assert F.exp(x).array[0] == np.exp(np.float32(1))


def test_narrow_models_run_and_keep_the_order_of_their_memory():
    plain, by_hand = host.narrow(MODELS["resnet18"](8)), host.narrow(launches.NETWORKS["resnet18"](8, "float32"))
    shapes = {name: param.shape for name, param in plain.namedparams()}
    assert shapes == {name: param.shape for name, param in by_hand.namedparams()}
    assert {shape[0] for shape in shapes.values()} == {8}
    assert all(param.array.transpose(0, 2, 3, 1).flags.c_contiguous for param in by_hand.params() if param.ndim == 4)
    x = np.random.RandomState(0).normal(size=(2, 3, 32, 32)).astype(np.float32)
    assert plain(x).shape == by_hand(x.transpose(0, 2, 3, 1).copy()).shape == (2, 8)


def _apply_of_chainer():
    return function_node.FunctionNode.apply.__module__, chainer.Link.__call__.__module__


def test_plain_chainer_has_nothing_of_a_conversion_in_its_process():
    with Worker() as worker:
        counts = worker.call(host._prepare, host.PLAIN, "resnet8", MODELS["resnet8"])
        assert list(counts) == PARTS
        assert worker.call(_apply_of_chainer) == ("chainer.function_node", "chainer.link")


def test_the_script_prints_a_table_and_writes_the_same_numbers(tmp_path):
    command = [sys.executable, SCRIPT, "host", "--arch", "resnet8", "--repeats", "1", "--profile"]
    process = subprocess.run(
        [*command, "--json", "host.json"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr
    record = json.loads((tmp_path / "host.json").read_text())
    assert record["settings"] == {"arch": "resnet8", "repeats": 1}
    assert {"date", "python", "numpy", "chainer", "mixprec", "commit", "cpu"} <= record.keys()
    assert [(row["part"], row["name"]) for row in record["rows"]] == [(part, name) for part in PARTS for name in NAMES]
    for row in record["rows"]:
        base = next(other["milliseconds"] for other in record["rows"] if other["part"] == row["part"])
        assert row["ratio"] == pytest.approx(row["milliseconds"] / base)
        assert row["bound"] == (1.0 if row["name"] == "mixprec.convert" else None)
        assert f"  {row['name']:38}{row['milliseconds']:10.2f}" in process.stdout
    kernels = {row["name"]: row["kernels"] for row in record["rows"] if row["part"] == PARTS[0]}
    # Seven ReLUs forward and backward, and three additions.
    assert kernels["mixprec.convert, fuse=False"] - kernels["mixprec.convert"] == 2 * 7 + 3
    assert process.stdout.count("Ordered by: internal time") == 4


def test_groups_are_refused(tmp_path):
    process = subprocess.run(
        [sys.executable, SCRIPT, "host", "--arch", "resnext50_32x4d"], cwd=tmp_path, capture_output=True, text=True
    )
    assert process.returncode == 2
    assert "--arch" in process.stderr
