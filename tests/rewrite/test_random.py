"""Random networks, converted, beside plain Chainer: results, gradients and statistics of five calls in float32."""

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.cases import tries
from tests.zoo.cases import Case, images, moment
from tests.zoo.grammar import IMAGES, Net, networks
from tests.zoo.pairs import NoClearInputs, converted, reference, run, statistics

BOUND = 1e-4  # roundings of some 1e-7 each, which a network that has clear inputs makes larger at most a hundred times


@settings(max_examples=tries(60))
@given(networks(), st.booleans())
def test_a_random_network_is_exact_in_float32(network, example):
    case = Case(lambda: Net(*network), images(*IMAGES), moment)
    try:
        expected = reference(case)
    except NoClearInputs:
        event("no clear inputs")
        return
    model = converted(case, example, compute="float32")
    names = [path for path, _ in model.namedparams()]
    for train, seed, exact in zip(expected.plan, expected.seeds, expected.expected, strict=True):
        found = run(model, case, seed, train=train)
        assert found.keys() == exact.keys()
        for kind in ("output", "loss", "gradient", "input"):
            assert _error(kind, found, exact) <= BOUND, (kind, seed)
    assert _error("/", statistics(model), expected.statistics) <= BOUND
    assert [path for path, _ in model.namedparams()] == names


def _error(kind, found, exact):
    # Of the largest, not of each: in networks like these there are gradients that cancel but for rounding.
    names = [name for name in exact if name.startswith(kind)]
    scale = max((np.linalg.norm(exact[name]) for name in names), default=0.0)
    return max((np.linalg.norm(found[name] - exact[name]) for name in names), default=0.0) / (scale or 1.0)
