"""Convolutions on CUDA, run on the host: cuDNN's stand-in and the kernels around it, beside Chainer's in float64."""

import chainer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.cuda import operations
from mixprec.backends.cuda.candidates import WithoutCudnn
from mixprec.backends.cudnn import settings as cudnn
from mixprec.backends.cudnn.errors import NoEngine
from mixprec.backends.geometry import BatchNorm, Convolution, Following
from mixprec.base.cudnn_library import CudnnMissing
from tests.backends.cpu.test_convolution import bounds, chainers, convolutions, drawn
from tests.backends.primitive_cases import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    STORAGE,
    accumulated,
    arrays,
    assert_close,
    channel_parameters,
    convolved_and_normalized,
    eps_of,
    exact,
    seeds,
    storage_dtypes,
)
from tests.cases import tries
from tests.stand_ins import fake_cudnn_limits
from tests.stand_ins.cuda_on_host import HostCuda, receive, same, send

THREE = Convolution((1, 1), (1, 1))
X, W, Y = (2, 6, 5, 16), (24, 3, 3, 16), (2, 6, 5, 24)  # shapes that every engine takes


@pytest.fixture(scope="module")
def cuda():
    return HostCuda()


@pytest.fixture
def fresh():
    """One that has found no ways yet."""
    return HostCuda()


def refuse(monkeypatch, refused):
    """Makes cuDNN's stand-in have no engine where ``refused(kinds, nodes)``."""
    monkeypatch.setitem(fake_cudnn_limits._RULES, "a test", lambda nodes, kinds, storage: refused(kinds, nodes))


def odd_channels(kinds, nodes):
    """Convolutions whose channels are no multiples of 8."""
    return any(
        tensor.dim[axis] % 8
        for node in nodes
        if node.kind.startswith("conv")
        for tensor in (*node.inputs.values(), *node.outputs)
        for axis in (0, 1)
        if axis == 1 or tensor.name == "w"
    )


def checked(cuda, case, dtype, seed):
    """Compares all three convolutions of a case."""
    convolution, shape, w_shape = case
    x, w, dy = drawn(case, dtype, seed)
    found = (
        cuda.conv_fprop(*send((x, w)), convolution),
        cuda.conv_dgrad(*send((dy, w)), convolution, shape),
        cuda.conv_wgrad(*send((x, dy)), convolution, w_shape),
    )
    for ours, theirs, bound in zip(found, chainers(x, w, dy, convolution), bounds(x, w, dy, convolution), strict=True):
        assert_close(receive(ours), theirs, dtype, bound)


# --- all shapes


@settings(max_examples=tries(25))
@given(case=convolutions(), dtype=storage_dtypes, seed=seeds)
def test_channels_that_no_engine_takes(case, dtype, seed):
    """Zeros are added; of groups there would have to be more."""
    with pytest.MonkeyPatch.context() as patch:
        refuse(patch, odd_channels)
        cuda = HostCuda()
        convolution, shape, w_shape = case
        if convolution.groups > 1 and (shape[3] % 8 or w_shape[0] % 8 or w_shape[3] % 8):
            with pytest.raises(NoEngine, match=r"cuDNN 9\.28\.0 has no engine on .* for conv_fprop"):
                checked(cuda, case, dtype, seed)
        else:
            checked(cuda, case, dtype, seed)


