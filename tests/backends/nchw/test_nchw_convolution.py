"""Convolutions of plain Chainer on the host: cuDNN's stand-in in NCHW and NHWC, beside Chainer's own in float64."""

import chainer
import chainer.functions as F
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cudnn import settings as cudnn
from mixprec.backends.cudnn.errors import NoEngine
from mixprec.backends.geometry import Convolution
from mixprec.backends.nchw import Nchw
from tests.backends import primitive_cases as cases
from tests.cases import tries
from tests.stand_ins import fake_cudnn_limits
from tests.stand_ins.cuda_on_host import HostCuda, receive, send

LAYOUTS = ("NCHW", "NHWC")
CASE = Convolution((1, 1), (1, 1)), (2, 16, 6, 5), (24, 16, 3, 3)


def new():
    primitives = HostCuda()
    return Nchw(primitives.launcher, primitives.cudnn)


@pytest.fixture(scope="module")
def nchw():
    return new()


@pytest.fixture
def fresh():
    """One that has found no ways yet."""
    return new()


@st.composite
def convolutions(draw, most=3):
    """A :class:`Convolution`, a shape (N, C, ...) and one of filters (K, C / groups, ...), of two or more axes."""
    axes = draw(st.integers(2, most))
    each = {"stride": st.integers(1, 3), "pad": st.integers(0, 2), "dilation": st.integers(1, 2)}
    attributes = {name: draw(st.tuples(*[values] * axes)) for name, values in each.items()}
    window = draw(st.tuples(*[st.integers(1, 5 if axes == 2 else 3)] * axes))
    space = tuple(
        draw(st.integers(max(1, (size - 1) * dilation + 1 - 2 * pad), 11 if axes == 2 else 6))
        for size, pad, dilation in zip(window, attributes["pad"], attributes["dilation"], strict=True)
    )
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 8]))
    c, k = draw(st.tuples(*2 * [st.sampled_from([1, 2, 3, 5, 8] if groups < 8 else [1, 3])]))
    shape = (draw(st.integers(1, 3)), groups * c, *space)
    return Convolution(**attributes, groups=groups), shape, (groups * k, c, *window)


def drawn(case, dtype, seed):
    """Returns x, w, dy."""
    convolution, shape, w_shape = case
    rng = np.random.default_rng(seed)
    y_shape = (shape[0], w_shape[0], *convolution.out_size(shape[2:], w_shape[2:]))
    return [cases.arrays(rng, some, dtype) for some in (shape, w_shape, y_shape)]


def chainers(x, w, dy, convolution):
    """Returns (y, dx, dw) in float64, by Chainer."""
    x, w = chainer.Variable(cases.exact(x)), chainer.Variable(cases.exact(w))
    options = {"dilate": convolution.dilation, "groups": convolution.groups}
    y = F.convolution_nd(x, w, None, convolution.stride, convolution.pad, **options)
    return [each.array for each in (y, *chainer.grad([y], [x, w], [chainer.Variable(cases.exact(dy))]))]


def bounds(x, w, dy, convolution):
    sums = chainers(*map(np.abs, (x, w, dy)), convolution)
    window = int(np.prod(w.shape[2:]))
    counts = window * w.shape[1], window * w.shape[0] // convolution.groups, dy.size // dy.shape[1]
    return [cases.accumulated(*pair) for pair in zip(counts, sums, strict=True)]


def unwritten(shape, dtype):
    return send(np.full(shape, np.nan, dtype))


def run(nchw, x, w, dy, convolution, b=None, b_of_x=None, layout="NCHW", misaligned=False):
    """Returns y, dx, dw, of arrays in NCHW, as the device computes them in a layout."""
    last = layout == "NHWC"
    there, back = ((0, 2, 3, 1), (0, 3, 1, 2)) if last else (range(x.ndim),) * 2
    sent = [send(np.ascontiguousarray(each.transpose(there)), misaligned) for each in (x, w, dy)]
    written = [unwritten(each.shape, each.dtype) for each in (sent[2], sent[0], sent[1])]
    device_x, device_w, device_dy = sent
    y, dx, dw = written
    nchw.conv_fprop(device_x, device_w, None if b is None else send(b), y, convolution, layout)
    nchw.conv_dgrad(device_dy, device_w, None if b_of_x is None else send(b_of_x), dx, convolution, layout)
    nchw.conv_wgrad(device_x, device_dy, dw, convolution, layout)
    return [receive(each).transpose(back) for each in written]


def checked(nchw, case, dtype, seed, **options):
    convolution = case[0]
    x, w, dy = drawn(case, dtype, seed)
    found = run(nchw, x, w, dy, convolution, **options)
    for ours, theirs, bound in zip(found, chainers(x, w, dy, convolution), bounds(x, w, dy, convolution), strict=True):
        cases.assert_close(ours, theirs, dtype, bound)


@settings(max_examples=tries(60))
@given(case=convolutions(), dtype=cases.storage_dtypes, seed=cases.seeds, misaligned=st.booleans())
def test_against_float64(nchw, case, dtype, seed, misaligned):
    checked(nchw, case, dtype, seed, misaligned=misaligned)


