"""Parameters of the links: Chainer's values, names and arguments, filters channels last in memory."""

import copy
import pickle

import chainer
import chainer.functions as CF
import chainer.links as CL
import numpy as np
import pytest
from chainer import initializers

from mixprec import links as L
from tests.functions.nhwc import BFLOAT16, DTYPES, normal, to_nchw

# name: (link of mixprec, link of Chainer), each from keyword arguments; and an input (N, H, W, C)
PAIRS = {
    "convolution": (
        lambda **rest: L.Convolution2D(6, 8, (3, 2), 2, 1, dilate=1, groups=2, **rest),
        lambda **rest: CL.Convolution2D(6, 8, (3, 2), 2, 1, dilate=1, groups=2, **rest),
    ),
    "convolution, lazy": (
        lambda **rest: L.Convolution2D(8, 3, pad=1, **rest),
        lambda **rest: CL.Convolution2D(8, 3, pad=1, **rest),
    ),
    "deconvolution": (
        lambda **rest: L.Deconvolution2D(6, 4, 4, 2, 1, groups=2, outsize=(12, 11), **rest),
        lambda **rest: CL.Deconvolution2D(6, 4, 4, 2, 1, groups=2, outsize=(12, 11), **rest),
    ),
    "deconvolution, lazy": (
        lambda **rest: L.Deconvolution2D(None, 4, 3, **rest),
        lambda **rest: CL.Deconvolution2D(None, 4, 3, **rest),
    ),
    "linear": (lambda **rest: L.Linear(180, 7, **rest), lambda **rest: CL.Linear(180, 7, **rest)),
    "linear, lazy": (lambda **rest: L.Linear(7, **rest), lambda **rest: CL.Linear(7, **rest)),
}
pairs = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
FILTERS = [pair for name, pair in PAIRS.items() if "conv" in name]
INPUT = 2, 6, 5, 6


def _both(pair, **rest):
    """Both links with the same random numbers, after a forward pass; and the results, that of Chainer in NHWC."""
    mine, chainers = pair
    x = normal(0, *INPUT)
    np.random.seed(3)
    link = mine(**rest)
    y = link(x)
    np.random.seed(3)
    other = chainers(**rest)
    y_other = other(to_nchw(x)).array
    return link, other, y.array, y_other.transpose(0, 2, 3, 1) if y_other.ndim == 4 else y_other


def _is_channels_last(array):
    return array.transpose(0, 2, 3, 1).flags.c_contiguous


ARGUMENTS = [
    {},
    {"nobias": True},
    {"initialW": initializers.HeNormal(fan_option="fan_out"), "initial_bias": initializers.Uniform(1.0)},
    {"initialW": 0.25, "initial_bias": 2},
]


@pairs
@pytest.mark.parametrize("rest", ARGUMENTS, ids=["default", "nobias", "initializers", "numbers"])
def test_values_and_results_are_chainers(pair, rest):
    link, other, y, y_other = _both(pair, **rest)
    assert isinstance(link, type(other))
    found, expected = dict(link.namedparams()), dict(other.namedparams())
    assert sorted(found) == sorted(expected)
    for name in found:
        np.testing.assert_array_equal(found[name].array, expected[name].array, strict=True)
    np.testing.assert_allclose(y, y_other, rtol=1e-4, atol=1e-5)
    if type(other) is not CL.Deconvolution2D:  # which shows nothing
        assert str(link) == str(other)[:-1] + ", dtype=float32)"


@pairs
@pytest.mark.parametrize("dtype", DTYPES)
def test_other_dtypes_have_the_values_of_float32_rounded(pair, dtype):
    link, *_ = _both(pair)
    np.random.seed(3)
    rounded = pair[0](dtype=dtype.name)
    assert rounded.W.dtype == rounded.b.dtype == dtype
    y = rounded(normal(0, *INPUT, dtype=dtype))
    assert y.dtype == rounded.W.array.dtype == rounded.b.array.dtype == dtype
    np.testing.assert_array_equal(rounded.W.array, link.W.array.astype(dtype), strict=True)


def test_the_dtype_is_that_of_the_keyword_the_initializer_or_the_configuration():
    assert L.Linear(3, 4).W.dtype == np.float32
    with chainer.using_config("dtype", chainer.mixed16):
        assert L.Convolution2D(3, 4, 3).W.dtype == np.float16
        assert L.Convolution2D(3, 4, 3, dtype="bfloat16").b.dtype == BFLOAT16
        assert L.BatchNormalization(3).gamma.dtype == L.BatchNormalization(3).avg_mean.dtype == np.float32
    with chainer.using_config("dtype", np.float16):
        assert L.Deconvolution2D(None, 4, 3).W.dtype == np.float16
        assert L.BatchNormalization(3).gamma.dtype == L.BatchNormalization(3).avg_var.dtype == np.float32
    assert L.Linear(3, 4, initialW=initializers.Normal(dtype=np.float16)).W.dtype == np.float16
    with pytest.raises(ValueError, match=r"dtype must be one of float16, bfloat16, float32, .*; found 'float64'"):
        L.Linear(3, 4, dtype="float64")


