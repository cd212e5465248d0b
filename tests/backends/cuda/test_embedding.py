"""Kernels of embeddings, run on the host, beside NumPy's; and NumPy's beside FP64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from tests.backends.primitive_cases import FLOAT32, accumulated, arrays, assert_close, exact, seeds, storage_dtypes
from tests.cases import tries
from tests.stand_ins.host_launch import HostLauncher
from tests.stand_ins.kernels_on_host import OwnKernels, assert_same, receive, send


@pytest.fixture(scope="module")
def device():
    return OwnKernels(HostLauncher())


@settings(max_examples=tries(60))
@given(
    count=st.sampled_from([0, 1, 2, 31, 65, 300]),
    rows=st.sampled_from([1, 3, 400]),
    columns=st.sampled_from([1, 3, 8, 200, 600]),
    dtype=storage_dtypes,
    of_labels=st.sampled_from([np.int32, np.int64]),
    ignore_label=st.sampled_from([None, -1, 0]),
    seed=seeds,
)
def test_rows_by_labels(device, count, rows, columns, dtype, of_labels, ignore_label, seed):
    rng = np.random.default_rng(seed)
    t = rng.integers(-1 if ignore_label == -1 else -rows, rows, count).astype(of_labels)
    w, dy = arrays(rng, (rows, columns), dtype), arrays(rng, (count, columns), dtype)
    chosen = np.equal.outer(np.where(t < 0, t + rows, t), np.arange(rows)) & (t != ignore_label)[:, None]
    y, dw = PRIMITIVES.embed(w, t, ignore_label), PRIMITIVES.embed_backward(dy, t, rows, ignore_label)
    np.testing.assert_array_equal(exact(y), chosen @ exact(w))
    assert_close(dw, chosen.T @ exact(dy), dtype, accumulated(count, chosen.T @ np.abs(exact(dy))))
    assert_same(device.embed(send(w), send(t), ignore_label), y)
    found = receive(device.embed_backward(send(dy), send(t), rows, ignore_label))
    assert_close(found, chosen.T @ exact(dy), dtype, accumulated(count, chosen.T @ np.abs(exact(dy))))


def test_labels_beyond_the_table(device):
    """NumPy refuses them; a device takes them modulo the number of rows, as CuPy does, and writes nowhere else."""
    w, t, far = np.eye(3, dtype=np.float32), np.array([1, 2, 0], np.int64), np.array([4, -4, 3 * 2**40])
    for labels in (far, far[:1].astype(np.int32)):
        with pytest.raises(IndexError):
            PRIMITIVES.embed(w, labels)
        assert_same(device.embed(send(w), send(labels)), w[t[: len(labels)]])
        dw = receive(device.embed_backward(send(w[: len(labels)]), send(labels), 3))
        np.testing.assert_array_equal(dw[t[: len(labels)]], w[: len(labels)])


@pytest.mark.parametrize("dtype", [np.float16, FLOAT32, np.int32, np.int64])
@pytest.mark.parametrize(("lengths", "shape"), [([5, 0, 3], (8,)), ([1, 2], (3,)), ([1] * 300, ()), ([2, 2], (4,))])
@pytest.mark.parametrize("misaligned", [False, True])
def test_arrays_one_after_the_other(device, dtype, lengths, shape, misaligned):
    parts = [
        np.random.default_rng(number).integers(-9, 9, (n, *shape)).astype(dtype) for number, n in enumerate(lengths)
    ]
    sent = [send(part, misaligned) for part in parts]
    assert_same(device.concat_rows(sent), PRIMITIVES.concat_rows(parts))
    assert device.launches_of("concat_rows", sent) == -(-len(parts) // 240)
    t, table = send(np.zeros(2, np.int32)), send(np.zeros((2, 3), np.float16))
    assert device.launches_of("embed", table, t) == device.launches_of("embed_backward", table, t, 2) == 1