@settings(max_examples=tries(40))
@given(
    case=convolutions(),
    dtype=storage_dtypes,
    of_bias=st.sampled_from([None, "storage", "float32"]),
    relu=st.booleans(),
    statistics=st.booleans(),
    fusible=st.sets(st.sampled_from(["bias", "relu", "genstats"])),
    seed=seeds,
)
def test_everything_around_a_convolution(case, dtype, of_bias, relu, statistics, fusible, seed):
    """Whatever cuDNN fuses, and what it does not."""
    convolution = case[0]
    statistics = statistics and not relu
    x, w, _ = drawn(case, dtype, seed)
    rng = np.random.default_rng(seed + 1)
    b = None if of_bias is None else arrays(rng, len(w), FLOAT32 if of_bias == "float32" else dtype)
    (expected,), (magnitude,) = (chainers(f(exact(x)), f(exact(w)), None, convolution) for f in (np.array, np.abs))
    offset = 0.0 if b is None else exact(b)
    bound = accumulated(w[0].size + 1, magnitude + np.abs(offset))
    if b is not None and not {"bias", *["relu"] * relu} <= fusible:  # may be added to what has been rounded
        bound = bound + eps_of(dtype) * (np.abs(expected) + bound) + float(np.nextafter(dtype.type(0), dtype.type(1)))
    expected = expected + offset
    expected = np.maximum(expected, 0) if relu else expected
    with pytest.MonkeyPatch.context() as patch:
        refuse(patch, lambda kinds, nodes: set(kinds) - fusible - {"conv_fprop"})
        found = HostCuda().conv_fprop(*send((x, w)), convolution, send(b), relu=relu, statistics=statistics)
    if statistics:
        found, sums = receive(found)
        flat, error = (array.reshape(-1, len(w)) for array in (expected, np.broadcast_to(bound, expected.shape)))
        error = error + eps_of(dtype) * np.abs(flat)  # they may be those of what is rounded
        squares = 2 * np.abs(flat) * error + error**2
        count = len(flat) + 8
        assert_close(sums[0], flat.sum(0), FLOAT32, error.sum(0) + accumulated(count, (np.abs(flat) + error).sum(0)))
        assert_close(
            sums[1], (flat**2).sum(0), FLOAT32, squares.sum(0) + accumulated(count, (flat**2 + squares).sum(0))
        )
    assert_close(np.asarray(found), expected, dtype, bound)


# --- launches


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_a_convolution_is_one_launch(cuda, dtype):
    x, w, dy = send(tuple(drawn((THREE, X, W), dtype, 0)))
    b = send(np.ones(W[0], dtype))
    for plan, call in {
        "conv_fprop": lambda: cuda.conv_fprop(x, w, THREE),
        "conv_fprop+bias": lambda: cuda.conv_fprop(x, w, THREE, b),
        "conv_fprop+bias+relu": lambda: cuda.conv_fprop(x, w, THREE, b, relu=True),
        "conv_dgrad": lambda: cuda.conv_dgrad(dy, w, THREE, X),
        "conv_wgrad": lambda: cuda.conv_wgrad(x, dy, THREE, W),
    }.items():
        with cuda.counting() as found:
            call()
        assert (found.kernels, found.plans) == (0, [plan])


@pytest.mark.parametrize(
    ("dtype", "kernels", "plan"), [(FLOAT16, 0, "conv_fprop+genstats"), (BFLOAT16, 1, "conv_fprop")], ids=str
)
def test_sums_that_cudnn_does_not_take_are_a_kernel(cuda, dtype, kernels, plan):
    x, w, _ = send(tuple(drawn((THREE, X, W), dtype, 0)))
    with cuda.counting() as found:
        cuda.conv_fprop(x, w, THREE, statistics=True)
    assert (found.kernels, found.plans) == (kernels, [plan])


def test_statistics_are_those_of_what_has_a_bias(fresh, monkeypatch):
    """If cuDNN fuses statistics, but no bias."""
    refuse(monkeypatch, lambda kinds, nodes: "bias" in kinds)
    x, w, _ = drawn((THREE, X, W), FLOAT16, 0)
    y, sums = receive(fresh.conv_fprop(*send((x, w)), THREE, send(np.full(W[0], 5, np.float16)), statistics=True))
    assert_close(sums[0], exact(y).sum((0, 1, 2)), FLOAT32, accumulated(100, np.abs(exact(y)).sum((0, 1, 2))))


def test_a_known_call_describes_no_operation(fresh, monkeypatch):
    """What to run is found by shapes; Python has little to do then."""
    x, w, _ = send(tuple(drawn((THREE, X, W), FLOAT16, 0)))
    parameters = send(tuple(np.ones((2, W[0]), np.float32)))

    def step():
        _, y, saved = convolved_and_normalized(fresh, x, w, THREE, *parameters, None, BatchNorm(relu=True))
        fresh.batch_norm_backward(y, y, *parameters, saved, BatchNorm(relu=True))
        return fresh.conv_dgrad(y, w, THREE, X), fresh.conv_wgrad(x, y, THREE, W)

    expected = receive(step())
    for name in ("conv_fprop", "conv_dgrad", "conv_wgrad", "batch_norm", "batch_norm_backward"):
        monkeypatch.setattr(operations, name, None)
    monkeypatch.setattr(fresh.cudnn, "plan", None)
    same(step(), expected)


def test_other_settings_are_other_plans(fresh):
    """The first of the stand-in's engines is not deterministic."""
    from tests.stand_ins import fake_cudnn

    x, w, _ = send(tuple(drawn((THREE, X, W), FLOAT16, 0)))
    used = []
    for deterministic in (False, True, False):
        cudnn.configure(deterministic=deterministic)
        fresh.conv_fprop(x, w, THREE)
        used.append(fake_cudnn.executed[-1][1])
    assert used == [0, 1, 0]


