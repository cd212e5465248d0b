"""What mixprec replaces in Chainer computes what it always did, in the dtypes it always did.

Values are compared with float64 references that Chainer has no part in; dtypes with the rules of NumPy 1, under which
Chainer was written: float16 stays float16, float32 stays float32, mixed16 is float16 with float32 statistics.
"""

import contextlib
import math

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from tests.cases import pairs
from tests.compat.chainer_cases import FUNCTIONS
from tests.optimizer.batch.chainer_rules import OPTIMIZERS

MODES = ["float16", "float32", "mixed16"]


@contextlib.contextmanager
def computing_in(mode):
    """Sets Chainer's dtype; yields the dtype of activations."""
    dtype = chainer.mixed16 if mode == "mixed16" else np.dtype(mode)
    with chainer.using_config("dtype", dtype):
        yield np.dtype("float16") if mode == "mixed16" else dtype


def draw(spec, dtype, seed):
    """Distinct values with equal gaps, none of them 0: no ties for a maximum, no kinks within a difference step."""
    shape, low, high = spec if isinstance(spec[0], tuple) else (spec, -1.75, 2.25)
    values = np.linspace(low, high, 2 * math.prod(shape) + 1)[1::2]
    return np.random.RandomState(seed).permutation(values).reshape(shape).astype(dtype)


def output_gradient(y):
    return draw(((*y.shape, 1), 0.5, 1.5), y.dtype, 9).reshape(y.shape)


def numerical_gradients(function, inputs, weights):
    """Central differences of ``sum(weights * function(*inputs))`` in float64."""
    gradients = []
    for k, x in enumerate(inputs):
        gradient = np.empty_like(x)
        for index in np.ndindex(x.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = x.copy()
                moved[index] += step
                ends.append((weights * function(*inputs[:k], moved, *inputs[k + 1 :])).sum())
            gradient[index] = (ends[0] - ends[1]) / 2e-6
        gradients.append(gradient)
    return gradients


def assert_close(actual, expected, dtype, ulps):
    """Equal to ``ulps`` units of the dtype at the size of the largest value; and of that dtype."""
    assert actual.dtype == dtype
    assert actual.shape == np.shape(expected)
    size = max(np.abs(expected).max(initial=0), 1e-3)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=ulps * np.finfo(dtype).eps * size)


def check_function(function, reference, specs, mode, ulps):
    with computing_in(mode) as dtype:
        arrays = [draw(spec, dtype, seed) for seed, spec in enumerate(specs)]
        exact = [a.astype("float64") for a in arrays]
        inputs = [chainer.Variable(a) for a in arrays]
        y = function(*inputs)
        expected = np.asarray(reference(*exact))
        assert_close(y.array, expected, dtype, ulps)
        weights = output_gradient(y)
        y.grad = weights.copy()  # hinge divides the gradient it is given in place
        y.backward()
        gradients = numerical_gradients(reference, exact, weights.astype("float64"))
        for x, gradient in zip(inputs, gradients, strict=True):
            assert_close(x.grad, gradient, dtype, 2 * ulps + (1e-8 / np.finfo(dtype).eps))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_and_its_gradient(name, mode):
    check_function(*FUNCTIONS[name], mode, ulps=8)


GRADIENTS = [draw((3, 4), "float16", seed) for seed in (1, 2, 3)]


@pytest.mark.parametrize(("name", "number", "mode"), pairs(list(OPTIMIZERS), [np.float64, float], MODES))
def test_optimizer_follows_its_formula(name, number, mode):
    """Three steps against the formula in float64, also with hyperparameters that are NumPy scalars."""
    hyperparameters, formula = OPTIMIZERS[name]
    with computing_in(mode) as dtype:
        link = chainer.Link()
        with link.init_scope():
            link.w = chainer.Parameter(draw((3, 4), dtype, 0))
        exact = link.w.array.astype("float64")
        optimizer = getattr(chainer.optimizers, name)(**{k: number(v) for k, v in hyperparameters.items()})
        optimizer.setup(link)
        if mode == "mixed16":
            optimizer.use_fp32_update()
        state = {}
        for step, gradient in enumerate(GRADIENTS, 1):
            link.w.grad = gradient.astype(dtype)
            optimizer.update()
            state["p"] = exact
            exact = exact - formula(state, gradient.astype("float64"), step)
    # MSVAG divides a difference that is 0 in the first step by 1e-4: in float16 nothing but rounding errors is left.
    if not (name == "MSVAG" and mode == "float16"):
        assert_close(link.w.array, exact, dtype, 16)
    for key, value in link.w.update_rule.state.items():
        if isinstance(value, np.ndarray):
            assert value.dtype == ("float32" if mode == "mixed16" else dtype), key


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("file_format", ["npz", "hdf5"])
def test_serializers_keep_values_and_dtypes_bit_for_bit(file_format, mode, tmp_path):
    """A model with its optimizer: saved, loaded into fresh ones, trained on; the same bits as without a break.

    (Not trained on in mixed16, where Chainer does not save the float32 masters.)
    """
    if file_format == "hdf5":
        pytest.importorskip("h5py", reason="h5py is not installed")
    save = getattr(chainer.serializers, f"save_{file_format}")
    load = getattr(chainer.serializers, f"load_{file_format}")

    def make(seed):
        np.random.seed(seed)
        model = chainer.Sequential(L.Linear(4, 5), L.BatchNormalization(5), F.relu, L.Linear(5, 2))
        optimizer = chainer.optimizers.Adam(eps=1e-4).setup(model)
        if mode == "mixed16":
            optimizer.use_fp32_update()
        return model, optimizer

    def step(model, optimizer, seed):
        x = draw((6, 4), dtype, seed)
        optimizer.update(lambda: F.sum(model(x) ** 2))

    with computing_in(mode) as dtype:
        model, optimizer = make(0)
        step(model, optimizer, 1)
        save(tmp_path / f"model.{file_format}", model)
        save(tmp_path / f"optimizer.{file_format}", optimizer)
        other, restored = make(7)
        load(tmp_path / f"model.{file_format}", other)
        load(tmp_path / f"optimizer.{file_format}", restored)
        if mode != "mixed16":
            step(model, optimizer, 2)
            step(other, restored, 2)
    assert restored.t == optimizer.t
    pairs = zip(model.namedparams(), other.namedparams(), strict=True)
    for (path, parameter), (_, loaded) in pairs:
        assert loaded.dtype == parameter.dtype, path
        np.testing.assert_array_equal(loaded.array, parameter.array, err_msg=path)
    np.testing.assert_array_equal(other[1].avg_var, model[1].avg_var)
