"""The loss beside Chainer's in float64, and beside torch's with label smoothing."""

import chainer
import chainer.functions as CF
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec import functions as F
from tests.cases import tries
from tests.functions.nhwc import DTYPES, EPS, normal, run, wide


@settings(max_examples=tries(40))
@given(
    shape=st.sampled_from([(5,), (1,), (2, 3, 4)]),
    classes=st.integers(1, 30),
    normalize=st.booleans(),
    weighted=st.booleans(),
    ignore_label=st.sampled_from([-1, 0, 255]),
    reduce=st.sampled_from(["mean", "no"]),
    dtype=st.sampled_from(DTYPES),
    labels=st.sampled_from([np.int32, np.int64, np.int8]),
    seed=st.integers(0, 1000),
)
def test_loss_is_chainers(shape, classes, normalize, weighted, ignore_label, reduce, dtype, labels, seed):
    random = np.random.RandomState(seed)
    t = random.randint(0, classes, shape)
    if labels != np.int8:
        t[random.uniform(size=shape) < 0.3] = ignore_label
    elif ignore_label == 255:
        ignore_label = -1
    x, t = normal(seed, *shape, classes, dtype=dtype) * dtype.type(3), t.astype(labels)
    weight = random.uniform(0.5, 2, classes).astype(np.float32) if weighted else None

    def arguments(weight):
        return {"normalize": normalize, "class_weight": weight, "ignore_label": ignore_label, "reduce": reduce}

    loss, (dx,), dloss = run(lambda x: F.softmax_cross_entropy(x, t, **arguments(weight)), [x])
    exact, (dx_exact,), _ = run(
        lambda x: CF.softmax_cross_entropy(
            CF.moveaxis(x, -1, 1), t, **arguments(weight if weight is None else wide(weight))
        ),
        [wide(x)],
        wide(dloss),
    )
    assert loss.dtype == np.float32
    assert dx.dtype == dtype
    np.testing.assert_allclose(loss, exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(wide(dx), dx_exact, rtol=2 * EPS[dtype] + 1e-5, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_smoothing_is_torchs(weighted):
    torch = pytest.importorskip("torch", reason="torch is not installed: it comes with Python 3.11 only")
    x, t = normal(0, 6, 9), np.array([3, -1, 0, 8, 2, 2], np.int32)
    weight = np.linspace(0.5, 2, 9).astype(np.float32) if weighted else None
    losses, (dx,), dlosses = run(
        lambda x: F.softmax_cross_entropy(x, t, class_weight=weight, reduce="no", smoothing=0.1), [x]
    )
    x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        *(x, torch.tensor(t, dtype=torch.int64)),
        weight=None if weight is None else torch.tensor(weight, dtype=torch.float64),
        ignore_index=-1,
        reduction="none",
        label_smoothing=0.1,
    )
    expected.backward(torch.tensor(dlosses, dtype=torch.float64))
    np.testing.assert_allclose(losses, expected.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, x.grad, rtol=1e-5, atol=1e-6)


def _mixed_target(t, second, share, smoothing, classes):
    """The target of timm's Mixup: a mean of two smoothed rows of the identity, float64."""
    rows = np.eye(classes) * (1 - smoothing) + smoothing / classes
    share = wide(np.asarray(share))[..., None]
    return share * rows[t] + (1 - share) * rows[second]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("function", [F.softmax_cross_entropy, F.binary_cross_entropy])
@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_mixed_images_are_torchs(function, smoothing, shape):
    """In float16: the loss, and each element of the gradient, are within 1 ulp of those of float64, rounded."""
    torch = pytest.importorskip("torch", reason="torch is not installed: it comes with Python 3.11 only")
    random = np.random.RandomState(1)
    x, (t, second) = normal(0, *shape, 9, dtype=np.dtype(np.float16)), random.randint(0, 9, (2, *shape))
    share = random.uniform(size=() if smoothing else shape).astype(np.float32)
    loss, (dx,), _ = run(
        lambda x: function(x, t, smoothing=smoothing, mixed=(second, np.asarray(share))), [x], np.array(128, "f")
    )
    logits = torch.tensor(wide(x).reshape(-1, 9), requires_grad=True)
    target = torch.tensor(_mixed_target(t, second, share, smoothing, 9).reshape(-1, 9))
    if function is F.softmax_cross_entropy:
        expected = torch.nn.functional.cross_entropy(logits, target)
    else:
        expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, target)
    expected.backward(torch.tensor(128.0))
    assert loss.dtype == np.float32
    assert dx.dtype == np.float16
    for found, exact in ((loss, expected.item()), (dx, logits.grad.numpy().reshape(x.shape))):
        rounded = np.asarray(exact).astype(np.float16)
        assert (np.abs(wide(np.asarray(found, np.float16)) - wide(rounded)) <= wide(np.spacing(np.abs(rounded)))).all()


