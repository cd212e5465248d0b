"""Promise 10 without the batched update: who reads from a device, on a stand-in that counts looks at its values."""

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks

import mixprec
from tests.cases import first
from tests.stand_ins import device_stand_in
from tests.stand_ins.device_runs import assert_same_run, batch_of, new_optimizer, run_step
from tests.stand_ins.device_stand_in import DeviceArray

NEVER_READ = ["SGD", "MomentumSGD", "CorrectedMomentumSGD", "NesterovAG", "RMSprop", "RMSpropGraves", "AdaGrad"]
NEVER_READ += ["AdaDelta", "SMORMS3"]
READ_THE_OUTCOME = ["Adam", "MSVAG", "AdamW", "AMSGrad", "AdaBound", "AMSBound"]


@pytest.mark.parametrize(
    ("name", "by_hand"), first(4, [(name, place % 2 == 1) for place, name in enumerate(NEVER_READ)])
)
def test_a_step_reads_nothing_and_is_that_of_the_host(name, by_hand, reads):
    """Overflowing steps, the first among them, hooks of Chainer's, scale, counters and statistics."""
    # GradientClipping is missing: on NumPy it looks at the norm, where on CuPy it clips the rate on the device.
    hooks = [optimizer_hooks.WeightDecay(0.01), optimizer_hooks.Lasso(0.001), optimizer_hooks.GradientLARS()]
    hooks.append(optimizer_hooks.GradientHardClipping(-1, 1))
    optimizer = new_optimizer(name, device_stand_in.send, hooks, batched=False)
    for step in range(6):
        run_step(optimizer, step, device_stand_in.array, by_hand=by_hand)
    assert reads() == 0
    assert isinstance(optimizer._scaler.arrays[0], DeviceArray)
    assert isinstance(optimizer._counter.arrays[0], DeviceArray)
    assert_same_run(optimizer, name, hooks)


@pytest.mark.parametrize(("name", "hook"), first(3, [("SGD", "PullToZero"), *((n, None) for n in READ_THE_OUTCOME)]))
def test_rules_and_hooks_that_compute_on_the_host_read_one_flag_a_step(name, hook, reads):
    """Bias corrections and unknown hooks count steps on the host, where a skipped step must not count."""

    def pull_to_zero(optimizer):
        for param in optimizer.target.params(False):
            param.grad += param.array / (1 + optimizer.t)

    pull_to_zero.name = "PullToZero"
    hooks = [] if hook is None else [pull_to_zero]
    optimizer = new_optimizer(name, device_stand_in.send, hooks, batched=False)
    for step in range(6):
        run_step(optimizer, step, device_stand_in.array)
        assert reads() == step + 1
    assert_same_run(optimizer, name, hooks)


def test_the_set_of_updated_parameters_changes(reads):
    """One read then, so that every rule's ``t`` counts the steps it took part in."""
    optimizer = new_optimizer("MomentumSGD", device_stand_in.send, batched=False)
    out = optimizer.target.out
    for step in range(2):
        run_step(optimizer, step, device_stand_in.array)
    out.disable_update()
    for step in range(2, 4):
        run_step(optimizer, step, device_stand_in.array)
    assert reads() == 1
    out.enable_update()
    for step in range(4, 6):
        run_step(optimizer, step, device_stand_in.array)
    assert reads() == 2
    assert optimizer.t == 4
    assert out.W.update_rule.t == 3
    assert optimizer.target.hidden.W.update_rule.t == 4


def test_a_hyperparameter_of_one_rule_changes_from_step_to_step(reads):
    """The same rules count the same steps: their ``t`` waits until it is asked for."""
    optimizer = new_optimizer("MomentumSGD", device_stand_in.send, batched=False)
    for step in range(4):
        optimizer.target.out.W.update_rule.hyperparam.lr = 0.1 / (step + 1)
        run_step(optimizer, step, device_stand_in.array)
    assert reads() == 0
    assert optimizer.t == optimizer.target.out.W.update_rule.t == 2
    assert reads() == 1


@pytest.mark.parametrize("later", ["a hook", "the host"])
def test_steps_that_count_at_once_after_steps_that_did_not(later, reads):
    """Each skipped step is counted once, though a hook or a move to the host comes in the middle."""
    optimizer = new_optimizer("MomentumSGD", device_stand_in.send, batched=False)
    for step in range(4):
        run_step(optimizer, step, device_stand_in.array)
    place = device_stand_in.array
    if later == "a hook":
        optimizer.add_hook(lambda optimizer: None, name="unknown")
    else:
        place = np.array
        for param in optimizer.target.params():
            master = optimizer._masters.of(param)
            param.array, master.array = param.array.view(np.ndarray), master.array.view(np.ndarray)
            master.cleargrad()
    for step in (3, 4, 0, 5):  # two of them poisoned
        run_step(optimizer, step, place)
    assert (optimizer.t, optimizer.skipped) == (4, 4)
    assert {param.update_rule.t for param in optimizer.target.params()} == {4}


def test_patience_is_looked_at_when_it_may_have_run_out_and_never_late(reads):
    """With patience 4: after 4 steps, and then as early as the overflows in a row by then allow."""
    optimizer = new_optimizer("SGD", device_stand_in.send, batched=False, patience=4)
    clean, poisoned = 1, 3
    looked = []
    for batch in (clean, clean, poisoned, poisoned, poisoned):
        run_step(optimizer, batch, device_stand_in.array)
        looked.append(reads())
    assert looked == [0, 0, 0, 1, 1]
    with pytest.raises(mixprec.LossScaleExhausted, match="4 steps in a row"):
        run_step(optimizer, poisoned, device_stand_in.array)


def test_a_parameter_without_gradient_and_one_never_reached(reads):
    """They need no look either."""
    optimizer = new_optimizer("MomentumSGD", device_stand_in.send, batched=False)
    optimizer.target.add_link("spare", L.Linear(3, 3))
    device_stand_in.send(optimizer.target.spare)
    optimizer.target.add_link("lazy", L.Linear(None, 3))
    for param in optimizer.target.params():
        if param.update_rule is None:
            param.update_rule = optimizer.create_update_rule()
    for step in range(4):
        run_step(optimizer, step, device_stand_in.array)
    assert reads() == 0


def test_fine_tuned_statistics_count_on_the_host(reads):
    """Batch normalization's ``N`` is a number on the host: one read for the link, and the right number after it."""
    optimizer = new_optimizer("SGD", device_stand_in.send, batched=False)
    model = optimizer.target
    for step in range(5):
        x = batch_of(step, device_stand_in.array)
        optimizer.update(lambda x: F.sum(model.bn(model.hidden(x), finetune=True)), x)
    assert model.bn.N == 3
    assert reads() == 5
