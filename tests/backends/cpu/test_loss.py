"""Softmax cross entropy on NumPy beside FP64: Chainer's, and torch's for class weights and label smoothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends import primitive_cases as cases
from tests.backends.primitive_cases import binary_cross_entropy, softmax_cross_entropy
from tests.cases import tries

rows = st.sampled_from([1, 2, 5, 33])
classes = st.sampled_from([1, 2, 3, 10, 17, 100, 1000])
smoothings = st.sampled_from([0.0, 0.1, 0.5])


# --- the reference


@given(count=rows, number=classes, weighted=st.booleans(), smoothing=smoothings, seed=cases.seeds)
@settings(max_examples=tries(40))
def test_the_reference_is_torchs(count, number, weighted, smoothing, seed):
    torch = pytest.importorskip("torch", reason="torch is not installed: it has class weights with label smoothing")
    rng = np.random.default_rng(seed)
    x, t = cases.arrays(rng, (count, number), np.float64), cases.labels(rng, count, number, -1)
    class_weight = rng.uniform(0.5, 2, number) if weighted else None
    tensor = torch.tensor(x, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        tensor,
        torch.tensor(t, dtype=torch.long),
        weight=None if class_weight is None else torch.tensor(class_weight),
        ignore_index=-1,
        reduction="none",
        label_smoothing=smoothing,
    )
    expected.sum().backward()
    losses, _, gradient = softmax_cross_entropy(x, t, class_weight, smoothing, -1)
    np.testing.assert_allclose(losses, expected.detach().numpy(), atol=1e-10)
    np.testing.assert_allclose(gradient, tensor.grad.numpy(), atol=1e-10)


# --- the primitive


@given(
    count=rows,
    number=classes,
    dtype=cases.storage_dtypes,
    weighted=st.booleans(),
    smoothing=smoothings,
    ignore_label=st.sampled_from([-1, 255, 0]),
    spread=st.sampled_from([1.0, 20.0, 1000.0]),
    one_factor=st.booleans(),
    kind=st.sampled_from(cases.MIXED),
    seed=cases.seeds,
)
@settings(max_examples=tries(150))
def test_softmax_cross_entropy(
    on_both, count, number, dtype, weighted, smoothing, ignore_label, spread, one_factor, kind, seed
):
    rng = np.random.default_rng(seed)
    x, t = cases.arrays(rng, (count, number), dtype, spread), cases.labels(rng, count, number, ignore_label)
    class_weight = rng.uniform(0.5, 2, number).astype(np.float32) if weighted else None
    options = {"class_weight": class_weight, "smoothing": smoothing, "ignore_label": ignore_label}
    options["mixed"] = cases.mixed_labels(rng, t, count, number, kind)
    losses, log_z, _ = on_both.softmax_cross_entropy(x, t, **options)

    expected, expected_log_z, gradient = softmax_cross_entropy(x, t, **options)
    loss_bound, log_z_bound, gradient_bound = cases.softmax_cross_entropy_bounds(x, class_weight, expected_log_z)
    cases.assert_close(losses, expected, cases.FLOAT32, loss_bound)
    cases.assert_close(log_z, expected_log_z, cases.FLOAT32, log_z_bound)
    assert (losses[t == ignore_label] == 0).all()

    factors = np.array(128, np.float32) if one_factor else cases.arrays(rng, count, np.float32)
    dx = on_both.softmax_cross_entropy_backward(factors, x, t, log_z, **options)
    by_row = np.broadcast_to(cases.exact(factors), count)[:, None]
    cases.assert_close(dx, gradient * by_row, dtype, gradient_bound * np.abs(by_row))
    assert not dx[t == ignore_label].any()


@given(count=rows, number=classes, smoothing=smoothings, threshold=st.sampled_from([None, 0.0, 0.2]), seed=cases.seeds)
@settings(max_examples=tries(40))
def test_the_reference_of_sigmoids_is_torchs(count, number, smoothing, threshold, seed):
    """With the targets that timm's Mixup and BinaryCrossEntropy make: mixed rows of the identity, smoothed."""
    torch = pytest.importorskip("torch", reason="torch is not installed: it has the loss of sigmoids")
    rng = np.random.default_rng(seed)
    x, t = cases.arrays(rng, (count, number), np.float64, 5.0), cases.labels(rng, count, number, -1)
    second, share = cases.mixed_labels(rng, t, count, number, "all")
    one_hot = np.eye(number) * (1 - smoothing) + smoothing / number
    target = cases.exact(share) * one_hot[t] + (1 - cases.exact(share)) * one_hot[second]
    target = target if threshold is None else np.float64(target > threshold)
    tensor = torch.tensor(x, requires_grad=True)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(tensor, torch.tensor(target), reduction="none")
    expected.mean(1).sum().backward()
    losses, gradient = binary_cross_entropy(x, t, smoothing, threshold, -1, (second, share))
    counted = t >= 0
    np.testing.assert_allclose(losses[counted], expected.mean(1).detach().numpy()[counted], atol=1e-12)
    np.testing.assert_allclose(gradient[counted], tensor.grad.numpy()[counted], atol=1e-12)


