"""Batch normalization of several processes by the primitives of a device, beside float64 on all of their batches."""

import numpy as np
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from tests.backends import primitive_cases as cases
from tests.stand_ins import rank_threads

CASES = {
    "sizes": st.lists(st.integers(1, 40), min_size=1, max_size=5),  # rows of each process
    "channels": st.sampled_from([1, 3, 8, 17]),
    "dtype": cases.storage_dtypes,
    "attributes": cases.batch_norms,
    "with_add": st.booleans(),
    "with_plus": st.booleans(),
    "mean": st.sampled_from([0.0, 3.0, 100.0]),
    "seed": cases.seeds,
}


def split(array, sizes):
    """Returns the batches of all processes, a list; of ``None`` one of these."""
    return [None] * len(sizes) if array is None else np.split(array, np.cumsum(sizes)[:-1])


def check(
    primitives, send, receive, sizes, channels, dtype, attributes, with_add, with_plus, mean, seed, with_factors=False
):
    """Checks a forward and a backward pass.

    Args:
        primitives: of the device.
        send: brings arrays, tuples of them and ``None`` to it.
        receive: brings them back.
        sizes: rows of each process, whose means are not the same.
        channels: number of channels.
        dtype: storage dtype.
        attributes: of the batch normalization.
        with_add: whether something is added.
        with_plus: whether the gradient is the sum of two arrays.
        mean: of the first process, in standard deviations.
        seed: of random numbers.
        with_factors: whether the rows have factors; only with ``with_add``.
    """
    rng = np.random.default_rng(seed)
    rows, processes = sum(sizes), len(sizes)
    x, dy = rng.standard_normal((2, rows, channels))
    x = (x + mean + np.repeat(np.arange(processes), sizes)[:, None]).astype(dtype)
    add = cases.arrays(rng, (rows, channels), dtype) if with_add else None
    parameters = cases.channel_parameters(rng, channels)
    factors = rng.choice([0, 1.25], rows).astype(np.float32) if with_factors else None
    of_rows = 1.0 if factors is None else cases.exact(factors)[:, None]
    before = cases.arrays(rng, channels, np.float32), np.exp(cases.arrays(rng, channels, np.float32))

    def forward(rank, ranks):
        running = send(tuple(array.copy() for array in before))
        part, added, scaled = (send(split(array, sizes)[rank]) for array in (x, add, factors))
        y, saved = primitives.batch_norm(
            part, *send(parameters), running, attributes, add=added, ranks=ranks, factors=scaled
        )
        return saved, receive(y), running

    found = rank_threads.run(processes, forward)
    saved, _, running = found[0]
    for other, _, moved in found[1:]:
        for ours, theirs in zip((saved.mean, saved.invstd, *running), (other.mean, other.invstd, *moved), strict=True):
            assert receive(ours).tobytes() == receive(theirs).tobytes()

    moments = cases.batch_norm_moments(x, attributes.eps, merged=True)
    cases.assert_close(receive(saved.mean), moments.mean, cases.FLOAT32, moments.mean_bound)
    cases.assert_close(receive(saved.invstd), moments.invstd, cases.FLOAT32, moments.invstd_bound)
    unbiased = rows / max(rows - 1, 1)
    new = (moments.mean, moments.mean_bound), (moments.variance * unbiased, moments.variance_bound * unbiased)
    for moved, old, (value, bound) in zip(running, before, new, strict=True):
        kept, added = attributes.decay * cases.exact(old), (1 - attributes.decay) * value
        cases.assert_close(
            receive(moved), kept + added, cases.FLOAT32, bound + cases.accumulated(3, np.abs(kept) + np.abs(added))
        )

    known = cases.given_moments(receive(saved.mean), receive(saved.invstd))
    output, bound = cases.batch_norm_output(x, *parameters, known, None if with_factors else add)
    if with_factors:
        output, bound = (
            of_rows * output + cases.exact(add),
            2 * of_rows * bound + 8 * cases.EPS32 * np.abs(cases.exact(add)),
        )
    is_open = output > 0 if attributes.relu else np.full(output.shape, True)
    cases.assert_close(np.concatenate([y for _, y, _ in found]), np.where(is_open, output, 0), dtype, bound)
    doubtful = np.abs(output) <= bound  # there the ReLU is open or closed by a rounding
    dy = np.where(doubtful, 0, dy).astype(dtype)
    plus = np.where(doubtful, 0, cases.arrays(rng, dy.shape, dtype)).astype(dtype) if with_plus else None

    def backward(rank, ranks):
        part, slope, other, scaled = (send(split(array, sizes)[rank]) for array in (x, dy, plus, factors))
        gradients = primitives.batch_norm_backward(
            *(slope, part, *send(parameters), found[rank][0], attributes),
            add=with_add,
            plus=other,
            ranks=ranks,
            factors=scaled,
        )
        return [receive(gradient) for gradient in gradients]

    gradients = rank_threads.run(processes, backward)
    g = cases.exact(PRIMITIVES.add(dy, plus) if with_plus else dy) * is_open
    expected = cases.batch_norm_gradients(of_rows * g, x, parameters[0], known.mean, known.invstd)
    expected = {name: (right, (1 + with_factors) * bound) for name, (right, bound) in expected.items()}
    cases.assert_close(np.concatenate([dx for dx, *_ in gradients]), expected["dx"][0], dtype, expected["dx"][1])
    for _, dgamma, dbeta, _ in gradients:
        for mine, name in ((dgamma, "dgamma"), (dbeta, "dbeta")):
            total, bound = expected[name]
            cases.assert_close(mine, total / processes, cases.FLOAT32, bound / processes)
    if with_add:
        np.testing.assert_array_equal(cases.exact(np.concatenate([dadd for *_, dadd in gradients])), g)
