"""Batch normalization on CUDA by either engine, run on the host: beside FP64, and NumPy's where both are equal."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.cuda import batch_norm
from mixprec.backends.cudnn import settings as cudnn
from mixprec.backends.geometry import BatchNorm
from tests.backends.batch_norm_checks import check
from tests.backends.primitive_cases import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    STORAGE,
    accumulated,
    arrays,
    assert_close,
    batch_norm_output,
    batch_norm_shapes,
    channel_parameters,
    exact,
    given_moments,
    seeds,
    storage_dtypes,
)
from tests.cases import tries
from tests.stand_ins import fake_cudnn_limits
from tests.stand_ins.cuda_on_host import ENGINES, HostCuda, engine, receive, same, send

engines = st.sampled_from(ENGINES)


@pytest.fixture(scope="module")
def cuda(host):
    return host.cuda


# --- training


@settings(max_examples=tries(40))
@given(
    shape=batch_norm_shapes(),
    dtype=storage_dtypes,
    with_add=st.booleans(),
    relu=st.booleans(),
    misaligned=st.booleans(),
    seed=seeds,
)
def test_the_own_kernels_compute_each_element_as_numpy_does(cuda, shape, dtype, with_add, relu, misaligned, seed):
    """Bit for bit, with statistics that both know exactly: of a forward pass; and without sums, of a backward pass."""
    rng = np.random.default_rng(seed)
    x, dy = arrays(rng, (2, *shape), dtype)
    add = arrays(rng, shape, dtype) if with_add else None
    gamma, beta, mean = arrays(rng, (3, shape[-1]), FLOAT32)
    parameters = gamma, beta, mean, np.full(shape[-1], 0.25, np.float32)
    attributes = BatchNorm(eps=0.0, relu=relu)
    y = PRIMITIVES.batch_norm_inference(x, *parameters, attributes, add=add)
    found = cuda.batch_norm_inference(send(x, misaligned), *send(parameters), attributes, add=send(add, misaligned))
    same(found, y)

    given_y = y if with_add else None
    dx, _, _, dadd = cuda.batch_norm_inference_backward(
        *send((dy, x), misaligned), *send(parameters), attributes, y=send(given_y, misaligned)
    )
    expected = PRIMITIVES.batch_norm_inference_backward(dy, x, *parameters, attributes, y=given_y)
    same(dx, expected[0])
    same(dadd, expected[3])


@pytest.mark.slow
@settings(max_examples=tries(20))
@given(shape=batch_norm_shapes(), dtype=storage_dtypes, relu=st.booleans(), with_add=st.booleans(), seed=seeds)
def test_the_order_in_which_the_second_launch_walks_does_not_matter(cuda, shape, dtype, relu, with_add, seed):
    """Nor does that of blocks: it is another one in each launch here, and the sums have the same bits."""
    rng = np.random.default_rng(seed)
    x, dy, plus = send(tuple(arrays(rng, (3, *shape), dtype)))
    add = send(arrays(rng, shape, dtype)) if with_add else None
    parameters = send(tuple(channel_parameters(rng, shape[-1])))
    found = []
    for backwards in (False, True):
        y, saved = cuda._forward_by_kernels(BatchNorm(relu=relu), backwards, x, *parameters, None, add)
        gradients = cuda._backward_by_kernels(relu, with_add, backwards, dy, x, *parameters, saved, plus)
        found.append((receive(y), *map(receive, saved), *map(receive, gradients)))
    for one, other in zip(*found, strict=True):
        assert (one is other is None) or one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("shape", [(700, 40), (2, 9, 11, 264)])
def test_many_blocks_beside_and_below_each_other(host, shape, dtype):
    with engine("kernels"):
        check(host.cuda, send, receive, shape, dtype, BatchNorm(relu=True), True)
    assert max(host.cuda.launcher.launches[-4:]) > 8


# --- statistics


@pytest.mark.parametrize(("mean", "dtype"), [(100, FLOAT16), pytest.param(-1000, FLOAT32, marks=pytest.mark.slow)])
def test_statistics_of_millions_of_elements(cuda, mean, dtype):
    """3.2 million in float16: as many as each channel of ResNet-50's first convolution has at batch 256."""
    rng = np.random.default_rng(0)
    x = arrays(rng, (256 * 112 * 112, 1), dtype, 1, mean)
    expected_mean, expected_variance = x.mean(dtype=np.float64), exact(x).var()
    running = send(tuple(np.zeros((2, 1), np.float32)))
    with engine("kernels"):
        _, saved = cuda.batch_norm(
            send(x), *send(tuple(np.ones((2, 1), np.float32))), running, BatchNorm(eps=0.0, decay=0.0)
        )
    # What reaches a running mean is rounded to float32, too. 1e-3 is what the project promises.
    np.testing.assert_allclose(receive(saved.mean), expected_mean, atol=1e-3 / 8 * max(1, abs(mean) / 100))
    np.testing.assert_allclose(receive(saved.invstd), 1 / np.sqrt(expected_variance), rtol=1e-5)
    np.testing.assert_allclose(receive(running[1]), expected_variance, rtol=1e-5)


