"""Random networks, converted, beside plain Chainer: results, gradients and statistics of five calls in float32."""

import numpy as np
from convert_cases import Case, images, moment
from convert_grammar import IMAGES, Net, networks
from convert_pairs import NoClearInputs, converted, distances, new, reference, run, run_plain, statistics
from hypothesis import event, given, settings
from hypothesis import strategies as st

KINDS = ("output", "loss", "gradient", "input")


@settings(max_examples=60)
@given(networks(), st.booleans())
def test_a_random_network_is_exact_in_float32(network, example):
    """To 1e-5 of the largest array of its kind, or four times the error of plain float32."""
    case = Case(lambda: Net(*network), images(*IMAGES), moment)
    try:
        expected = reference(case)
    except NoClearInputs:
        event("no clear inputs")
        return
    plain, model = new(case), converted(case, example, compute="float32")
    names = [path for path, _ in plain.namedparams()]
    for train, seed, exact in zip(expected.plan, expected.seeds, expected.expected, strict=True):
        found = run(model, case, seed, train=train)
        of_plain = run_plain(plain, case, seed, train=train)
        assert found.keys() == exact.keys()
        for kind in KINDS:
            assert _error(kind, found, exact) <= max(1e-5, 4 * _error(kind, of_plain, exact)), (kind, seed)
    for key, error in distances(statistics(model), expected.statistics).items():
        assert error <= 1e-5, key
    assert [path for path, _ in model.namedparams()] == names


def _error(kind, found, exact):
    # Of the largest, not of each: in networks like these there are gradients that cancel but for rounding.
    names = [name for name in exact if name.startswith(kind)]
    scale = max((np.linalg.norm(exact[name]) for name in names), default=0.0)
    return max((np.linalg.norm(found[name] - exact[name]) for name in names), default=0.0) / (scale or 1.0)
