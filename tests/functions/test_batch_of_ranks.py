"""Batch normalization with the statistics of several processes, beside one process that has all of their batches."""

import chainer.functions as CF
import numpy as np
import pytest

from mixprec.backends.geometry import BatchNorm
from mixprec.functions.batch_normalization import BatchNormalization
from tests.cases import pairs
from tests.functions.nhwc import DTYPES, EPS32, assert_rounded, normal, run, to_nchw, wide
from tests.stand_ins import rank_threads

PARTS = ((2, 2), (1, 1, 1, 1), (1, 3), (2, 1, 1))
SHAPE = (4, 6, 5, 7)
ELEMENTS = 4 * 6 * 5


def _split(array, parts):
    return np.split(array, np.cumsum(parts)[:-1])


def _running():
    return [normal(4, 7), np.abs(normal(5, 7)) + 0.5]


def _of_ranks(x, add, rest, dy, parts, attributes):
    """Returns for each rank y, the gradients of x, gamma, beta and what is added, and the running statistics."""

    def body(rank, ranks):
        running = tuple(_running())
        inputs = [_split(x, parts)[rank], *rest, *([] if add is None else [_split(add, parts)[rank]])]
        node = BatchNormalization(attributes, running, None, ranks)
        y, gradients, _ = run(lambda *inputs: node.apply(inputs)[0], inputs, _split(dy, parts)[rank])
        return [y, *gradients, *running]

    return rank_threads.run(len(parts), body)


@pytest.mark.parametrize(("dtype", "parts", "added", "relu"), pairs(DTYPES, PARTS, [False, True], [False, True]))
def test_several_processes_are_one(dtype, added, relu, parts):
    """Beside Chainer in float64 on the whole batch; gradients of gamma and beta are means, as ChainerMN's are."""
    x, add = (normal(0, *SHAPE) * 2 + 3).astype(dtype), normal(3, *SHAPE, dtype=dtype) if added else None
    dy, rest = normal(7, *SHAPE, dtype=dtype), [normal(1, 7) + 1, normal(2, 7)]
    found = _of_ranks(x, add, rest, dy, parts, BatchNorm(1e-3, 0.7, relu))

    expected = [wide(array) for array in _running()]

    def whole(x, gamma, beta, add=None):
        y = CF.batch_normalization(
            x, gamma, beta, eps=1e-3, running_mean=expected[0], running_var=expected[1], decay=0.7
        )
        y = y if add is None else y + add
        return CF.relu(y) if relu else y

    inputs = [to_nchw(wide(array)) for array in (x, *rest, *[add] * added)]
    y, gradients, _ = run(whole, inputs, to_nchw(wide(dy)))
    y, dx, dgamma, dbeta, *dadd = [
        array.transpose(0, 2, 3, 1) if array.ndim == 4 else array for array in (y, *gradients)
    ]
    for rank, of_rank in enumerate(found):
        images = [_split(array, parts)[rank] for array in (y, dx, *dadd)]
        exact = [*images[:2], dgamma / len(parts), dbeta / len(parts), *images[2:]]
        for each, right in zip(of_rank, exact, strict=False):
            slack = 8 * ELEMENTS * EPS32 * np.abs(right).max()
            assert_rounded(each, right, dtype if right.ndim == 4 else np.float32, slack)
        np.testing.assert_allclose(of_rank[-2:], expected, rtol=1e-6, atol=1e-6)
        for mine, other in zip(of_rank[-2:], found[0][-2:], strict=True):
            assert mine.tobytes() == other.tobytes()


def test_one_row_of_a_rank_is_no_mistake():
    """A batch of one row in this process alone is worth a warning, see test_batch_normalization.py."""
    x, channels = normal(0, 2, 1, 1, 7), normal(1, 7)
    found = _of_ranks(x, None, [channels, channels], x, (1, 1), BatchNorm())
    assert all(np.isfinite(array).all() for array in (*found[0], *found[1]))


def test_an_empty_batch_is_an_error():
    x, channels = normal(0, 2, 7), normal(1, 7)
    with pytest.raises(ValueError, match=r"an empty batch has no statistics; found shape \(0, 7\)"):
        _of_ranks(x, None, [channels, channels], x, (2, 0), BatchNorm())