@settings(max_examples=tries(20))
@given(shape=batch_norm_shapes(), dtype=storage_dtypes, seed=seeds)
def test_sums_in_place_of_those_of_a_convolution(cuda, shape, dtype, seed):
    x = arrays(np.random.default_rng(seed), shape, dtype, 1, 2)
    flat = exact(x).reshape(-1, shape[-1])
    found = receive(cuda._sums(send(x)))
    for one, terms in zip(found, (flat, flat**2), strict=True):
        assert_close(one, terms.sum(0), FLOAT32, accumulated(len(flat) + 4, np.abs(terms).sum(0)))


@pytest.mark.parametrize(("shape", "dtype"), [((700, 40), FLOAT16), ((300, 267), FLOAT32), ((1, 8), BFLOAT16)])
def test_statistics_from_sums_are_finished_once_in_many_blocks(cuda, shape, dtype):
    rng, count = np.random.default_rng(0), np.float32(shape[0])
    x, (gamma, beta) = arrays(rng, shape, dtype), channel_parameters(rng, shape[1])
    sums = np.stack([exact(x).sum(0), (exact(x) ** 2).sum(0)]).astype(np.float32)
    sums[1, 0] = 0  # a variance that cancellation has made negative
    running = tuple(rng.random((2, shape[1]), np.float32))
    mean = sums[0] / count
    variance = np.maximum(sums[1] / count - mean * mean, 0)
    invstd = 1 / np.sqrt(variance + np.float32(1e-5))
    unbiased = variance * (count / max(count - 1, np.float32(1)))
    moved = (0.75 * np.stack(running) + 0.25 * np.stack((mean, unbiased))).astype(np.float32)
    found = send(running)
    attributes = BatchNorm(eps=1e-5, decay=0.75)
    y, saved = cuda.batch_norm(*send((x, gamma, beta)), found, attributes, sums=send(sums))
    same((*saved[:2], *found), (mean, invstd, *moved))
    same(y, receive(cuda.batch_norm_inference(*send((x, gamma, beta, mean, variance)), attributes)))


# --- engines


@pytest.mark.parametrize(("relu", "add"), [(False, False), (True, False), (True, True)])
def test_cudnn_needs_one_launch_each_way(cuda, relu, add):
    x = send(np.ones((2, 3, 3, 16), np.float16))
    parameters = send(tuple(np.ones((2, 16), np.float32)))
    running = send(tuple(np.ones((2, 16), np.float32)))
    with engine("cudnn"), cuda.counting() as found:
        y, saved = cuda.batch_norm(x, *parameters, running, BatchNorm(relu=relu), add=x if add else None)
    assert (found.kernels, len(found.plans)) == (0, 1)
    with engine("cudnn"), cuda.counting() as found:
        cuda.batch_norm_backward(y, x, *parameters, saved, BatchNorm(relu=relu), add=add)
    assert (found.kernels, len(found.plans)) == (0, 1)


WITHOUT_ENGINE = [((2, 3, 3, 12), FLOAT16, False), ((1, 1, 1, 16), FLOAT16, False), ((2, 3, 3, 16), FLOAT16, True)]


