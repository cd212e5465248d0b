"""Arrays and numbers beside variables of a converted model: dtypes, float64, and what 16 bits cannot hold."""

import inspect
import operator
import re
import types

import chainer
import chainer.functions as F
import chainer.links as L
import ml_dtypes
import numpy as np
import pytest

import mixprec
from mixprec.rewrite import operands
from mixprec.rewrite.trace import Trace
from tests.cases import first, in_turn, pairs

OPTIONS = {
    "float16": {"compute": "float16"},
    "bfloat16": {"compute": "bfloat16"},
    "nchw": {"compute": "float16", "layout": "nchw"},
}


class Net(chainer.Chain):
    """A convolution and a linear layer, of whose results ``function`` makes one."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        np.random.seed(0)
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 1)
            self.l = L.Linear(4, 4)

    def forward(self, x):
        return self.function(self.conv(x) if x.ndim == 4 else self.l(x))


VECTORS = np.random.RandomState(0).uniform(0.5, 2, (3, 4)).astype(np.float32)
IMAGES = np.random.RandomState(0).uniform(0.5, 2, (2, 3, 4, 4)).astype(np.float32)


def run(function, x, options):
    """Returns the result of ``function`` inside of a model, plain with ``None``, and the gradient of the bias."""
    seen = []
    net = Net(lambda h: seen.append(function(F.absolute(h) + 1)) or F.sum(seen[-1]))
    if options is not None:
        mixprec.convert(net, **options)
    loss = net(x)
    net.cleargrads()
    loss.backward()
    return seen[-1], (net.conv if x.ndim == 4 else net.l).b.grad.astype(np.float64)


OPERATORS = {
    "h + a": operator.add,
    "a + h": lambda h, a: a + h,
    "h += a": operator.iadd,
    "F.add(h, a)": F.add,
    "h - a": operator.sub,
    "a - h": lambda h, a: a - h,
    "h * a": operator.mul,
    "h / a": operator.truediv,
    "a / h": lambda h, a: a / h,
    "h // a": lambda h, a: h // a + 0 * h * a,
    "a // h": lambda h, a: a // h + 0 * h * a,
    "h ** a": operator.pow,
    "a ** h": lambda h, a: a**h,
    "F.maximum": F.maximum,
    "F.where": lambda h, a: F.where(h.array > 1.5, h, F.broadcast_to(a, h.shape)),
    "F.scale": lambda h, a: F.scale(h, np.broadcast_to(a, h.shape), axis=0),
}


@pytest.mark.parametrize(("name", "x", "options"), first(18, pairs(list(OPERATORS), [VECTORS, IMAGES], list(OPTIONS))))
def test_an_array_of_float32_makes_the_result_float32(name, x, options):
    a = np.full(x.shape if x.ndim == 2 else (2, 4, 4, 4), 1.25, np.float32)
    found, gradient = run(lambda h: OPERATORS[name](h, a), x, OPTIONS[options])
    expected, expected_gradient = run(lambda h: OPERATORS[name](h, a), x, None)
    assert found.dtype == np.float32
    eps = 2.0**-8 if options == "bfloat16" else 2.0**-11
    if "//" not in name:  # which jumps
        np.testing.assert_allclose(found.array, expected.array, rtol=16 * eps, atol=16 * eps)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=32 * eps, atol=32 * eps * np.abs(gradient).max())


WEAK = {
    "number": 2.0,
    "float32": np.float32(2),
    "float64": np.float64(2),
    "array without axes": np.array(2, np.float32),
    "integers": np.full(4, 2),
    "booleans": np.full(4, True),
}


@pytest.mark.parametrize(("kind", "compute"), in_turn(WEAK, ["float16", "bfloat16"]))
def test_numbers_and_integers_do_not_decide(kind, compute):
    a = WEAK[kind]
    for name in ("h + a", "a + h", "h * a", "a - h", "a / h", "h / a"):
        found, _ = run(lambda h, name=name: OPERATORS[name](h, a), VECTORS, {"compute": compute})
        expected, _ = run(lambda h, name=name: OPERATORS[name](h, a), VECTORS, None)
        assert found.dtype == compute
        np.testing.assert_allclose(found.array.astype(np.float32), expected.array, rtol=2.0**-5, atol=2.0**-5)


DTYPES = [
    ("float16", np.float16, "float16"),
    ("bfloat16", ml_dtypes.bfloat16, "bfloat16"),
    ("bfloat16", np.float16, "float32"),
    ("float16", np.float64, "float32"),
    ("float32", np.float16, "float32"),
    ("float32", np.float64, "float32"),
]


@pytest.mark.parametrize(("compute", "dtype", "result"), DTYPES)
def test_dtypes_of_arrays(compute, dtype, result):
    assert run(lambda h: h * np.ones(4, dtype), VECTORS, {"compute": compute})[0].dtype == result


def test_outside_of_converted_models_operators_are_chainers():
    mixprec.convert(Net(F.relu))
    h = chainer.Variable(np.ones(3, np.float16))
    assert (h + np.ones(3, np.float32)).dtype == np.float16


@pytest.mark.parametrize("options", OPTIONS)
def test_a_row_that_is_masked_as_a_whole_is_no_nan(options):
    found, _ = run(lambda h: F.softmax(h + np.full(h.shape, -1e9, np.float32)), VECTORS, OPTIONS[options])
    np.testing.assert_allclose(found.array, 0.25, rtol=1e-3)


@pytest.mark.parametrize("mask", [np.float32, np.float16])
def test_a_mask_of_dropout_counts_as_an_input(mask):
    found, gradient = run(lambda h: F.dropout(h, mask=np.full(h.shape, 2, mask)), VECTORS, {})
    expected, expected_gradient = run(lambda h: F.dropout(h, mask=np.full(h.shape, 2, np.float32)), VECTORS, None)
    assert found.dtype == mask
    np.testing.assert_allclose(gradient, expected_gradient)
    np.testing.assert_allclose(found.array, expected.array, rtol=2e-3)


# float64, which NumPy makes of float32 by np.sqrt(0.5) and the like.

LINKS = {
    "convolution": lambda: L.Convolution2D(3, 4, 3),
    "deconvolution": lambda: L.Deconvolution2D(3, 4, 3),
    "linear": lambda: L.Linear(4),
    "normalization": lambda: chainer.Sequential(L.BatchNormalization(3), F.relu),
    "scale": lambda: L.Scale(1, (3,)),
}


@pytest.mark.parametrize(("name", "options"), in_turn(LINKS, OPTIONS))
def test_inputs_of_float64_are_cast(name, options):
    model = chainer.Sequential(LINKS[name]())
    mixprec.convert(model, IMAGES.astype(np.float64) if options == "nchw" else None, **OPTIONS[options])
    x = chainer.Variable(IMAGES.astype(np.float64))
    y, of_array = model(x), model(x.array)
    assert y.dtype == of_array.dtype == np.float32
    np.testing.assert_array_equal(y.array, of_array.array)
    np.testing.assert_array_equal(y.array, model(IMAGES).array)
    model.cleargrads()
    F.sum(y).backward()
    assert x.grad.dtype == np.float64


FUNCTIONS = {
    "matmul": lambda h, a: F.matmul(h, a, transb=True),
    "einsum": lambda h, a: F.einsum("ij,kj->ik", h, a),
    "concat": lambda h, a: F.concat([h, a]),
    "where": lambda h, a: F.where(h.array > 1.5, h, a),
    "loss": F.mean_squared_error,
    "gaussian_nll": lambda h, a: F.gaussian_nll(chainer.as_variable(a), h, h),
    "normal": lambda h, a: chainer.distributions.Normal(h, a).log_prob(a),
}


@pytest.mark.parametrize(("name", "options"), in_turn(FUNCTIONS, OPTIONS))
def test_float64_that_meets_variables_of_a_model_is_cast(name, options):
    found, gradient = run(lambda h: FUNCTIONS[name](h, VECTORS.astype(np.float64)), VECTORS, OPTIONS[options])
    expected, expected_gradient = run(lambda h: FUNCTIONS[name](h, VECTORS), VECTORS, None)
    eps = 2.0**-8 if options == "bfloat16" else 2.0**-11
    assert found.dtype in (np.float32, OPTIONS[options]["compute"])
    np.testing.assert_allclose(found.array.astype(np.float32), expected.array, rtol=16 * eps, atol=16 * eps)
    np.testing.assert_allclose(gradient, expected_gradient, atol=64 * eps * np.abs(expected_gradient).max())


def test_where_all_is_float64_it_stays():
    link = L.Linear(4, 4, initialW=np.eye(4), initial_bias=np.zeros(4))
    link.W.array, link.b.array = link.W.array.astype(np.float64), link.b.array.astype(np.float64)
    net = Net(lambda h: link(F.cast(h, "float64")))
    with net.init_scope():
        net.double = link
    mixprec.convert(net)
    assert net(VECTORS).dtype == net.double(VECTORS.astype(np.float64)).dtype == np.float64
    with pytest.raises(chainer.utils.type_check.InvalidType, match="float64"):
        chainer.Sequential(link)(VECTORS)


def test_errors_speak_of_the_dtype_that_there_was():
    with pytest.raises(chainer.utils.type_check.InvalidType, match="float16 != int32"):
        run(lambda h: F.maximum(h, np.ones(h.shape, np.int32)), VECTORS, {})


# What becomes 0 or inf.

LOST = {
    "+ 1e-8": (lambda h: h + 1e-8, "1e-08 becomes 0 in float16 (AddConstant)"),
    "- 1e9": (lambda h: h - 1e9, "-1e+09 becomes -inf in float16 (AddConstant)"),
    "/ 1e9": (lambda h: h / np.float32(1e9), "1e-09 becomes 0 in float16 (MulConstant)"),
    "clip": (lambda h: F.clip(h, 1e-8, 1.0), "1e-08 becomes 0 in float16 (Clip)"),
    "leaky": (lambda h: F.leaky_relu(h, 1e-9), "1e-09 becomes 0 in float16 (LeakyReLU)"),
    "pad": (lambda h: F.pad(h, 1, "constant", constant_values=-1e9), "-1e+09 becomes -inf in float16 (Pad)"),
    "sequence": (lambda h: F.pad_sequence([h], padding=-1e9), "-1e+09 becomes -inf in float16 (PadSequence)"),
    "array without axes": (lambda h: h + np.array(1e-9, np.float32), "an array of numbers up to 1e-09 becomes 0"),
    "integers": (lambda h: h + np.full(4, -(10**9)), "an array of numbers up to 1e+09 becomes inf"),
    "matmul": (lambda h: F.matmul(h, np.full((4, 4), 1e6, np.float32)), "an array of numbers up to 1e+06 becomes inf"),
}


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
@pytest.mark.parametrize("name", LOST)
def test_what_float16_cannot_hold_is_named_once_with_its_line(name, announced):
    function, said = LOST[name]
    net = Net(function)
    mixprec.convert(net)
    for _ in range(3):
        net(VECTORS)
    (message,) = [each for each in announced.messages if "becomes" in each]
    assert message.startswith(f"{__file__}:{inspect.getsourcelines(function)[1]}: {said}")


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_inputs_are_looked_at_while_calls_are_traced(announced):
    net = chainer.Sequential(L.Convolution2D(3, 4, 1))
    mixprec.convert(net, IMAGES)
    net(IMAGES * 1e6)
    assert "becomes" not in announced.text
    mixprec.convert(net)
    net(IMAGES * 1e6)
    assert re.search(r"test_operands.py:\d+ .*: an array of numbers up to .* becomes inf in float16", announced.text)


class OnDevice(np.ndarray):
    """An array that cannot be read."""

    def astype(self, *args, **kwargs):
        raise AssertionError("it is read")


def test_arrays_on_a_device_are_read_on_the_example_only():
    array, conversion = np.zeros(3, np.float32).view(OnDevice), types.SimpleNamespace(on_example=False)
    scope = types.SimpleNamespace(conversion=conversion, trace=Trace(False))
    operands.name_lost_array(scope, array, np.dtype(np.float16))
    conversion.on_example = True
    with pytest.raises(AssertionError, match="it is read"):
        operands.name_lost_array(scope, array, np.dtype(np.float16))


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
def test_what_is_no_news(compute, announced):
    def fine(h):
        h = F.clip((h + 0.0) * 1e-5 + np.zeros(4, int) + np.array(np.inf), None, 2.0)
        h = (F.exp(h) + 1e-8) ** 1e-9 + np.full(4, 1e-9, np.float32)
        return F.matmul(h, np.diag([1e-9, 1, 1, 1]))

    mixprec.convert(Net(fine), VECTORS, compute=compute)
    if compute == "bfloat16":
        mixprec.convert(Net(lambda h: h * 1e-8 - 1e9), VECTORS, compute=compute)
    assert "becomes" not in announced.text
