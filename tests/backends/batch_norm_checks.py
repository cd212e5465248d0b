"""A batch normalization on any device beside FP64."""

import numpy as np

from mixprec.backends.cpu import PRIMITIVES
from tests.backends import primitive_cases as cases


def opened(values, relu):
    return np.maximum(values, 0) if relu else values


def without_doubt(dy, before, bound):
    """The gradient with zeros where the sign of the ReLU's input is within its error bound."""
    return np.where(np.abs(before) <= bound, 0, dy).astype(dy.dtype)


def check_gradients(found, dy, before, x, gamma, mean, invstd, attributes, add, constant=False, of_images=1.0):
    """Checks ``(dx, dgamma, dbeta, dadd)``, as arrays of NumPy; ``before`` is the input of the ReLU."""
    dx, dgamma, dbeta, dadd = found
    gradient = cases.exact(dy) * (before > 0) if attributes.relu else cases.exact(dy)
    expected = cases.batch_norm_gradients(of_images * gradient, x, gamma, mean, invstd, constant)
    slack = 1 if np.ndim(of_images) == 0 else 2
    for array, name, dtype in ((dx, "dx", x.dtype), (dgamma, "dgamma", cases.FLOAT32), (dbeta, "dbeta", cases.FLOAT32)):
        cases.assert_close(array, expected[name][0], dtype, slack * expected[name][1])
    if add:
        assert dadd.dtype == x.dtype
        np.testing.assert_array_equal(cases.exact(dadd), gradient)
    else:
        assert dadd is None


def check(
    primitives, send, receive, shape, dtype, attributes, with_add, with_factors=False, with_plus=False, spread=2.0,
    mean=1.0, seed=0,
):  # fmt: skip
    """Checks a forward pass with running statistics, and a backward pass.

    Args:
        primitives: of the device.
        send: brings arrays and tuples of them to it.
        receive: brings them back.
        shape: (..., C).
        dtype: storage dtype.
        attributes: :class:`~mixprec.backends.geometry.BatchNorm`.
        with_add: whether something is added.
        with_factors: whether the images have factors; only with ``with_add``.
        with_plus: whether the gradient is the sum of two arrays.
        spread: standard deviation of the input.
        mean: of the input.
        seed: of random numbers.
    """
    rng = np.random.default_rng(seed)
    x = cases.arrays(rng, shape, dtype, spread, mean)
    add = cases.arrays(rng, shape, dtype) if with_add else None
    gamma, beta = cases.channel_parameters(rng, shape[-1])
    factors = rng.choice([0, 1.25, 2.5], shape[0]).astype(np.float32) if with_factors else None
    of_images = cases.exact(factors).reshape(-1, *[1] * (len(shape) - 1)) if with_factors else 1.0

    def output(moments):
        if not with_factors:
            return cases.batch_norm_output(x, gamma, beta, moments, add)
        normalized, bound = cases.batch_norm_output(x, gamma, beta, moments)
        terms = np.abs(of_images * normalized) + np.abs(cases.exact(add))
        return of_images * normalized + cases.exact(add), 2 * of_images * bound + 4 * cases.EPS32 * terms

    running = cases.arrays(rng, shape[-1], np.float32), np.exp(cases.arrays(rng, shape[-1], np.float32))
    moved = send(tuple(array.copy() for array in running))
    on_device = send((x, gamma, beta))
    y, saved = primitives.batch_norm(*on_device, moved, attributes, add=send(add), factors=send(factors))

    moments = cases.batch_norm_moments(x, attributes.eps, merged=True)
    mean, invstd = receive((saved.mean, saved.invstd))
    cases.assert_close(mean, moments.mean, cases.FLOAT32, moments.mean_bound)
    cases.assert_close(invstd, moments.invstd, cases.FLOAT32, moments.invstd_bound)
    before, bound = output(moments)
    cases.assert_close(receive(y), opened(before, attributes.relu), dtype, bound)
    unbiased = moments.count / max(moments.count - 1, 1)
    for found, old, value, value_bound in zip(
        receive(moved),
        running,
        (moments.mean, moments.variance * unbiased),
        (moments.mean_bound, moments.variance_bound * unbiased),
        strict=True,
    ):
        kept, new = attributes.decay * cases.exact(old), (1 - attributes.decay) * value
        cases.assert_close(
            found, kept + new, cases.FLOAT32, value_bound + cases.accumulated(3, np.abs(kept) + np.abs(new))
        )

    before, bound = output(cases.given_moments(mean, invstd))
    # cuDNN may round what it computes again to the storage dtype before it looks at the sign.
    doubt = bound + np.finfo(np.float16).tiny
    dy = without_doubt(cases.arrays(rng, shape, dtype), before, doubt)
    plus = without_doubt(cases.arrays(rng, shape, dtype), before, doubt) if with_plus else None
    sent = send(dy)
    found = primitives.batch_norm_backward(
        sent, *on_device, saved, attributes, add=with_add, plus=send(plus), factors=send(factors)
    )
    assert not with_add or attributes.relu or with_plus or found[3] is sent
    total = PRIMITIVES.add(dy, plus) if with_plus else dy
    check_gradients(receive(found), total, before, x, gamma, mean, invstd, attributes, with_add, of_images=of_images)
