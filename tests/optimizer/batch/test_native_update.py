"""The batched update of the native library: each formula bit for bit as on NumPy, and arguments of all kinds."""

import gc
import itertools
import weakref

import numpy as np
import pytest

from mixprec.native.library import library
from mixprec.optimizer.batch.native_names import HOOKS, RULES
from mixprec.optimizer.batch.native_group import NativeGroup
from mixprec.optimizer.rules import RULE_FORMULAS
from tests.optimizer import native_rules

F16, F32 = np.float16, np.float32
needs_library = pytest.mark.skipif(library() is None, reason="without the native library")
HALF = 3001  # elements: not a multiple of a vector or a block
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-40, 1e-38, 6e4, 1e20, -3e38, 1e-20, 0.5, -2.0], F32)
NUMBERS = {
    "lr": 0.1,
    "momentum": 0.9,
    "momentum_squared": 0.81,
    "lr_now": 0.19,
    "keep": 0.999,
    "minus_eta": -1.0,
    "alpha_t": 0.003,
    "lower": 0.001,
    "upper": 0.2,
    "rate": 0.01,
    "lower_bound": -0.5,
    "upper_bound": 0.25,
    "fix1": 0.19,
    "fix2": 0.002,
}


def numbers_of(formula):
    found = (
        NUMBERS.get(name, 1e-3 if "eps" in name or name.startswith("one_minus") else 0.75) for name in formula.numbers
    )
    return tuple(found)


def arrays(seed, count):
    """Arrays with all combinations of special values at their beginning, and random numbers of all magnitudes."""
    pairs = np.array(list(itertools.product(SPECIAL, SPECIAL, SPECIAL)), F32)
    random = np.random.RandomState(seed)
    for column in range(count):
        x = random.normal(0, 1, HALF) * 10.0 ** random.randint(-12, 6, HALF)
        x = x.astype(F32)
        x[: len(pairs)] = pairs[:, column % 3] if column < 3 else random.permutation(pairs[:, 0])
        yield x


def table_of(rule, hooks, p, states, dtype=F32):
    rounded = None if dtype is F32 else p.astype(dtype)
    return library().update_table(rule, hooks, [(rounded, p, *states)]), rounded


def same(a, b):
    """Whether two float32 arrays are the same bit for bit, but for which NaN it is."""
    return bool(((a.view(np.int32) == b.view(np.int32)) | (np.isnan(a) & np.isnan(b))).all())


@needs_library
@pytest.mark.parametrize("name", RULES)
def test_a_rule_gives_the_bits_of_its_formula_on_numpy(name):
    formula = RULES[name]
    p, g, *states = arrays(1, 2 + len(formula.states))
    for i, state in enumerate(formula.states):  # sums of squares are not negative
        if state in ("h", "msg", "msdx", "ms", "n", "v", "vhat", "g2", "mem"):
            states[i] = np.abs(states[i])
    expected, expected_states = p.copy(), [state.copy() for state in states]
    table, _ = table_of(name, (), p, states)
    scratch = np.empty_like(p), np.empty_like(p)
    for step in range(3):
        library().update_load(table, [g], 1.0)
        library().update_run(table, (), numbers_of(formula))
        with np.errstate(all="ignore"):
            formula.host(expected, g.copy(), tuple(expected_states), numbers_of(formula), *scratch)
        assert same(p, expected), step
        assert all(map(same, states, expected_states)), step


@needs_library
@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_gives_the_bits_of_its_formula_on_numpy(name):
    formula = HOOKS[name]
    for numbers in (numbers_of(formula), (0.0,) * len(formula.numbers), (-0.0,) * len(formula.numbers)):
        p, g, v = arrays(2, 3)
        v[...] = -0.0
        table, _ = table_of("MomentumSgd", (name,), p, (v,))
        expected = g.copy()
        with np.errstate(all="ignore"):
            formula.host(p, expected, numbers, np.empty_like(p))
        library().update_load(table, [g], 1.0)
        library().update_run(table, (numbers,), (-1.0, 1.0))  # v = v - -g
        assert same(v, expected), numbers