# --- convolution and batch normalization


DECISIONS = [
    (False, "off", 90, 1.0, True),
    (True, "heuristic", 90, 1.0, True),
    (True, "measure", 90, 9.0, True),  # by rule
    (True, "heuristic", 80, 1.0, True),  # a guess
    (True, "measure", 80, 0.9, True),  # a node more, and a kernel less
    (False, "measure", 80, 1.1, False),
]


@pytest.mark.parametrize(("add", "autotune", "capability", "node_cost", "fused"), DECISIONS)
def test_convolution_and_batch_normalization(add, autotune, capability, node_cost, fused):
    """Apart: a plan and two kernels. With the sums of the convolution: a plan of two nodes, and one kernel."""
    cuda = HostCuda(node_cost, capability)
    cudnn.configure(autotune=autotune)
    x, w, _ = drawn((THREE, X, W), FLOAT16, 0)
    rng = np.random.default_rng(1)
    other = arrays(rng, Y, FLOAT16) if add else None
    gamma, beta = channel_parameters(rng, W[0])
    attributes = BatchNorm(relu=True)
    running, expected_running = send(tuple(np.ones((2, W[0]), np.float32))), tuple(np.ones((2, W[0]), np.float32))
    sent = *send((x, w)), THREE, *send((gamma, beta)), running, attributes, send(other)
    z, y, saved = convolved_and_normalized(cuda, *sent)
    expected_z, expected_y, expected_saved = convolved_and_normalized(
        PRIMITIVES, x, w, THREE, gamma, beta, expected_running, attributes, other
    )
    same(z, expected_z)
    # Of what is not yet rounded to float16 some statistics are taken.
    np.testing.assert_allclose(receive(saved.mean), expected_saved.mean, atol=1e-3)
    np.testing.assert_allclose(receive(saved.invstd), expected_saved.invstd, rtol=1e-3)
    np.testing.assert_allclose(exact(receive(y)), exact(expected_y), atol=2e-2)
    for found, expected in zip(running, expected_running, strict=True):
        np.testing.assert_allclose(receive(found), expected, rtol=2e-3, atol=2e-3)
    with cuda.counting() as found:
        convolved_and_normalized(cuda, *sent)
    assert (found.kernels, found.plans) == ((1, ["conv_fprop+genstats"]) if fused else (2, ["conv_fprop"]))


BY_RULE = [
    ((2, 5, 5, 16), (8, 3, 3, 16), 90, ["statistics"]),
    ((2, 5, 5, 16), (8, 3, 3, 16), 80, ["statistics", "separate"]),
    ((2, 5, 5, 16), (8, 5, 5, 16), 90, ["statistics"]),
    ((2, 5, 5, 16), (8, 7, 7, 16), 90, ["separate"]),
    ((2, 5, 5, 16), (12, 3, 3, 16), 90, ["separate"]),
    ((2, 5, 5, 3), (8, 3, 3, 3), 90, ["separate"]),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "capability", "names"), BY_RULE)
