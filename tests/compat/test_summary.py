"""chainer.reporter.Summary accumulates float16 values in float32."""

import types
import warnings

import chainer
import numpy as np
import pytest

from mixprec.compat import half


def test_mean_of_many_float16_losses_is_the_loss():
    """Chainer alone: 10,000 x 2.3 averages to 0.8193, as a float16 sum stops growing at 8192 (spacing 8)."""
    total = chainer.reporter.Summary()
    for _ in range(10_000):
        total.add(np.float16(2.3))
    expected = float(np.float16(2.3))
    # n roundings of a float32 running sum, each of at most half a unit in the last place.
    np.testing.assert_allclose(total.compute_mean(), expected, rtol=10_000 * 2.0**-24)
    assert total.compute_mean().dtype == np.float32


@pytest.mark.parametrize("value", [np.float16(300), np.array(300, "float16"), np.array(300, "float32")])
def test_standard_deviation_is_finite_where_the_square_exceeds_float16(value):
    """300 squared is 90,000 > 65,504: Chainer alone says nan."""
    total = chainer.reporter.Summary()
    total.add(value)
    total.add(value + value.dtype.type(2))
    mean, std = total.make_statistics()
    assert mean == 301
    # var is a difference of two numbers near 90,000: absolute error of a few float32 ulps (2**-7 each).
    np.testing.assert_allclose(std, 1.0, atol=4 * 2.0**-7)


def test_float16_weight_is_not_rounded_as_it_accumulates():
    total = chainer.reporter.Summary()
    for _ in range(3000):
        total.add(np.float16(1), weight=np.float16(1))
    assert total.compute_mean() == 1
    assert total._n == 3000  # a float16 count stays at 2048


def test_arrays_of_another_library_are_widened_by_their_own_astype():
    """A CuPy array: recognised by its dtype, converted on its device."""

    class Array:
        dtype = np.dtype("float16")

        def astype(self, dtype):
            return types.SimpleNamespace(dtype=np.dtype(dtype))

    assert half.widened(Array()).dtype == np.float32


def test_statistics_survive_a_snapshot(tmp_path):
    """save -> load -> go on agrees with the uninterrupted run to float32 precision (loaded sums are
    float64).
    """
    values = np.random.RandomState(0).uniform(200, 400, 50).astype("float16")
    whole, first = chainer.reporter.DictSummary(), chainer.reporter.DictSummary()
    for value in values:
        whole.add({"loss": value})
    for value in values[:20]:
        first.add({"loss": value})
    chainer.serializers.save_npz(tmp_path / "summary.npz", first)
    second = chainer.reporter.DictSummary()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chainer.serializers.load_npz(tmp_path / "summary.npz", second)
    for value in values[20:]:
        second.add({"loss": value})
    assert {k: float(v) for k, v in second.make_statistics().items()} == pytest.approx(
        {k: float(v) for k, v in whole.make_statistics().items()}, rel=1e-6
    )
