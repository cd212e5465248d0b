"""benchmarks.bars.chainer_rows: what a step of plain Chainer is, and which rows there are where."""

import functools
import weakref

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer import optimizers
from chainer.backends import cuda

from benchmarks.bars import chainer_rows
from benchmarks.bars.row_worker import BenchmarkRow, Task
from benchmarks.bars.timed_step import LR
from mixprec.app.parts import environment
from models import MODELS

pytestmark = pytest.mark.slow

OFF = "off: MIXPREC_CUDNN=0"


def test_rows_on_a_cpu():
    first, second, third = chainer_rows.bars("@numpy")
    assert (first.name, first.reason) == ("plain Chainer FP32", "")
    assert second == BenchmarkRow("plain Chainer FP32, cuDNN", reason="needs a GPU")
    assert (third.name, third.reason) == ("plain Chainer mixed16", "")
    assert chainer_rows.base("@numpy") == first.name


@pytest.mark.parametrize("enabled", [True, False])
def test_rows_on_a_gpu(enabled, monkeypatch):
    monkeypatch.setattr(cuda, "cudnn_enabled", enabled)
    components = [environment.Component("Chainer's cuDNN", "missing", note=OFF)]
    monkeypatch.setattr(environment, "components", lambda: components)
    first, *rows = chainer_rows.bars("@cupy:0")
    assert (first.name, first.reason) == ("plain Chainer FP32, no cuDNN", "")
    assert first.make.keywords == {"use_cudnn": "never"}
    names = ["plain Chainer FP32, cuDNN", "plain Chainer FP32, cuDNN, autotuned"]
    names += ["plain Chainer mixed16", "plain Chainer mixed16, autotuned"]
    assert [(row.name, row.reason) for row in rows] == [(name, "" if enabled else OFF) for name in names]
    if enabled:
        plain, mixed = {"use_cudnn": "auto"}, {"use_cudnn": "auto", "mixed": True}
        expected = [{**keywords, "autotune": autotune} for keywords in (plain, mixed) for autotune in (False, True)]
        assert [row.make.keywords for row in rows] == expected
    assert chainer_rows.base("@cupy:0") == rows[0].name


class Spy(chainer.FunctionNode):
    """Doubles nothing; notes the configuration that its passes see."""

    def __init__(self, seen):
        self.seen = seen

    def forward(self, inputs):
        self.seen.append((chainer.config.use_cudnn, chainer.config.autotune))
        return inputs

    def backward(self, indexes, grads):
        self.seen.append((chainer.config.use_cudnn, chainer.config.autotune))
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


def test_the_configuration_is_in_force_in_a_step_and_only_there_and_nothing_is_held_after_it():
    before = chainer.config.use_cudnn, chainer.config.autotune
    seen, arrays = [], []
    network = functools.partial(Spied, seen, arrays)
    run = chainer_rows.step(Task("", network, "@numpy", 2, 4), use_cudnn="never", autotune=not before[1])
    assert seen == []
    run()
    run()
    assert seen == [("never", not before[1])] * 4
    assert (chainer.config.use_cudnn, chainer.config.autotune) == before
    assert [array() for array in arrays] == [None, None]


def test_a_step_is_one_of_a_training_loop_by_hand():
    models = []

    def network(classes):
        np.random.seed(0)
        models.append(MODELS["resnet8"](classes))
        return models[-1]

    with chainer.using_config("dtype", chainer.mixed16):  # as CHAINER_DTYPE may ask for
        run = chainer_rows.step(Task("", network, "@numpy", 4, 8), use_cudnn="never")
    run()
    run()
    model = network(1000)
    optimizer = optimizers.CorrectedMomentumSGD(lr=LR).setup(model)
    x = np.random.RandomState(0).normal(size=(4, 3, 8, 8)).astype(np.float32)
    for _ in range(2):
        loss = F.softmax_cross_entropy(model(x), np.arange(4, dtype=np.int32))
        model.cleargrads()
        loss.backward()
        optimizer.update()
    for (name, measured), expected in zip(models[0].namedparams(), model.params(), strict=True):
        assert measured.dtype == np.float32
        np.testing.assert_array_equal(measured.array, expected.array, err_msg=name)


def test_mixed16_has_weights_in_float16_and_updates_in_float32():
    models = []
    task = Task("", lambda classes: models.append(MODELS["resnet8"](classes)) or models[-1], "@numpy", 2, 8)
    chainer_rows.step(task, mixed=True)()
    (model,) = models
    assert {param.dtype.name for param in model.params() if param.ndim > 1} == {"float16"}
    assert all(param.update_rule._use_fp32_update for param in model.params())


@pytest.mark.gpu
def test_plain_chainer_is_measured_on_the_gpu():
    from benchmarks.bars.row_schedule import Timing, measure

    bars = chainer_rows.bars("@cupy:0")
    task = Task("resnet18", MODELS["resnet18"], "@cupy:0", 8, 64)
    *_, results = measure(bars, task, Timing(2, 2, 300.0))
    for result, bar in zip(results, bars, strict=True):
        assert result.reason == bar.reason  # none, but where there is no cuDNN
        assert result.reason or result.blocks[0].peak > 8 * 3 * 64 * 64 * 2
    assert not results[0].reason