def test_sums_that_are_first_by_rule(x_shape, w_shape, capability, names):
    """Wherever cuDNN has an engine; with ``deterministic`` none: they differ from run to run."""
    cuda, padded = HostCuda(capability=capability), Convolution(pad=(w_shape[1] // 2,) * 2)
    asked = x_shape, w_shape, FLOAT16, padded, Following()
    assert [name for name, _ in cuda._batch_norm_candidates(*asked)] == names
    cudnn.configure(deterministic=True)
    assert [name for name, _ in cuda._batch_norm_candidates(*asked)] == ["separate"]


@pytest.mark.parametrize("autotune", ["off", "heuristic", "measure"])
def test_the_engine_that_does_not_win_by_rule_is_not_built(autotune):
    cudnn.configure(autotune=autotune)
    cuda = HostCuda()
    x, w, _ = send(tuple(drawn((THREE, X, W), FLOAT16, 0)))
    cuda.conv_fprop(x, w, THREE, statistics=Following())
    assert ["sum" in plan.operation.has for plan in cuda.cudnn.plans()] == [True]


PRICES = [(True, True, 3, 1 + 2), (True, True, 0, 1), (True, False, 3, 1), (False, False, 3, 1)]


@pytest.mark.parametrize(("relu", "add", "compile_seconds", "kernels"), PRICES)
def test_the_price_of_sums_holds_the_backward_pass_that_they_decide_on(
    monkeypatch, relu, add, compile_seconds, kernels
):
    """Own kernels have a mask of their own, which cuDNN's backward pass cannot read; without that it is no matter."""
    cudnn.configure(autotune="measure", compile_seconds=compile_seconds)
    measured, cuda = {}, HostCuda(capability=80)

    def choose(key, candidates):
        if key.startswith("conv_batch_norm"):
            measured.update(candidates)
        return candidates[0][0]

    monkeypatch.setattr(cuda.cudnn, "choose", choose)
    x, w, _ = send(tuple(drawn((THREE, X, W), FLOAT16, 0)))
    cuda.conv_fprop(x, w, THREE, statistics=Following(relu, add))
    measured["statistics"]()  # engines are measured
    with cuda.counting() as found:
        measured["statistics"]()
    assert (found.plans, found.kernels) == (["conv_fprop+genstats"], kernels)


@pytest.mark.parametrize("ratio", [0, 1, 16, 64])
def test_how_exact_sums_are(cuda, ratio):
    """The variance is the difference of two sums that are rounded to float32: the error grows with (mean / std)^2."""
    values = np.random.default_rng(0).normal(ratio, 1, (4, 16, 16, 8)).astype(FLOAT16)
    w = np.eye(8, dtype=FLOAT16).reshape(8, 1, 1, 8)
    ones = np.ones(8, np.float32)
    z, sums = cuda.conv_fprop(send(values), send(w), Convolution(), statistics=True)
    _, saved = cuda.batch_norm(z, send(ones), send(0 * ones), None, BatchNorm(eps=0.0), sums=sums)
    expected = 1 / exact(values).std((0, 1, 2))
    np.testing.assert_allclose(receive(saved.invstd), expected, rtol=2.0**-22 * (1 + ratio**2))


# --- what is said


def test_padding_is_announced_once_for_each_shape(fresh, monkeypatch, announced):
    refuse(monkeypatch, odd_channels)
    for shape in [(2, 4, 4, 10), (2, 4, 4, 10), (3, 4, 4, 10)]:
        x, w, _ = drawn((THREE, shape, (12, 3, 3, 10)), FLOAT16, 0)
        fresh.conv_fprop(*send((x, w)), THREE)
        fresh.conv_fprop(*send((x, w)), THREE)
    messages = [record.getMessage() for record in announced.records]
    assert len(messages) == 2
    assert messages[0].startswith("conv_fprop(x float16 2x4x4x10, w float16 12x3x3x10")
    assert messages[0].endswith(
        "cuDNN has no engine for these channels; each call copies arrays to multiples of 8, which is slow"
    )


def test_three_channels_and_one_of_zeros_are_no_news(fresh, announced):
    x, w, _ = drawn((THREE, (2, 4, 4, 4), (8, 3, 3, 3)), FLOAT16, 0)
    fresh.conv_fprop(*send((x, w)), THREE)
    assert not announced.records


def test_without_cudnn_convolutions_say_what_is_missing(announced):
    x, w, dy = send(tuple(drawn((THREE, (2, 4, 4, 10), (12, 3, 3, 10)), FLOAT16, 0)))
    cuda = HostCuda()
    message = r"^conv_fprop\(x float16 2x4x4x10, w .* is computed by cuDNN: chainer.config.use_cudnn is 'never'; set it"
    with chainer.using_config("use_cudnn", "never"), pytest.raises(CudnnMissing, match=message):
        cuda.conv_fprop(x, w, THREE)
    cuda.conv_fprop(x, w, THREE)
    cuda = HostCuda()
    cuda.cudnn = WithoutCudnn("nvidia-cudnn-cu13 is missing: pip install it")
    for name, call in {
        "conv_fprop": lambda: cuda.conv_fprop(x, w, THREE),
        "conv_dgrad": lambda: cuda.conv_dgrad(dy, w, THREE, x.shape),
        "conv_wgrad": lambda: cuda.conv_wgrad(x, dy, THREE, w.shape),
    }.items():
        with pytest.raises(CudnnMissing, match=rf"^{name}\(.* is computed by cuDNN: nvidia-cudnn-cu13 is missing"):
            call()
    assert not announced.records
    parameters = send(tuple(np.ones((2, 12), np.float32)))
    y, saved = cuda.batch_norm(dy, *parameters, None, BatchNorm())
    cuda.batch_norm_backward(y, dy, *parameters, saved, BatchNorm())
