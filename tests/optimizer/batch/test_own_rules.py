"""What holds for the rules of this package alike: own hyperparameters, subclasses, kernels without the wrapper."""

import numpy as np
import pytest

import mixprec
from mixprec.optimizer.rules.schedule_free import ScheduleFreeSGDRule
from tests.cases import pairs
from tests.compat.test_cupy import nvrtc_errors
from tests.optimizer.batch import elementwise_on_host
from tests.optimizer.batch.trust_ratio import GRADIENTS, WEIGHTS, kernels, link_of
from tests.stand_ins import update_pair

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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [name for name, (kind, _) in update_pair.RULES.items() if kind.__name__ in RULES])
def test_kernels_without_the_wrapper_do_what_numpy_does(monkeypatch, name, dtype):
    elementwise_on_host.install(monkeypatch, dtype)
    params = []
    for update in ("update_core_cpu", "update_core_gpu"):
        link = link_of(WEIGHTS.astype(dtype))
        update_pair.new_optimizer(name).setup(link)
        link.w0.update_rule.update_core = getattr(link.w0.update_rule, update)
        for gradient in GRADIENTS:
            link.w0.grad = gradient.astype(dtype)
            link.w0.update_rule.update(link.w0)
        params.append(link.w0)
    expected, found = params
    for key, state in [("array", expected.array), *expected.update_rule.state.items()]:
        other = found.array if key == "array" else found.update_rule.state[key]
        np.testing.assert_allclose(
            other, state, rtol=16 * np.finfo(dtype).eps, atol=4 * np.finfo(dtype).eps, err_msg=key
        )


@pytest.mark.parametrize("name", RULES)
def test_subclasses_of_users_work_and_change_nothing_for_others(name):
    kind = getattr(mixprec, name)

    class Rule(kind.rule_class):
        """A rule of a user, which the batch does not know."""

    class Optimizer(kind):
        """An optimizer of a user."""

    arrays = []
    for optimizer, rule in ((kind(**RULES[name]), kind.rule_class), (Optimizer(**RULES[name]), Rule)):
        assert optimizer.hyperparam.get_dict() == kind(**RULES[name]).hyperparam.get_dict()
        link = link_of(WEIGHTS.astype(np.float16))
        wrapper = mixprec.MixedPrecisionOptimizer(optimizer, None).setup(link)
        link.w0.update_rule = rule(optimizer.hyperparam)
        link.w0.grad = GRADIENTS[0].astype(np.float16)
        wrapper.update()
        arrays.append(link.w0.array)
    np.testing.assert_allclose(*arrays, rtol=1e-3)
    assert vars(kind.rule_class(None, 0.5).hyperparam)["lr"] == 0.5
    with pytest.raises(ValueError, match="lr must be"):
        Optimizer(lr=float("nan"))
