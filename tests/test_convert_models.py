"""Every model of the zoo, converted, beside the plain one.

The measure, everywhere: of each array the Euclidean norm of the difference over that of what is expected
(:func:`convert_pairs.distances`), and what is expected is plain Chainer in float64.
"""

import chainer
import numpy as np
import pytest
from chainer import optimizers
from convert_models import CASES
from convert_pairs import distances, new, reference, run, run_plain, statistics

import mixprec

EPS16 = 2.0**-11  # half a unit in the last place of a float16, relative
ALL = pytest.mark.parametrize("name", CASES)
SMALL = pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.large])
WAYS = {
    "first call": {},
    "example": {"example": True},
    "unfused": {"fuse": False},
    "nchw": {"layout": "nchw", "fuse": False},
}


def converted(name, example=False, **how):
    """The model of a case, converted; ``example``: looked at right away, not in its first call."""
    model = new(name)
    inputs = CASES[name].inputs(np.random.RandomState(0)) if example else None
    mixprec.convert(model, tuple(inputs) if isinstance(inputs, list) else inputs, **how)
    return model


def _split(errors):
    gradients = {key: error for key, error in errors.items() if key.startswith(("gradient", "input"))}
    return gradients, {key: error for key, error in errors.items() if key not in gradients}


def _check_float32(name, model, plain, run_converted=run):
    expected = reference(name)
    for number, (train, seed, exact) in enumerate(zip(expected.plan, expected.seeds, expected.expected, strict=True)):
        errors, results = _split(distances(run_converted(model, name, seed, train=train), exact))
        plain_errors, _ = _split(distances(run_plain(plain, name, seed, train=train), exact))
        where = f"call {number}, seed {seed}"
        for key, error in results.items():
            assert error <= 1e-5, (where, key)
        typical = np.median if CASES[name].large else np.max
        limit = max(1e-5, 4 * typical(list(plain_errors.values())))
        assert limit < 4e-4, "not a fair case: plain float32 is off itself"
        assert typical(list(errors.values())) <= limit, (where, max(errors, key=errors.get), max(errors.values()))
        assert max(errors.values()) < 5e-2, (where, max(errors, key=errors.get))
    for key, error in distances(statistics(model), expected.statistics).items():
        assert error <= 1e-5, key
    # And once more without a graph, plain and converted being in the same state.
    found, expected = (run(each, name, 1000, train=False, backprop=False) for each in (model, plain))
    for key, error in distances(found, expected).items():
        assert error <= 2e-5, key


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@SMALL
def test_float32_is_exact_to_1e_5(name, way):
    """Results are, and gradients where plain Chainer's own are: the bound is 1e-5 or four times plain's error."""
    # In NCHW dropout is Chainer's own.
    run_converted = run_plain if way.get("layout") == "nchw" else run
    _check_float32(name, converted(name, compute="float32", **way), new(name), run_converted)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.large])
def test_float32_of_large_models(name):
    """As above, but for gradients with the median over all arrays: some ReLU or maximum goes the other way, and then
    the arrays next to it are off by up to a percent, in plain float32 as well."""
    _check_float32(name, converted(name, example=True, compute="float32"), new(name))
