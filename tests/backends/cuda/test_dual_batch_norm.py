"""Two batch normalizations that are added, on CUDA: bit for bit what the kernels for one compute, in fewer launches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.geometry import BatchNorm, Normalized
from mixprec.backends.primitives import Primitives
from tests.backends import primitive_cases as cases
from tests.cases import first, tries
from tests.stand_ins.cuda_on_host import ENGINES, HostCuda, engine, receive, same_or_none, send
from tests.stand_ins.cuda_sides import both_sides
from tests.stand_ins.kernels_on_host import odd_values


def _pair(x, other, relu, with_sums):
    """Returns both as arrays of NumPy; they differ in everything that they may differ in."""
    pair = []
    for place, (each, has_sums) in enumerate(zip((x, other), with_sums, strict=True)):
        channels = each.shape[-1]
        flat = cases.exact(each).reshape(-1, channels)
        sums = np.stack([flat.sum(0), (flat**2).sum(0)]).astype(np.float32) if has_sums else None
        running = tuple(np.full((2, channels), 1.0 + place, np.float32))
        attributes = BatchNorm(eps=1e-5 * (1 + 9 * place), decay=0.9 - 0.2 * place, relu=relu and place == 0)
        parameters = cases.channel_parameters(np.random.default_rng(place), channels)
        pair.append(Normalized(each, *parameters, running, attributes, sums))
    return pair


def _results(primitives, cls, put, take, pair, dy, plus):
    """Returns all results of both ways by the methods of a class, flat, with the statistics that have moved."""
    one, other = (Normalized(*put(tuple(each[:4])), each.attributes, put(each.sums)) for each in pair)
    y, saved = cls.dual_batch_norm(primitives, one, other)
    of_one, of_other, g = cls.dual_batch_norm_backward(primitives, put(dy), one, other, saved, plus=put(plus))
    return take((y, *saved[0], *saved[1], *of_one, *of_other, g, *one.running, *other.running))


def _check(primitives, put, take, pair, dy, plus):
    with engine("kernels"):
        expected = _results(primitives, Primitives, put, take, pair, dy, plus)
    found = _results(primitives, type(primitives), put, take, pair, dy, plus)
    for one, other in zip(found, expected, strict=True):
        same_or_none(one, other)


_CASES = [
    ((2, 3, 3, 16), cases.FLOAT16, True, True, (True, True)),
    ((300, 267), cases.BFLOAT16, True, False, (True, False)),
    ((700, 40), cases.FLOAT16, True, False, (True, True)),
    ((2, 9, 11, 264), cases.FLOAT32, False, True, (False, True)),
    ((700, 40), cases.BFLOAT16, True, True, (False, False)),
    ((7, 5), cases.FLOAT16, False, False, (True, True)),
]


@both_sides
@pytest.mark.parametrize(("shape", "dtype", "relu", "with_plus", "with_sums"), first(3, _CASES))
def test_the_bits_of_one_after_the_other_in_many_blocks(side, shape, dtype, relu, with_plus, with_sums):
    rng = np.random.default_rng(0)
    x, other, dy, plus = cases.arrays(rng, (4, *shape), dtype)
    pair = _pair(x, other, relu, with_sums)
    _check(side.cuda, side.send, side.receive, pair, dy, plus if with_plus else None)


@settings(max_examples=tries(30))
@given(
    shape=cases.batch_norm_shapes(),
    dtype=cases.storage_dtypes,
    relu=st.booleans(),
    with_plus=st.booleans(),
    with_sums=st.tuples(st.booleans(), st.booleans()),
    misaligned=st.booleans(),
    seed=cases.seeds,
)
def test_the_bits_of_one_after_the_other(host, shape, dtype, relu, with_plus, with_sums, misaligned, seed):
    """Whatever numbers come as gradients; also of arrays that 16 bytes at once cannot read."""
    rng = np.random.default_rng(seed)
    x, other = cases.arrays(rng, (2, *shape), dtype, 1, 2)
    dy, plus = odd_values(rng, (2, *shape), dtype)
    pair = _pair(x, other, relu, with_sums)
    _check(host.cuda, lambda value: send(value, misaligned), receive, pair, dy, plus if with_plus else None)


@pytest.mark.parametrize(("with_sums", "launches"), [((True, True), 1), ((False, True), 2), ((False, False), 3)])
@pytest.mark.parametrize("by", ENGINES)
def test_one_launch_forward_with_sums_and_two_backward(by, with_sums, launches):
    """Also where cuDNN's engines are candidates for one: it has none for two."""
    cuda, x = HostCuda(), np.ones((2, 3, 3, 16), np.float16)
    one, other = (
        Normalized(*send(tuple(each[:4])), each.attributes, send(each.sums)) for each in _pair(x, x, True, with_sums)
    )
    with engine(by), cuda.counting() as found:
        _, saved = cuda.dual_batch_norm(one, other)
    assert (found.kernels, found.plans) == (launches, [])
    for plus in (None, send(x)):
        with engine(by), cuda.counting() as found:
            cuda.dual_batch_norm_backward(send(x), one, other, saved, plus=plus)
        assert (found.kernels, found.plans) == (2, [])


def test_without_a_relu_and_a_second_term_the_gradient_of_the_sum_is_what_came(host):
    x = np.ones((2, 3, 3, 16), np.float16)
    one, other = (Normalized(*send(tuple(each[:4])), each.attributes) for each in _pair(x, x, False, (False, False)))
    _, saved = host.cuda.dual_batch_norm(one, other)
    dy = send(x)
    assert host.cuda.dual_batch_norm_backward(dy, one, other, saved)[2] is dy