@pytest.mark.parametrize(("shape", "dtype", "add"), WITHOUT_ENGINE)
def test_where_cudnn_has_no_engine_there_are_two_launches_each_way(cuda, shape, dtype, add):
    """Channels that do not fit, a single row, an addition without a ReLU: of that the gradient is cuDNN's again."""
    x = send(np.ones(shape, dtype))
    parameters = send(tuple(np.ones((2, shape[-1]), np.float32)))
    with engine("cudnn"), cuda.counting() as found:
        y, saved = cuda.batch_norm(x, *parameters, None, BatchNorm(), add=x if add else None)
    assert (found.kernels, found.plans) == (2, [])
    with engine("cudnn"), cuda.counting() as found:
        cuda.batch_norm_backward(y, x, *parameters, saved, BatchNorm(), add=add)
    assert (found.kernels, len(found.plans)) == ((0, 1) if add else (2, 0))


def test_launches_of_the_rest(cuda):
    x = send(np.ones((2, 3, 3, 16), np.float16))
    parameters = send(tuple(np.ones((4, 16), np.float32)))
    sums = send(np.ones((2, 16), np.float32))
    attributes = BatchNorm(relu=True)
    for launches, call in [
        (1, lambda: cuda.batch_norm_inference(x, *parameters, attributes, add=x)),
        (2, lambda: cuda.batch_norm_inference_backward(x, x, *parameters, attributes, y=x)),
        (1, lambda: cuda.batch_norm(x, *parameters[:2], None, attributes, sums=sums)),
    ]:
        with cuda.counting() as found:
            call()
        assert (found.kernels, found.plans) == (launches, [])


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_launches_for_the_gradient_of_a_sum(cuda, relu, add):
    """By cuDNN two, the first of which is the sum; by own kernels two, which have it inside."""
    x = send(np.ones((2, 3, 3, 16), np.float16))
    parameters = send(tuple(np.ones((2, 16), np.float32)))
    attributes = BatchNorm(relu=relu)
    for by, expected in (("cudnn", (1, 1)), ("kernels", (2, 0))):
        with engine(by if relu or not add else "kernels"):
            _, saved = cuda.batch_norm(x, *parameters, None, attributes, add=x if add else None)
        with engine(by), cuda.counting() as found:
            cuda.batch_norm_backward(x, x, *parameters, saved, attributes, add=add, plus=x)
        assert (found.kernels, len(found.plans)) == expected


def test_ways_between_which_to_measure():
    """On an H100 the first one is all, unless engines may be compiled; elsewhere own kernels have two orders."""
    shape, cudnn_mask = (2, 3, 3, 16), batch_norm.CUDNN_MASK_DTYPE
    kernels = ["kernels, backwards", "kernels"]
    for compile_seconds, capability, own in ((0, 90, kernels[:1]), (0, 80, kernels), (3, 90, [*kernels, "cudnn"])):
        cudnn.configure(compile_seconds=compile_seconds)
        cuda = HostCuda(capability=capability)
        for relu, add, mask, plus, expected in [
            (False, False, None, False, own),
            (False, False, None, True, own),
            (True, False, None, False, own),
            (True, False, None, True, own),
            (True, True, cudnn_mask, True, ["cudnn"]),
            (True, True, np.dtype(np.uint8), True, [name for name in own if name != "cudnn"]),
        ]:
            found = cuda._backward_candidates(shape, FLOAT16, relu, add, mask, plus, False)
            assert [name for name, _ in found] == expected
        for relu, add in ((False, False), (True, True)):
            found = cuda._forward_candidates(shape, FLOAT16, BatchNorm(relu=relu), add, False)
            assert [name for name, _ in found] == own
        found = cuda._forward_candidates(shape, FLOAT16, BatchNorm(), True, False)  # without a ReLU cuDNN has none
        assert [name for name, _ in found] == [name for name in own if name != "cudnn"]


