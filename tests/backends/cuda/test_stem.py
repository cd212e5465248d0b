"""First convolutions on folded images, run on the host, beside the same convolution of NumPy's primitives."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.cuda.convolution import _Forward
from mixprec.backends.cuda.stem import fold_of, folds_of
from mixprec.backends.cudnn import settings as cudnn
from mixprec.backends.geometry import Convolution
from tests.backends.cpu.test_convolution import bounds, chainers, drawn
from tests.backends.primitive_cases import FLOAT16, FLOAT32, STORAGE, assert_close, exact, seeds
from tests.cases import tries
from tests.stand_ins.cuda_on_host import HostCuda, receive, send

RESNET = Convolution((2, 2), (3, 3))
HALVES = [dtype for dtype in STORAGE if dtype != FLOAT32]


@pytest.fixture
def measuring():
    cudnn.configure(autotune="measure", cache=None)


def ways(cuda, x, w, dy, convolution, b=None, relu=False):
    """Returns the results of all ways by name, those of the forward pass and those of the gradient."""
    x, w, dy, b = send((x, w, dy, b))
    folds = [*itertools.chain(*folds_of(x.shape, w.shape, x.dtype, convolution))]
    fprop = cuda._stem_fprop_candidates(folds, x.dtype, None if b is None else b.dtype, relu)
    wgrad = cuda._stem_wgrad_candidates(folds, dy.shape, w.shape, x.dtype)
    return (
        {name: receive(way(x, w, b)) for name, way in fprop},
        {name: receive(way(x, dy)) for name, way in wgrad},
    )


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
    cudnn.configure(autotune="measure", cache=None)
    convolution, shape, w_shape = case
    x, w, dy = drawn(case, dtype, seed)
    y, _, dw = chainers(x, w, dy, convolution)
    y_bound, _, dw_bound = bounds(x, w, dy, convolution)
    found = ways(HostCuda(), x, w, dy, convolution)
    names = {name for name, rows in (("pairs", 1), ("squares", 2)) if fold_of(rows, shape, w_shape, convolution)}
    assert found[0].keys() == found[1].keys() == names
    assert "squares" in names or shape[1] // 2 > w_shape[1]  # only pixels that no filter reaches may be left over
    for name in names:
        assert_close(found[0][name], y, dtype, y_bound)
        assert_close(found[1][name], dw, dtype, dw_bound)


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_stem_of_a_resnet_on_integers_is_exact(measuring, dtype, channels):
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((2, 20, 28, channels), (8, 7, 7, channels)))
    b = rng.integers(-2, 3, 8).astype(dtype)
    expected = PRIMITIVES.conv_fprop(x, w, RESNET, b, relu=True)
    dy = rng.integers(-1, 2, expected.shape).astype(dtype)
    expected_dw = PRIMITIVES.conv_wgrad(x, dy, RESNET, w.shape)
    assert max(np.abs(exact(expected)).max(), np.abs(exact(expected_dw)).max()) < 256  # of bfloat16, too
    for results, right in zip(ways(HostCuda(), x, w, dy, RESNET, b, True), (expected, expected_dw), strict=True):
        assert set(results) == {"pairs", "squares"}
        for found in results.values():
            np.testing.assert_array_equal(exact(found), exact(right))


@pytest.mark.parametrize(
    ("shape", "convolution"),
    [
        ((1, 8, 8, 8), RESNET),  # channels enough
        ((1, 8, 9, 3), RESNET),
        ((1, 8, 8, 3), Convolution((1, 1), (3, 3))),
        ((1, 16, 16, 3), Convolution((2, 2), (3, 3), (2, 2))),
        ((1, 8, 8, 3), Convolution((2, 2), (3, 3), groups=3)),
    ],
)
def test_what_is_not_folded(shape, convolution):
    w_shape = 6, 7, 7, shape[3] // convolution.groups
    assert fold_of(1, shape, w_shape, convolution) is fold_of(2, shape, w_shape, convolution) is None


@pytest.mark.parametrize(
    ("autotune", "size", "dtype", "capability", "names"),
    [
        ("off", (8, 8), FLOAT16, 90, ["squares"]),
        ("measure", (8, 8), FLOAT16, 90, ["squares"]),
        ("heuristic", (8, 8), FLOAT16, 80, ["squares", "conv", "pairs"]),
        ("measure", (8, 8), FLOAT16, 80, ["squares", "conv", "pairs"]),
        ("measure", (9, 8), FLOAT16, 90, ["conv", "pairs"]),  # no rule: nothing was seen
        ("off", (8, 8), FLOAT32, 90, ["conv"]),
    ],
)
def test_squares_are_first_and_all_on_an_h100(autotune, size, dtype, capability, names):
    """What is not measured is the first of these; the others are not asked for."""
    cudnn.configure(autotune=autotune, cache=None)
    x, w, dy = drawn((RESNET, (1, *size, 3), (8, 7, 7, 3)), dtype, 0)
    cuda = HostCuda(capability=capability)
    found = [
        cuda._fprop_candidates(x.shape, w.shape, x.dtype, RESNET, None, False, _Forward()),
        cuda._wgrad_candidates(x.shape, dy.shape, w.shape, x.dtype, RESNET),
    ]
    for candidates in found:
        assert [name for name, _ in candidates] == names
    cuda = HostCuda(capability=capability)
    cuda.conv_fprop(*send((x, w)), RESNET)
    assert (len(cuda.cudnn.plans()) == 1) == (autotune != "measure" or len(names) == 1)


@pytest.mark.parametrize(("channels", "kernels"), [(4, (1, 1)), (3, (2, 2))])
def test_pairs_of_four_channels_leave_images_in_their_place(measuring, channels, kernels):
    """A launch for the filter; and one for images of three channels."""
    cuda = HostCuda()
    x, w, dy = send(tuple(drawn((RESNET, (1, 8, 8, channels), (8, 7, 7, channels)), FLOAT16, 0)))
    _, folds = folds_of(x.shape, w.shape, x.dtype, RESNET)
    fprop = dict(cuda._stem_fprop_candidates(folds, x.dtype, None, False))["pairs"]
    wgrad = dict(cuda._stem_wgrad_candidates(folds, dy.shape, w.shape, x.dtype))["pairs"]
    found = []
    for way, arguments in ((fprop, (x, w, None)), (wgrad, (x, dy))):
        way(*arguments)  # engines are measured
        with cuda.counting() as counted:
            way(*arguments)
        assert len(counted.plans) == 1
        found.append(counted.kernels)
    assert tuple(found) == kernels


def test_the_primitives_take_what_is_chosen(measuring, monkeypatch):
    x, w, dy = drawn((RESNET, (2, 8, 8, 3), (8, 7, 7, 3)), FLOAT16, 0)
    for fastest, kernels in (("conv", 0), ("squares", 2)):
        cuda = HostCuda(capability=80)
        monkeypatch.setattr(cuda.cudnn, "choose", lambda key, candidates, fastest=fastest: fastest)
        for name, arguments in (("conv_fprop", (x, w, RESNET)), ("conv_wgrad", (x, dy, RESNET, w.shape))):
            given_ = [send(each) if isinstance(each, np.ndarray) else each for each in arguments]
            getattr(cuda, name)(*given_)
            with cuda.counting() as found:
                result = getattr(cuda, name)(*given_)
            assert found.kernels == kernels
            expected = getattr(PRIMITIVES, name)(*arguments)
            np.testing.assert_allclose(exact(receive(result)), exact(expected), rtol=2e-3, atol=2e-3)