@given(
    count=rows,
    number=classes,
    dtype=cases.storage_dtypes,
    smoothing=smoothings,
    threshold=st.sampled_from([None, 0.0, 0.2]),
    ignore_label=st.sampled_from([-1, 255, 0]),
    spread=st.sampled_from([1.0, 20.0, 1000.0]),
    one_factor=st.booleans(),
    kind=st.sampled_from(cases.MIXED),
    seed=cases.seeds,
)
@settings(max_examples=tries(100))
def test_binary_cross_entropy(
    on_both, count, number, dtype, smoothing, threshold, ignore_label, spread, one_factor, kind, seed
):
    rng = np.random.default_rng(seed)
    x, t = cases.arrays(rng, (count, number), dtype, spread), cases.labels(rng, count, number, ignore_label)
    options = {"smoothing": smoothing, "threshold": threshold, "ignore_label": ignore_label}
    options["mixed"] = cases.mixed_labels(rng, t, count, number, kind)
    losses, _ = on_both.binary_cross_entropy(x, t, **options)
    expected, gradient = binary_cross_entropy(x, t, **options)
    loss_bound, gradient_bound = cases.binary_cross_entropy_bounds(x)
    cases.assert_close(losses, expected, cases.FLOAT32, loss_bound)
    assert (losses[t == ignore_label] == 0).all()
    factors = np.array(128, np.float32) if one_factor else cases.arrays(rng, count, np.float32)
    dx = on_both.binary_cross_entropy_backward(factors, x, t, **options)
    by_row = np.broadcast_to(cases.exact(factors), count)[:, None]
    cases.assert_close(dx, gradient * by_row, dtype, gradient_bound * np.abs(by_row))
    assert not dx[t == ignore_label].any()


@pytest.mark.parametrize("dtype", cases.STORAGE)
@pytest.mark.filterwarnings("error")
def test_logits_of_any_size(on_both, dtype):
    largest = 65504 if dtype == cases.FLOAT16 else 1e38
    x = np.array([[largest, -largest, 0], [-largest, -largest, -largest], [0, -np.inf, 0]], dtype)
    t = np.zeros(3, np.int32)
    losses, log_z, _ = on_both.softmax_cross_entropy(x, t)
    np.testing.assert_allclose(losses, [0, np.log(3), np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(log_z, [cases.exact(x)[0, 0], cases.exact(x)[1, 0] + np.log(3), np.log(2)], rtol=1e-6)
    dx = on_both.softmax_cross_entropy_backward(np.float32(1), x, t, log_z)
    assert dx[0].tolist() == [0, 0, 0]
    assert dx[2].tolist() == [-0.5, 0, 0.5]


def test_rows_that_do_not_count_may_hold_anything(on_both):
    x = np.array([[np.nan, 0], [np.inf, np.inf], [0, 0]], np.float16)
    t = np.array([-1, -1, 1], np.int32)
    losses, log_z, _ = on_both.softmax_cross_entropy(x, t, smoothing=0.1)
    assert losses[:2].tolist() == [0, 0]
    assert losses[2] == np.float32(np.log(2))
    dx = on_both.softmax_cross_entropy_backward(np.float32(1), x, t, log_z, smoothing=0.1)
    assert not dx[:2].any()


def test_a_scaled_gradient_that_does_not_fit_is_infinite(on_both):
    x, t = np.zeros((1, 2), np.float16), np.zeros(1, np.int32)
    _, log_z, _ = on_both.softmax_cross_entropy(x, t)
    dx = on_both.softmax_cross_entropy_backward(np.float32(2**18), x, t, log_z)
    assert dx.tolist() == [[-np.inf, np.inf]]


@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "binary_cross_entropy"])
@pytest.mark.parametrize(("divisor", "expected"), [(0, 3), (8, 8), (0.5, 0.5)])
def test_the_mean(on_both, loss, divisor, expected):
    x, t = np.array([[1, 2], [0, 4.5], [-3, 1], [2, 2]], np.float32), np.array([0, 1, -1, 1], np.int32)
    losses, *_, (mean, factor, share) = getattr(on_both, loss)(x, t, divisor=divisor)
    assert mean.shape == factor.shape == ()
    assert mean.dtype == factor.dtype == np.float32
    np.testing.assert_allclose(factor, 1 / expected, rtol=1e-7)
    np.testing.assert_allclose(mean, losses.sum() / expected, rtol=1e-6)
    assert share == np.float32(1 / 3)


@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "binary_cross_entropy"])
def test_the_mean_of_none(on_both, loss):
    for t in (np.full(2, 7, np.int32), np.zeros(0, np.int32)):
        x = np.zeros((len(t), 3), np.float32)
        *_, (mean, factor, share) = getattr(on_both, loss)(x, t, ignore_label=7, divisor=0)
        assert (mean, factor, share) == (0, 1, 0)


def test_an_empty_batch(on_both):
    x, t = np.zeros((0, 3), np.float16), np.zeros(0, np.int32)
    losses, log_z, _ = on_both.softmax_cross_entropy(x, t)
    assert losses.shape == log_z.shape == (0,)
    assert on_both.softmax_cross_entropy_backward(np.float32(1), x, t, log_z).shape == (0, 3)
