"""A representative part of Chainer computes what it always did, in the dtypes it always did.

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

from tests.compat.chainer_cases import FUNCTIONS, special
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


@pytest.mark.parametrize("mode", MODES)
def test_special_functions_and_their_gradients(mode):
    pytest.importorskip("scipy", reason="SciPy is not installed")
    for case in special().values():
        check_function(*case, mode, ulps=64)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_resize_images_and_linear_algebra(dtype):
    """These take float32 or wider only."""
    x = draw((2, 3, 3), dtype, 0)
    exact = x.astype("float64")
    for function, reference in ((F.batch_det, np.linalg.det), (F.batch_inv, np.linalg.inv)):
        assert_close(function(x).array, reference(exact), dtype, 64)
    spd = np.einsum("ij,kj->ik", exact[0], exact[0]) + np.eye(3)
    assert_close(F.cholesky(spd.astype(dtype)).array, np.linalg.cholesky(spd), dtype, 64)


EXACT = {
    "ceil": (F.ceil, np.ceil),
    "floor": (F.floor, np.floor),
    "fix": (F.fix, np.trunc),
    "sign": (F.sign, np.sign),
    "dropout in a test": (lambda x: predicting(F.dropout, x), lambda x: x),
    "zoneout of no units": (lambda x: F.zoneout(x, x, 0.0), lambda x: x),
}


def predicting(function, *args):
    with chainer.using_config("train", False):
        return function(*args)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", EXACT)
def test_function_with_an_exact_result(name, mode):
    function, reference = EXACT[name]
    with computing_in(mode) as dtype:
        x = draw((3, 4), dtype, 0)
        y = function(chainer.Variable(x))
        assert y.dtype == dtype
        np.testing.assert_array_equal(y.array, reference(x))


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_functions(mode):
    with computing_in(mode) as dtype:
        x = np.array([[1, 3, 2], [4, 1, 0], [0, 1, 2]], dtype)
        accuracy = F.accuracy(x, np.array([1, 0, 0], "int32"))
        assert_close(accuracy.array, 2 / 3, dtype, 1)
        score = F.r2_score(np.array([1, 2, 4], dtype), np.array([1, 2, 3], dtype))
        assert_close(score.array, 0.5, dtype, 2)


LINKS = {
    "BatchNormalization": (lambda: L.BatchNormalization(4), (6, 4)),
    "Bias": (lambda: L.Bias(1, (4,)), (3, 4)),
    "Convolution2D": (lambda: L.Convolution2D(3, 4, 3, pad=1), (2, 3, 4, 4)),
    "Convolution2D, lazy": (lambda: L.Convolution2D(None, 4, 3, stride=2), (2, 3, 5, 5)),
    "ConvolutionND": (lambda: L.ConvolutionND(1, 3, 4, 3), (2, 3, 6)),
    "Deconvolution2D": (lambda: L.Deconvolution2D(3, 2, 2), (2, 3, 3, 3)),
    "DepthwiseConvolution2D": (lambda: L.DepthwiseConvolution2D(2, 2, 3), (1, 2, 4, 4)),
    "DilatedConvolution2D": (lambda: L.DilatedConvolution2D(2, 2, 2, dilate=2), (1, 2, 4, 4)),
    "GroupNormalization": (lambda: L.GroupNormalization(2, 4), (2, 4, 2, 3)),
    "GRU": (lambda: L.GRU(4, 3), (2, 4)),
    "Highway": (lambda: L.Highway(4), (3, 4)),
    "LayerNormalization": (lambda: L.LayerNormalization(4), (3, 4)),
    "Linear": (lambda: L.Linear(4, 2), (3, 4)),
    "Linear, lazy": (lambda: L.Linear(None, 2), (3, 4)),
    "LSTM": (lambda: L.LSTM(4, 3), (2, 4)),
    "Maxout": (lambda: L.Maxout(4, 3, 2), (3, 4)),
    "MLPConvolution2D": (lambda: L.MLPConvolution2D(3, [4, 2], 3), (1, 3, 4, 4)),
    "PReLU": (lambda: L.PReLU((4,)), (3, 4)),
    "Scale": (lambda: L.Scale(1, (4,)), (3, 4)),
    "StatefulPeepholeLSTM": (lambda: L.StatefulPeepholeLSTM(4, 3), (2, 4)),
    "Swish": (lambda: L.Swish((4,)), (3, 4)),
}


def run_link(link, x):
    """The output; a recurrent link sees ``x`` twice, so that its state counts."""
    if hasattr(link, "reset_state"):
        link.reset_state()
        link(x)
    return link(x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LINKS)
def test_link_keeps_the_dtypes_and_the_values(name, mode):
    """Against the same link, with the same parameters, in float64; gradients have the dtype of their parameter."""
    make, shape = LINKS[name]
    np.random.seed(0)
    with computing_in(mode) as dtype:
        link = make()
        link.cleargrads()
        x = chainer.Variable(draw(shape, dtype, 0))
        y = run_link(link, x)
        y.grad = gy = output_gradient(y)
        y.backward()
    wide = mode == "mixed16" and isinstance(link, L.BatchNormalization | L.GroupNormalization)
    for path, parameter in link.namedparams():
        assert parameter.dtype == parameter.grad.dtype == ("float32" if wide else dtype), path
    if isinstance(link, L.BatchNormalization):
        assert link.avg_mean.dtype == link.avg_var.dtype == ("float32" if wide else dtype)
    with computing_in("float64"):
        reference = link.copy(mode="copy")
        reference.cleargrads()
        for parameter in reference.params():
            parameter.array = parameter.array.astype("float64")
        exact = chainer.Variable(x.array.astype("float64"))
        z = run_link(reference, exact)
        z.grad = gy.astype("float64")
        z.backward()
    assert_close(y.array, z.array, dtype, 16)
    assert_close(x.grad, exact.grad, dtype, 32)
    for (_, parameter), (_, expected) in zip(link.namedparams(), reference.namedparams(), strict=True):
        assert_close(parameter.grad.astype(dtype), expected.grad, dtype, 32)


GRADIENTS = [draw((3, 4), "float16", seed) for seed in (1, 2, 3)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", [float, np.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "initializer",
    [
        "Constant",
        "GlorotNormal",
        "HeNormal",
        "HeUniform",
        "LeCunNormal",
        "LeCunUniform",
        "Normal",
        "Orthogonal",
        "Uniform",
    ],
)
def test_initializers_fill_in_the_configured_dtype(initializer, mode):
    kind = getattr(chainer.initializers, initializer)
    with computing_in(mode) as dtype:
        array = chainer.initializers.generate_array(kind(0.5) if initializer == "Constant" else kind(), (4, 6), np)
    assert array.dtype == dtype
    assert np.isfinite(array).all()
    assert array.any()


def test_the_table_is_broad():
    assert len(FUNCTIONS) + len(EXACT) >= 100
    assert len(OPTIMIZERS) == 15
