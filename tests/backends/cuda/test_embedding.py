"""Kernels of embeddings, run on the host, beside NumPy's; and NumPy's beside FP64."""

import numpy as np
import pytest

from mixprec.backends.cpu import PRIMITIVES
from tests.backends.primitive_cases import FLOAT32, STORAGE, accumulated, arrays, assert_close, exact
from tests.cases import pairs
from tests.stand_ins.host_launch import HostLauncher
from tests.stand_ins.kernels_on_host import OwnKernels, assert_same, receive, send

COUNTS, ROWS, COLUMNS = (0, 1, 31, 65, 300), (1, 3, 400), (1, 8, 200, 600)
CASES = pairs(COUNTS, ROWS, COLUMNS, STORAGE, (np.int32, np.int64), (None, -1, 0))


@pytest.fixture(scope="module")
def device():
    return OwnKernels(HostLauncher())


@pytest.mark.parametrize(("count", "rows", "columns", "dtype", "of_labels", "ignored"), CASES)
def test_rows_by_labels(device, count, rows, columns, dtype, of_labels, ignored):
    rng = np.random.default_rng(count)
    t = rng.integers(-1 if ignored == -1 else -rows, rows, count).astype(of_labels)
    w, dy = arrays(rng, (rows, columns), dtype), arrays(rng, (count, columns), dtype)
    chosen = np.equal.outer(np.where(t < 0, t + rows, t), np.arange(rows)) & (t != ignored)[:, None]
    y = PRIMITIVES.embed(w, t, ignored)
    np.testing.assert_array_equal(exact(y), chosen @ exact(w))
    assert_same(device.embed(send(w), send(t), ignored), y)
    slack = accumulated(count, chosen.T @ np.abs(exact(dy)))
    for dw in (
        PRIMITIVES.embed_backward(dy, t, rows, ignored),
        receive(device.embed_backward(send(dy), send(t), rows, ignored)),
    ):
        assert_close(dw, chosen.T @ exact(dy), dtype, slack)
    assert device.launches_of("embed", send(w), send(t)) == bool(count)
    assert device.launches_of("embed_backward", send(dy), send(t), rows) == bool(count)


def test_labels_beyond_the_table_are_taken_modulo_its_rows(device):
    w, t, far = np.eye(3, dtype=np.float32), np.array([1, 2, 0]), np.array([4, -4, 3 * 2**40])
    assert_same(device.embed(send(w), send(far)), w[t])
    np.testing.assert_array_equal(receive(device.embed_backward(send(w), send(far), 3))[t], w)


@pytest.mark.parametrize("dtype", [np.float16, FLOAT32, np.int32, np.int64])
@pytest.mark.parametrize(("lengths", "shape"), [([5, 0, 3], (8,)), ([1, 2], (3,)), ([1] * 300, ()), ([2, 2], (4,))])
@pytest.mark.parametrize("misaligned", [False, True])
def test_arrays_one_after_the_other(device, dtype, lengths, shape, misaligned):
    parts = [np.random.default_rng(n).integers(-9, 9, (n, *shape)).astype(dtype) for n in lengths]
    sent = [send(part, misaligned) for part in parts]
    assert_same(device.concat_rows(sent), PRIMITIVES.concat_rows(parts))
    assert device.launches_of("concat_rows", sent) == -(-len(parts) // 240)
