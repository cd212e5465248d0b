"""What holds for LARS and LAMB alike: within mixed precision, in files, and as formulas."""

import numpy as np
import pytest
from chainer import serializers

import mixprec
from mixprec.optimizer.rules import rule_formula_of
from mixprec.optimizer.rules.lamb import LAMB_ADAPTED, LAMB_UNADAPTED, LAMBRule
from mixprec.optimizer.rules.lars import LARS_ADAPTED, LARS_UNADAPTED, LARSRule
from tests.optimizer.batch.trust_ratio import GRADIENTS, LAMB_SETTINGS, LARS_SETTINGS, WEIGHTS, mixed, trained

BOTH = pytest.mark.parametrize(
    ("name", "settings", "state"), [("LARS", LARS_SETTINGS, "v"), ("LAMB", LAMB_SETTINGS, "m")], ids=["LARS", "LAMB"]
)


@BOTH
def test_a_first_step_that_is_skipped_leaves_nothing(name, settings, state):
    """Not even in the correction of the bias."""
    make = getattr(mixprec, name)
    optimizer, loss = mixed(make(**settings), WEIGHTS)
    other, other_loss = mixed(make(**settings), WEIGHTS)
    gradient = GRADIENTS[0].astype(np.float16)
    optimizer.update(loss, np.full_like(gradient, np.inf))
    assert (optimizer.skipped, optimizer.t) == (1, 0)
    for one, function in ((optimizer, loss), (other, other_loss)):
        one.update(function, gradient)
    np.testing.assert_array_equal(optimizer.target.w0.array, other.target.w0.array)


@BOTH
def test_snapshots_have_the_state_under_chainers_names(tmp_path, name, settings, state):
    make = getattr(mixprec, name)
    optimizer, loss = mixed(make(**settings), WEIGHTS)
    gradient = GRADIENTS[0].astype(np.float16)
    optimizer.update(loss, gradient)
    serializers.save_npz(tmp_path / "optimizer.npz", optimizer)
    serializers.save_npz(tmp_path / "model.npz", optimizer.target)
    with np.load(tmp_path / "optimizer.npz") as saved:
        assert {"t", "epoch", "w0/t", f"w0/{state}", "w0/v"} <= set(saved)
        np.testing.assert_array_equal(saved[f"w0/{state}"], optimizer.target.w0.update_rule.state[state])
    restored, restored_loss = mixed(make(**settings), 0 * WEIGHTS)
    serializers.load_npz(tmp_path / "model.npz", restored.target)
    serializers.load_npz(tmp_path / "optimizer.npz", restored)
    for one, function in ((optimizer, loss), (restored, restored_loss)):
        one.update(function, gradient)
    np.testing.assert_array_equal(
        restored.master(restored.target.w0).array, optimizer.master(optimizer.target.w0).array
    )


@pytest.mark.parametrize(
    ("rule", "adapted", "unadapted"),
    [(LARSRule, LARS_ADAPTED, LARS_UNADAPTED), (LAMBRule, LAMB_ADAPTED, LAMB_UNADAPTED)],
    ids=["LARS", "LAMB"],
)
def test_expressions_are_those_of_the_rule(rule, adapted, unadapted):
    rule = rule()
    assert rule_formula_of(rule) is adapted
    rule.hyperparam.adapt = False
    assert rule_formula_of(rule) is unadapted


@pytest.mark.parametrize(
    ("name", "rule", "settings"),
    [("LARS", LARSRule, LARS_SETTINGS), ("LAMB", LAMBRule, LAMB_SETTINGS)],
    ids=["LARS", "LAMB"],
)
def test_without_adapting_the_expression_on_numpy_has_the_bits_of_the_rule(name, rule, settings):
    array = WEIGHTS.astype(np.float32)
    expected = trained(getattr(mixprec, name)(**settings, adapt=False), array, GRADIENTS)
    rule, p = rule(**settings, adapt=False), array.ravel()
    formula = rule_formula_of(rule)
    states = tuple(np.zeros_like(p) for _ in formula.states)
    for t, gradient in enumerate(GRADIENTS, 1):
        g = gradient.astype(np.float32).ravel()
        formula.host(p, g, states, formula.numbers_of(rule, t), np.empty_like(p), np.empty_like(p))
    np.testing.assert_array_equal(p, expected.array.ravel())
    for key, state in zip(formula.states, states, strict=True):
        np.testing.assert_array_equal(state, expected.update_rule.state[key].ravel())
