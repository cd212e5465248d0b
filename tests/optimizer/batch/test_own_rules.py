"""What holds for the rules of this package alike: a parameter may have hyperparameters of its own; kernels compile."""

import pytest

import mixprec
from mixprec.optimizer.rules.schedule_free import ScheduleFreeSGDRule
from tests.cases import pairs
from tests.compat.test_cupy import nvrtc_errors
from tests.optimizer.batch.trust_ratio import kernels

RULES = {
    "LARS": {"momentum": 0.5, "adapt": False},
    "LAMB": {"beta1": 0.5, "adapt": False},
    "SGDW": {"momentum": 0.5, "nesterov": True},
    "Lion": {"beta1": 0.5},
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


@pytest.mark.parametrize(("name", "dtype"), pairs(list(RULES), ["float", "double"]))
def test_kernels_compile(monkeypatch, name, dtype):
    for source in kernels(monkeypatch, getattr(mixprec, name)(**RULES[name]), dtype):
        assert nvrtc_errors(source.replace("float64", "double")) == ""