@pytest.mark.parametrize(
    ("share", "threshold", "right"), [(0.7, 0.2, [1, 3]), (0.7, 0.4, [1]), (0.7, 0.8, []), (0.0, 0.0, [3])]
)
def test_a_threshold_makes_both_classes_right(share, threshold, right):
    mixed = np.array([3]), np.array(share, np.float32)
    x, t = np.zeros((1, 4), np.float32), np.array([1])
    _, (dx,), _ = run(lambda x: F.binary_cross_entropy(x, t, threshold=threshold, mixed=mixed), [x], np.array(4, "f"))
    np.testing.assert_array_equal(dx[0], [-0.5 if label in right else 0.5 for label in range(4)])


def test_all_ignored_and_far_apart_logits():
    x = np.array([[60000, -60000], [-60000, 60000]], np.float16)
    loss, (dx,), _ = run(lambda x: F.softmax_cross_entropy(x, np.array([-1, -1], np.int32)), [x], np.ones((), "f"))
    assert loss == 0
    assert not dx.any()
    loss, (dx,), _ = run(lambda x: F.softmax_cross_entropy(x, np.array([1, 1], np.int32)), [x], np.ones((), "f"))
    assert loss == 60000
    np.testing.assert_array_equal(dx, np.array([[0.5, -0.5], [0, 0]], np.float16))


def test_labels_as_a_variable_get_no_gradient():
    t = chainer.Variable(np.array([1, 0], np.int32))
    loss = F.softmax_cross_entropy(chainer.Variable(normal(0, 2, 3)), t)
    loss.backward()
    assert t.grad is None


def _loss(x=(2, 3), t=(2,), dtype=np.float32, labels=np.int32, **rest):
    return lambda: F.softmax_cross_entropy(np.zeros(x, dtype), np.zeros(t, labels), **rest)


MESSAGES = [
    (
        lambda: F.softmax_cross_entropy(np.zeros((2, 3), "f"), np.array([3, 0])),
        ValueError,
        "softmax_cross_entropy: labels must be from 0 to 2, or -1 to be ignored; found 3",
    ),
    (
        _loss((2, 3, 4, 4), (2, 4, 4)),
        ValueError,
        "softmax_cross_entropy: t must have the shape of x without its last axis, the classes; found (2, 4, 4) and "
        "(2, 3, 4, 4)",
    ),
    (_loss(labels=np.float32), TypeError, "softmax_cross_entropy: t must be signed integers; found float32"),
    (_loss(reduce="sum"), ValueError, "softmax_cross_entropy: reduce must be one of mean, no; found 'sum'"),
    (_loss(smoothing=1), ValueError, "softmax_cross_entropy: smoothing must be from 0 to below 1; found 1"),
    (
        _loss(mixed=np.zeros(2, np.int32)),
        TypeError,
        "softmax_cross_entropy: mixed must be a pair (second, share); found ndarray, shape (2,) int32",
    ),
    (
        _loss(mixed=(np.zeros(3, np.int32), np.ones((), "f"))),
        ValueError,
        "softmax_cross_entropy: second must have the shape of x without its last axis, the classes; found (3,) and "
        "(2, 3)",
    ),
    (
        _loss(mixed=(np.zeros(2, np.int32), np.ones(3, "f"))),
        ValueError,
        "softmax_cross_entropy: share must be float32, () or of the shape of t, (2,); found float32 and (3,)",
    ),
    (
        lambda: F.binary_cross_entropy(np.zeros((2, 4), "f"), np.array([0, 1]), smoothing=0.2, threshold=0.0),
        ValueError,
        "binary_cross_entropy: threshold must be from 0.05 to below 0.85, the targets of other classes and of the "
        "label; found 0",
    ),
    (
        lambda: F.softmax_cross_entropy(
            np.zeros((2, 3), "f"), np.array([0, -1]), mixed=(np.array([-1, -1]), np.ones((), "f"))
        ),
        ValueError,
        "softmax_cross_entropy: second labels must be from 0 to 2 where t counts; found -1",
    ),
    (
        _loss(class_weight=chainer.Variable(np.ones(3, "f"))),
        TypeError,
        "softmax_cross_entropy: class_weight must be an array, it gets no gradient; found Variable",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_messages(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