@pytest.mark.parametrize("by", ENGINES)
def test_a_mask_is_read_by_the_engine_that_made_it(cuda, by):
    """Also if settings change between forward and backward pass."""
    rng = np.random.default_rng(0)
    x, add, dy = arrays(rng, (3, 2, 3, 3, 16), FLOAT16)
    gamma, beta = channel_parameters(rng, 16)
    attributes = BatchNorm(relu=True)
    with engine(by):
        _, saved = cuda.batch_norm(*send((x, gamma, beta)), None, attributes, add=send(add))
    assert saved.mask.dtype == (batch_norm.CUDNN_MASK_DTYPE if by == "cudnn" else np.uint8)
    with cuda.counting() as found:  # now by what is the default
        *_, dadd = cuda.batch_norm_backward(*send((dy, x, gamma, beta)), saved, attributes, add=True)
    assert bool(found.plans) == (by == "cudnn")
    mean, invstd = receive((saved.mean, saved.invstd))
    before, bound = batch_norm_output(x, gamma, beta, given_moments(mean, invstd), add)
    wrong = exact(receive(dadd)) != exact(dy) * (before > 0)
    assert not wrong[np.abs(before) > bound].any()


def test_a_mask_that_cudnn_could_not_read_is_not_made_by_it(monkeypatch):
    monkeypatch.setitem(
        fake_cudnn_limits._RULES, "a test", lambda nodes, kinds, storage: kinds == ["scale", "batchnorm_backward"]
    )
    cuda = HostCuda()
    x = send(np.ones((2, 3, 3, 16), np.float16))
    parameters = send(tuple(np.ones((2, 16), np.float32)))
    with engine("cudnn"):
        y, saved = cuda.batch_norm(x, *parameters, None, BatchNorm(relu=True), add=x)
        cuda.batch_norm_backward(y, x, *parameters, saved, BatchNorm(relu=True), add=True)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("node_cost", [0.4, 2.0])
def test_the_faster_engine_is_chosen_by_measurement(add, node_cost):
    """For each way; own kernels are two, cuDNN's nodes from two to four. Measuring moves no running statistics."""
    cuda = HostCuda(node_cost)
    cudnn.configure(autotune="measure", compile_seconds=1)
    rng = np.random.default_rng(0)
    x, dy = arrays(rng, (2, 2, 3, 3, 16), FLOAT16)
    parameters = tuple(np.ones((2, 16), np.float32))
    attributes = BatchNorm(relu=True)
    running, expected = send(tuple(np.ones((2, 16), np.float32))), tuple(np.ones((2, 16), np.float32))
    for _ in range(2):
        _, saved = cuda.batch_norm(*send((x, *parameters)), running, attributes, add=send(x) if add else None)
        PRIMITIVES.batch_norm(x, *parameters, expected, attributes, add=x if add else None)
        cuda.batch_norm_backward(*send((dy, x, *parameters)), saved, attributes, add=add)
    for found, value in zip(running, expected, strict=True):
        np.testing.assert_allclose(receive(found), value, rtol=1e-6)
    with cuda.counting() as found:
        _, saved = cuda.batch_norm(*send((x, *parameters)), None, attributes, add=send(x) if add else None)
        cuda.batch_norm_backward(*send((dy, x, *parameters)), saved, attributes, add=add)
    assert (found.kernels, len(found.plans)) == ((0, 2) if node_cost < 1 else (4, 0))


def test_factors_take_no_further_launch_and_are_for_own_kernels(cuda):
    cudnn.configure(compile_seconds=1)
    shape, kernels = (4, 3, 3, 8), ["kernels, backwards", "kernels"]
    assert [name for name, _ in cuda._forward_candidates(shape, FLOAT16, BatchNorm(relu=True), True, True)] == kernels
    mask = np.dtype(np.uint8)
    assert [name for name, _ in cuda._backward_candidates(shape, FLOAT16, True, True, mask, True, True)] == kernels
    rng = np.random.default_rng(0)
    x, add = send(arrays(rng, (2, *shape), FLOAT16))
    parameters, factors = send(channel_parameters(rng, 8)), send(np.ones(4, np.float32))
    launches = cuda.launcher.launches
    with engine("kernels"):
        before = len(launches)
        _, saved = cuda.batch_norm(x, *parameters, None, BatchNorm(relu=True), add=add, factors=factors)
        assert len(launches) - before == 2
        cuda.batch_norm_backward(x, x, *parameters, saved, BatchNorm(relu=True), add=True, factors=factors)
        assert len(launches) - before == 4
