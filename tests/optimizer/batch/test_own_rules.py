"""What holds for the rules of this package alike: within mixed precision, in files, as formulas and as kernels."""

import numpy as np
import pytest
from chainer import serializers

import mixprec
from mixprec.optimizer.rules import rule_formula_of
from mixprec.optimizer.rules.lamb import LAMB_ADAPTED, LAMB_UNADAPTED, LAMBRule
from mixprec.optimizer.rules.lars import LARS_ADAPTED, LARS_UNADAPTED, LARSRule
from mixprec.optimizer.rules.schedule_free import ScheduleFreeSGDRule
from tests.cases import pairs
from tests.compat.test_cupy import nvrtc_errors
from tests.optimizer.batch.trust_ratio import GRADIENTS, LAMB_SETTINGS, LARS_SETTINGS, WEIGHTS, kernels, mixed

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


RULES = {
    "LARS": {"momentum": 0.5, "adapt": False},
    "LAMB": {"beta1": 0.5, "adapt": False},
    "SGDW": {"momentum": 0.5, "nesterov": True},
    "ScheduleFreeSGD": {"momentum": 0.5, "weight_decay": 0.25},
}


@pytest.mark.parametrize("name", RULES)
def test_a_parameter_may_have_hyperparameters_of_its_own(name):
    own = RULES[name]
    optimizer = getattr(mixprec, name)(lr=3.0)
    defaults = optimizer.hyperparam.get_dict()
    rule = type(optimizer.create_update_rule())(**own)
    assert {key: getattr(rule.hyperparam, key) for key in own} == own
    rule = optimizer.create_update_rule()
    for key, value in own.items():
        setattr(rule.hyperparam, key, value)
    optimizer.lr = 4.0
    assert rule.hyperparam.get_dict() == {**defaults, **own, "lr": 4.0}
    assert optimizer.hyperparam.get_dict() == {**defaults, "lr": 4.0}


def test_schedule_free_sgd_needs_momentum():
    with pytest.raises(ValueError, match="momentum of ScheduleFreeSGD must be above 0; found 0"):
        ScheduleFreeSGDRule(momentum=0)


@pytest.mark.parametrize(("name", "dtype"), pairs(RULES, ["float", "double"]))
def test_kernels_compile(monkeypatch, name, dtype):
    for source in kernels(monkeypatch, getattr(mixprec, name)(**RULES[name]), dtype):
        assert nvrtc_errors(source.replace("float64", "double")) == ""
