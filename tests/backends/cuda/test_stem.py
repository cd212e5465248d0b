"""First convolutions on squares of pixels, run on the host, beside the same convolution of NumPy's primitives."""

import types

import chainer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends import primitives_of
from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.cuda.stem import Squares, squares_of
from mixprec.backends.cudnn import settings as cudnn
from mixprec.backends.geometry import Convolution, Following
from mixprec.functions import convolution_2d
from mixprec.functions.layer_gradients import Observer, observing
from tests.backends.cpu.test_convolution import bounds, chainers, drawn
from tests.backends.primitive_cases import BFLOAT16, FLOAT16, FLOAT32, STORAGE, arrays, assert_close, exact, seeds
from tests.cases import tries
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)
from tests.stand_ins.cuda_on_host import HostCuda, receive, same, send

RESNET = Convolution((2, 2), (3, 3))
HALVES = [dtype for dtype in STORAGE if dtype != FLOAT32]


def by_numpy(x, before, squares):
    """Returns images (N, H, W, C) as squares, after numbers of squares of zeros."""
    pads = [
        (2 * zeros, 2 * (count - zeros) - size)
        for zeros, count, size in zip(before, squares, x.shape[1:3], strict=True)
    ]
    x = np.pad(x, [(0, 0), *pads, (0, 4 - x.shape[3])])
    return x.reshape(len(x), squares[0], 2, squares[1], 2, 4).transpose(0, 1, 3, 2, 4, 5).reshape(len(x), *squares, 16)


def on_squares(x, w, dy, convolution, b=None, relu=False):
    """Returns the products of a convolution on squares: its result, the gradients of images and of filters."""
    cuda = HostCuda()
    form = cuda.conv_form(x.shape, w.shape, x.dtype, convolution)
    assert isinstance(form, Squares)
    x_shape, dtype = x.shape, x.dtype
    x, w, dy, b = send((x, w, dy, b))
    images = cuda.conv_images(x, form, dtype)
    y = cuda.conv_fprop(images, w, form, b, relu=relu)
    dx = cuda.conv_images_backward(cuda.conv_dgrad(dy, w, form, images.shape), form, x_shape, dtype)
    return receive((y, dx, cuda.conv_wgrad(images, dy, form, w.shape)))