@pytest.mark.parametrize("pair", FILTERS)
def test_filters_and_their_gradients_lie_channels_last(pair):
    link, *_ = _both(pair)
    assert _is_channels_last(link.W.array)
    y = link(normal(0, *INPUT))
    y.grad = np.ones_like(y.array)
    link.cleargrads()
    y.backward()
    assert link.W.grad.strides == link.W.array.strides


def test_filters_of_a_known_size_do_so_from_the_start():
    assert _is_channels_last(L.Convolution2D(3, 4, 3).W.array)
    assert _is_channels_last(L.Deconvolution2D(3, 4, 3).W.array)
    with chainer.using_config("compute_mode", "cudnn_fast"):
        link = L.Convolution2D(3, 4, 3)
    assert link.W.layout is None
    assert link(normal(0, 1, 5, 5, 3)).shape == (1, 3, 3, 4)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda link: pickle.loads(pickle.dumps(link)),
    "copy": lambda link: link.copy("copy"),
    "init": lambda link: link.copy("init"),
    "share": lambda link: link.copy("share"),
    "in a chain": lambda link: pickle.loads(pickle.dumps(chainer.Sequential(link).copy("init")))[0],
    "to_device": lambda link: link.to_device("@numpy"),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_lie_channels_last(copied):
    link = L.Convolution2D(6, 8, 3, dtype="float16")
    other = copied(link)
    assert isinstance(other, L.Convolution2D)
    assert _is_channels_last(other.W.array)
    if copied not in (COPIES["init"], COPIES["in a chain"]):
        np.testing.assert_array_equal(other.W.array, link.W.array, strict=True)
    assert other(normal(0, *INPUT, dtype=np.float16)).dtype == np.float16
    assert (other.W.array is link.W.array) == (copied in (COPIES["share"], COPIES["to_device"]))


def test_a_device_that_copies_into_the_order_of_axes(monkeypatch):
    link = L.Convolution2D(6, 8, 3)
    monkeypatch.setattr(type(link.device), "send", lambda self, arrays: np.array(arrays, order="C"))
    link.to_device("@numpy")
    assert _is_channels_last(link.W.array)


def test_what_somebody_else_has_put_there_is_laid_out_at_the_next_call():
    link = L.Convolution2D(6, 8, 3)
    given = normal(5, *link.W.shape)
    link.W.array = given
    x = normal(0, *INPUT)
    y = link(x)
    assert _is_channels_last(link.W.array)
    laid_out = link.W.array
    link(x)
    assert link.W.array is laid_out
    np.testing.assert_array_equal(laid_out, given)
    np.testing.assert_allclose(to_nchw(y.array), CF.convolution_2d(to_nchw(x), given).array, rtol=1e-4, atol=1e-5)


@pairs
@pytest.mark.parametrize("dtype", DTYPES)
def test_copyparams_from_and_to_chainer(pair, dtype):
    mine, other, *_ = _both(pair)
    for link in (pair[0](dtype=dtype), mine.copy("init")):
        link.copyparams(other)
        np.testing.assert_array_equal(link.W.array, other.W.array.astype(link.W.dtype), strict=True)
        back = pair[1]()
        back.copyparams(link)
        np.testing.assert_array_equal(back.W.array, link.W.array.astype(np.float32), strict=True)


def test_from_params():
    W, b = normal(0, 4, 3, 3, 3), normal(1, 4)
    link = L.Convolution2D.from_params(W, b, stride=2)
    assert type(link) is L.Convolution2D
    np.testing.assert_array_equal(link.W.array, W)
    np.testing.assert_array_equal(L.Linear.from_params(W.reshape(4, 27), b).b.array, b)


def test_an_input_that_is_no_image_is_refused_before_parameters_are_made():
    link = L.Convolution2D(None, 8, 3)
    with pytest.raises(ValueError, match=r"Convolution2D: x must be \(N, H, W, C\); found shape \(2, 6\)"):
        link(normal(0, 2, 6))
    assert link.W.array is None


def test_a_lazy_linear_layer_counts_the_axes_that_are_no_batch():
    x = normal(0, 2, 3, 5).astype(np.float32)
    ours, chainers = L.Linear(None, 4, initialW=0.5), CL.Linear(None, 4, initialW=0.5)
    y = ours(x, n_batch_axes=2)
    assert (ours.W.shape, y.shape) == ((4, 5), (2, 3, 4))
    np.testing.assert_allclose(y.array, chainers(x, n_batch_axes=2).array, rtol=1e-5)
