"""What the host looks at around the launch of a graph: whatever would make it the wrong one is seen, and only that."""

import chainer
import numpy as np
import pytest
from chainer import optimizer_hooks

from tests.graph_capture.captured_runs import FIRST_REPLAY, REQUIRED, Run, batch
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)

pytestmark = pytest.mark.usefixtures("host")


@pytest.fixture
def captured():
    """A run whose next step is the launch of a graph."""
    return Run(REQUIRED).run(range(FIRST_REPLAY))


def _session(run):
    (specialization,) = run.step._specializations.values()
    return specialization._session


class _Hook:
    name, timing, call_for_each_param = "own", "pre", True

    def __call__(self, rule, param):
        pass


class _LinkHook(chainer.LinkHook):
    name = "own"


def _array(run):
    param = run.model.predictor.fc.W
    before, param.array = param.array, param.array.copy()
    return lambda: setattr(param, "array", before)


def _of(run, path, name, value):
    owner = run
    for each in path.split("."):
        owner = getattr(owner, each)
    before = getattr(owner, name)
    setattr(owner, name, value(before) if callable(value) else value)
    return lambda: setattr(owner, name, before)


def _rule(run, name, value):
    return _of(run, "model.predictor.fc.W.update_rule", name, value)


def _momentum(run):
    hyperparam = run.model.predictor.fc.W.update_rule.hyperparam
    hyperparam.momentum = 0.5
    return lambda: delattr(hyperparam, "momentum")


def _own_momentum(run):
    rule = run.model.predictor.fc.W.update_rule
    rule.momentum = 0.5
    return lambda: delattr(rule, "momentum")


def _state(run):
    state = run.model.predictor.fc.W.update_rule.state
    before, state["v"] = state["v"], state["v"].copy()
    return lambda: state.update(v=before)


def _hook_of_rule(run):
    rule = run.model.predictor.fc.W.update_rule
    rule.add_hook(_Hook())
    return lambda: rule.remove_hook("own")


def _hook_of_optimizer(run):
    run.optimizer.add_hook(optimizer_hooks.GradientClipping(1.0))
    return lambda: run.optimizer.remove_hook("GradientClipping")


def _hook_of_link(run):
    run.model.predictor.fc.add_hook(_LinkHook())
    return lambda: run.model.predictor.fc.delete_hook("own")


def _parameter(run):
    link = run.model.predictor.fc
    with link.init_scope():
        link.more = chainer.Parameter(np.zeros(2, np.float32))


CHANGES = {
    "an array": _array,
    "statistics": lambda run: _of(run, "model.predictor.bn1", "avg_var", np.copy),
    "a number among the statistics": lambda run: _of(run, "model.predictor.bn1", "N", 300),
    "a state": _state,
    "no state": lambda run: _rule(run, "_state", None),
    "a rule": lambda run: _of(
        run, "model.predictor.fc.W", "update_rule", chainer.optimizers.SGD().create_update_rule()
    ),
    "a rule that is off": lambda run: _rule(run, "enabled", False),
    "other hyperparameters": lambda run: _rule(run, "hyperparam", lambda old: type(old)(old.parent)),
    "a hyperparameter of one rule": _momentum,
    "an attribute of a rule": _own_momentum,
    "a hook of a rule": _hook_of_rule,
    "a hook of the optimizer": _hook_of_optimizer,
    "a hook of a link": _hook_of_link,
    "the loss scale": lambda run: _of(run, "optimizer._scaler", "growth", 4.0),
}


def test_changes_are_seen_and_going_back_is_none(captured):
    """Each of them in its turn, in one run: to come to a graph takes longer than to look."""
    session = _session(captured)
    for name, change in CHANGES.items():
        assert session.holds(), f"before {name}"
        undo = change(captured)
        assert not session.holds(), name
        undo()
    captured.set_rate(3)  # what rules share
    captured.model.cleargrads()
    captured.model.predictor.bn1.local_link_hooks  # noqa: B018  (which makes a dict)
    captured.model.predictor.fc.note = "of a user"
    captured.model.predictor.fc.W.update_rule.note = "of a user"
    assert session.holds()
    _parameter(captured)
    assert not session.holds()


def test_a_launch_leaves_what_an_eager_step_leaves(captured):
    """Gradients, notes on them, and variables of the model, whatever has become of them since the last one."""
    captured.once(*batch(FIRST_REPLAY))
    model, param = captured.model, captured.model.predictor.fc.W
    params = list(model.params())
    gradients, notes, loss = [each.grad for each in params], [each._loss_scale for each in params], model.loss

    def delete():
        del model.loss

    for change in (
        model.cleargrads,
        lambda: setattr(param, "_loss_scale", None),
        lambda: setattr(param, "grad", param.grad.copy()),
        lambda: setattr(param, "grad_var", chainer.Variable(param.grad.copy())),
        lambda: setattr(param.grad_var, "array", param.grad.copy()),
        lambda: setattr(model, "loss", None),
        delete,
    ):
        change()
        captured.once(*batch(FIRST_REPLAY))
        assert all(each.grad is gradient for each, gradient in zip(params, gradients, strict=True))
        assert all(each._loss_scale is note for each, note in zip(params, notes, strict=True))
        assert model.loss is loss
    assert captured.step.replays == 8