@st.composite
def stems(draw):
    """A convolution with a stride of 2, a shape of images of few channels, and one of a filter, which fits."""
    sizes, pads = st.integers(1, 7), st.integers(0, 3)
    filter_size, pad = draw(st.tuples(sizes, sizes)), draw(st.tuples(pads, pads))
    size = [2 * draw(st.integers(max(1, -(-(r - 2 * p) // 2)), 7)) for r, p in zip(filter_size, pad, strict=True)]
    channels = draw(st.integers(1, 4))
    shape = draw(st.integers(1, 3)), *size, channels
    return Convolution((2, 2), pad), shape, (draw(st.sampled_from([1, 8, 13])), *filter_size, channels)


@settings(max_examples=tries(40))
@given(case=stems(), dtype=st.sampled_from(HALVES), seed=seeds)
def test_against_float64(case, dtype, seed):
    convolution = case[0]
    x, w, dy = drawn(case, dtype, seed)
    for found, right, bound in zip(
        on_squares(x, w, dy, convolution), chainers(x, w, dy, convolution), bounds(x, w, dy, convolution), strict=True
    ):
        assert_close(found, right, dtype, bound)


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_stem_of_a_resnet_on_integers_is_exact(dtype, channels):
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((2, 20, 28, channels), (8, 7, 7, channels)))
    b = rng.integers(-2, 3, 8).astype(dtype)
    y = PRIMITIVES.conv_fprop(x, w, RESNET, b, relu=True)
    dy = rng.integers(-1, 2, y.shape).astype(dtype)
    expected = y, PRIMITIVES.conv_dgrad(dy, w, RESNET, x.shape), PRIMITIVES.conv_wgrad(x, dy, RESNET, w.shape)
    assert max(np.abs(exact(each)).max() for each in expected) < 256  # of bfloat16, too
    for found, right in zip(on_squares(x, w, dy, RESNET, b, True), expected, strict=True):
        np.testing.assert_array_equal(exact(found), exact(right))


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_images_are_folded_and_cast_in_one_launch_in_either_order_of_memory(dtype, channels, aligned):
    cuda, x = HostCuda(), arrays(np.random.default_rng(0), (2, 6, 4, channels), dtype)
    form = squares_of(x.shape, (8, 7, 7, channels), RESNET)
    assert (form.squares, form.zeros) == ((6, 5), (2, 2))
    expected = by_numpy(PRIMITIVES.cast(x, FLOAT16), (2, 2), (6, 5))
    for channels_first in (False, True):
        images = send(x.transpose(0, 3, 1, 2) if channels_first else x, not aligned)
        with cuda.counting() as counted:
            found = cuda.conv_images(images, form, FLOAT16, channels_first=channels_first)
        assert counted.kernels == 1
        same(found, expected)
    back = cuda.conv_images_backward(found, form, x.shape, dtype)
    same(back, PRIMITIVES.cast(PRIMITIVES.cast(x, FLOAT16), dtype))


NOT_FOLDED = [
    ((1, 8, 8, 8), RESNET, FLOAT16),  # channels enough
    ((1, 8, 9, 3), RESNET, FLOAT16),
    ((1, 9, 8, 3), RESNET, FLOAT16),
    ((1, 8, 8, 3), Convolution((1, 1), (3, 3)), FLOAT16),
    ((1, 16, 16, 3), Convolution((2, 2), (3, 3), (2, 2)), FLOAT16),
    ((1, 8, 8, 3), Convolution((2, 2), (3, 3), groups=3), FLOAT16),
    ((1, 2, 2, 3), Convolution((2, 2)), FLOAT16),  # the filter is larger, which is an error elsewhere
    ((1, 8, 8, 3), RESNET, FLOAT32),  # no Tensor cores
]


@pytest.mark.parametrize(("shape", "convolution", "dtype"), NOT_FOLDED)
def test_what_is_not_folded(shape, convolution, dtype):
    w_shape = 6, 7, 7, shape[3] // convolution.groups
    assert HostCuda().conv_form(shape, w_shape, dtype, convolution) is convolution
    assert PRIMITIVES.conv_form(shape, w_shape, dtype, convolution) is convolution


SQUARES = [
    ("off", 90, ["squares"]),
    ("measure", 90, ["squares"]),
    ("heuristic", 80, ["squares", "conv"]),
    ("measure", 80, ["squares", "conv"]),
]


@pytest.mark.parametrize(("autotune", "capability", "names"), SQUARES)
def test_squares_are_first_and_all_on_an_h100(autotune, capability, names, monkeypatch):
    """What is not measured is the first of these.

    What is measured is both passes and the batch normalization between them, with images as in Chainer.
    """
    cudnn.configure(autotune=autotune, cache=None)
    shapes, cuda = ((1, 8, 8, 3), (8, 7, 7, 3)), HostCuda(capability=capability)
    assert [name for name, _ in cuda._form_candidates(*shapes, FLOAT16, RESNET)] == names
    measured = {}

    def choose(key, candidates):
        if key.startswith("conv_form") and len(candidates) > 1:
            for name, call in candidates:
                call()
                with cuda.counting() as measured[name]:
                    call()
        return candidates[-1][0]

    monkeypatch.setattr(cuda.cudnn, "choose", choose)
    form = cuda.conv_form(*shapes, FLOAT16, RESNET)
    if autotune == "measure" and capability != 90:
        assert form is RESNET
        assert {name: (found.kernels, len(found.plans)) for name, found in measured.items()} == {
            "squares": (3 + 2, 2),
            "conv": (3 + 2, 2),
        }
    else:
        assert isinstance(form, Squares)
        assert not measured


@pytest.mark.parametrize(("dtype", "deterministic"), [(FLOAT16, False), (FLOAT16, True), (BFLOAT16, False)], ids=str)
def test_sums_for_a_batch_normalization(dtype, deterministic):
    """Of a result as it is without sums, by the rule for all convolutions; cuDNN takes none of bfloat16."""
    cudnn.configure(deterministic=deterministic)
    cuda = HostCuda()
    x, w, _ = drawn((RESNET, (2, 12, 8, 3), (8, 7, 7, 3)), dtype, 0)
    form = cuda.conv_form(x.shape, w.shape, dtype, RESNET)
    images, filters = cuda.conv_images(send(x), form, dtype), send(w)
    expected = receive(cuda.conv_fprop(images, filters, form))
    y, sums = receive(cuda.conv_fprop(images, filters, form, statistics=Following(relu=True)))
    same(send(y), expected)
    assert (sums is None) == (dtype == BFLOAT16 or deterministic)
    if sums is not None:
        flat = exact(y).reshape(-1, 8)
        np.testing.assert_allclose(sums, [flat.sum(0), (flat**2).sum(0)], rtol=1e-2, atol=0.1)


@pytest.mark.parametrize("bias", [False, True])
def test_second_moments_are_those_of_the_images(bias):
    cuda, x = HostCuda(), arrays(np.random.default_rng(0), (2, 8, 6, 3), FLOAT16)
    found, expected = (np.zeros((1, 147 + bias, 147 + bias), np.float32) for _ in range(2))
    form, moments = cuda.conv_form(x.shape, (8, 7, 7, 3), FLOAT16, RESNET), send(found)
    cuda.patch_moments(cuda.conv_images(send(x), form, FLOAT16), form, (7, 7), moments, bias=bias)
    PRIMITIVES.patch_moments(x, RESNET, (7, 7), expected, bias=bias)
    np.testing.assert_allclose(np.tril(receive(moments)), np.tril(expected), rtol=1e-5, atol=1e-5)


class Watching(Observer):
    """Keeps the second moments of the patches of convolutions."""

    def __init__(self, size, like):
        self.moments = like.send(np.zeros((1, size, size), np.float32))

    def filters(self, inputs, x, dy, w_shape, convolution):
        primitives_of(x).patch_moments(x, convolution, w_shape[1:3], self.moments)

    def scales(self, *arguments):
        raise AssertionError


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("channels", [3, 4])
def test_a_convolution_of_variables_keeps_squares_in_place_of_images(device, host, monkeypatch, channels, wanted):  # noqa: F811
    """They are made once, for both passes; gradients, and what an observer sees, are as without."""
    rng = np.random.default_rng(0)
    x, W = (rng.integers(-2, 3, shape).astype(FLOAT16) for shape in ((2, 12, 8, channels), (8, 7, 7, 3)))
    x[..., 3:] = 0
    results, launched, launch = [], [], device.kernels.launch

    def launch_and_note(file, name, *rest, **more):
        launched.append(name)
        launch(file, name, *rest, **more)

    monkeypatch.setattr(device.kernels, "launch", launch_and_note)
    for sent in (lambda array: array, host.send):
        image, filters = chainer.Variable(sent(x), requires_grad=wanted), sent(W).transpose(0, 3, 1, 2)
        filters = chainer.Parameter(filters)
        with host.graphs.on_stream():
            y = convolution_2d(image, filters, stride=2, pad=3)
            y.grad = sent(np.ones(y.shape, FLOAT16))
            watching = Watching(147, types.SimpleNamespace(send=sent))
            with observing(watching):
                y.backward()
        results.append([y.array, image.grad, filters.grad, watching.moments])
    assert image.node.data is None
    assert [launched.count(name) for name in ("fold_images", "fold_filters", "unfold_filters")] == [1, 1 + wanted, 1]
    for found, right in zip(results[1], results[0], strict=True):
        assert (found is None) == (right is None)
        if right is not None:
            np.testing.assert_array_equal(np.tril(exact(host.receive(found))), np.tril(exact(right)))