@settings(max_examples=tries(25))
@given(case=convolutions(most=2), dtype=cases.storage_dtypes, seed=cases.seeds)
def test_channels_last(nchw, case, dtype, seed):
    checked(nchw, case, dtype, seed, layout="NHWC")


def biases(case, dtype):
    rng = np.random.default_rng(1)
    return cases.arrays(rng, case[2][0], dtype, scale=3), cases.arrays(rng, case[1][1], dtype, scale=3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [cases.FLOAT16, cases.FLOAT32], ids=str)
def test_biases(nchw, dtype, layout):
    """That of the result is added before the rounding, that of the transposed convolution after it."""
    convolution = CASE[0]
    x, w, dy = drawn(CASE, dtype, 0)
    b, b_of_x = biases(CASE, dtype)
    y, dx, _ = run(nchw, x, w, dy, convolution, b, b_of_x, layout)
    expected_y, expected_dx, _ = chainers(x, w, dy, convolution)
    bound_y, bound_dx, _ = bounds(x, w, dy, convolution)
    b, b_of_x = (cases.exact(each)[:, None, None] for each in (b, b_of_x))
    cases.assert_close(y, expected_y + b, dtype, bound_y + cases.accumulated(1, np.abs(b)))
    rounding = np.finfo(dtype).eps * np.abs(expected_dx)
    cases.assert_close(dx, expected_dx + b_of_x, dtype, bound_dx + rounding + cases.accumulated(1, np.abs(b_of_x)))


@pytest.mark.parametrize("b_dtype", [cases.FLOAT16, cases.FLOAT32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bias_that_cudnn_does_not_fuse(fresh, monkeypatch, layout, b_dtype):
    monkeypatch.setitem(fake_cudnn_limits._RULES, "a test", lambda nodes, kinds, storage: "bias" in kinds)
    x, w, dy = drawn(CASE, cases.FLOAT32, 0)
    b, _ = biases(CASE, b_dtype)
    y, _, _ = run(fresh, x, w, dy, CASE[0], b, None, layout)
    bound = bounds(x, w, dy, CASE[0])[0]
    expected = chainers(x, w, dy, CASE[0])[0] + cases.exact(b)[:, None, None]
    cases.assert_close(y, expected, cases.FLOAT32, 2 * bound + cases.accumulated(2, np.abs(expected)))


def test_each_is_one_plan(nchw):
    x, w, dy = drawn(CASE, cases.FLOAT32, 0)
    run(nchw, x, w, dy, CASE[0])
    before = len(nchw.cudnn.plans())
    launched = len(nchw.launcher.launches)
    run(nchw, x, w, dy, CASE[0])
    assert len(nchw.cudnn.plans()) == before
    assert len(nchw.launcher.launches) == launched


def test_layouts_are_different_plans(fresh):
    for layout in LAYOUTS:
        checked(fresh, CASE, cases.FLOAT32, 0, layout=layout)
    texts = {str(plan.operation) for plan in fresh.cudnn.plans()}
    assert len(texts) == 6
    assert sum("float32 NCHW 2x16x6x5" in text for text in texts) == 3


def test_autotune_measures_both_ways_with_a_bias(fresh, tmp_path):
    cudnn.configure(autotune="measure", cache=str(tmp_path))
    b, _ = biases(CASE, cases.FLOAT32)
    x, w, dy = drawn(CASE, cases.FLOAT32, 0)
    run(fresh, x, w, dy, CASE[0], b)
    text = "".join(path.read_text() for path in tmp_path.glob("*.json"))
    assert "plain conv_fprop" in text
    assert text.count("NCHW") >= 4  # fprop in two ways, dgrad, wgrad


def test_what_cudnn_has_no_engine_for(fresh, monkeypatch):
    """One error with everything in it, and nothing written."""
    monkeypatch.setitem(fake_cudnn_limits._RULES, "not on Sundays", lambda nodes, kinds, storage: True)
    x, w, dy = map(send, drawn(CASE, cases.FLOAT32, 0))
    y = unwritten(dy.shape, cases.FLOAT32)
    for _ in range(2):
        with pytest.raises(NoEngine, match=r"conv_fprop\(x float32 NCHW 2x16x6x5, .*layout NCHW: .*not on"):
            fresh.conv_fprop(x, w, send(biases(CASE, cases.FLOAT32)[0]), y, CASE[0])
    with pytest.raises(NoEngine, match="conv_dgrad"):
        fresh.conv_dgrad(dy, w, None, x, CASE[0])
    with pytest.raises(NoEngine, match="conv_wgrad"):
        fresh.conv_wgrad(x, dy, w, CASE[0])
    assert np.isnan(receive(y)).all()


def test_no_images(fresh):
    x, w, dy = (np.empty(shape, cases.FLOAT32) for shape in ((0, 16, 6, 5), (24, 16, 3, 3), (0, 24, 6, 5)))
    y, dx, dw = run(fresh, x, w, dy, CASE[0], np.ones(24, cases.FLOAT32))
    assert (y.shape, dx.shape) == (dy.shape, x.shape)
    np.testing.assert_array_equal(dw, np.zeros_like(w))
    assert not fresh.cudnn.plans()
