"""ScheduleFreeSGD: the published formulas, the average it is evaluated with, skipped steps, snapshots."""

import chainer
import numpy as np
import pytest
from chainer import serializers
from hypothesis import given
from hypothesis import strategies as st

import mixprec
from mixprec.optimizer.rules.formulas import CARRIED
from tests.optimizer.batch.trust_ratio import GRADIENTS, WEIGHTS, link_of, mixed, trained
from tests.stand_ins import device_stand_in
from tests.stand_ins.device_runs import new_optimizer, run_step, state_of

SETTINGS = {"lr": 0.125, "momentum": 0.75, "weight_decay": 0.25}


def reference(y, gradients, rates, *, momentum, weight_decay, **_):
    """Defazio et al. 2024, equations (4) to (6), with x kept; returns y, x and z in float64."""
    y = np.array(y, np.float64)
    x, z, weights, largest = y, y, 0.0, 0.0
    for gradient, lr in zip(gradients, rates, strict=True):
        g = np.asarray(gradient, np.float64) + weight_decay * y
        z = z - lr * g
        largest = max(largest, lr)
        weights += largest**2
        c = largest**2 / weights if weights else 0.0
        x = (1 - c) * x + c * z
        y = (1 - momentum) * z + momentum * x
    return y, x, z


def steps(optimizer, gradients, rates):
    link = optimizer.target
    for gradient, lr in zip(gradients, rates, strict=True):
        optimizer.lr = lr
        link.w0.grad = np.asarray(gradient).astype(link.w0.dtype)
        optimizer.update()


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.03125, 0.0625, 0.125, 0.25]), st.booleans()), min_size=1, max_size=12),
    st.sampled_from([0.25, 0.9, 0.98]),
    st.sampled_from([0.0, 0.25]),
)
def test_any_rates_and_skipped_steps_follow_the_formula(rates, momentum, weight_decay):
    """A step that overflows counts nowhere, whatever its learning rate was; y and x, in FP64."""
    settings = {"momentum": momentum, "weight_decay": weight_decay}
    inner = mixprec.ScheduleFreeSGD(lr=1.0, **settings)
    optimizer = mixprec.MixedPrecisionOptimizer(inner, None).setup(link_of(WEIGHTS))
    random = np.random.RandomState(0)
    gradients = [random.uniform(-2, 2, WEIGHTS.shape) for _ in rates]
    spoilt = [np.where(skip, np.inf, g) for g, (_, skip) in zip(gradients, rates, strict=True)]
    steps(optimizer, spoilt, [lr for lr, _ in rates])
    applied = [(g, lr) for g, (lr, skip) in zip(gradients, rates, strict=True) if not skip]
    y, x, z = reference(WEIGHTS, [g for g, _ in applied], [lr for _, lr in applied], **settings)
    param = optimizer.target.w0
    assert param.dtype == np.float64
    np.testing.assert_allclose(param.array, y, rtol=0, atol=1e-13)
    if any(lr for _, lr in applied):
        np.testing.assert_allclose(param.update_rule.state["z"], z, rtol=0, atol=1e-13)
    with optimizer.evaluated():
        np.testing.assert_allclose(param.array, x, rtol=0, atol=1e-12 / momentum)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_without_the_wrapper_chainer_takes_the_same_steps(dtype):
    gradients = [gradient.astype(dtype) for gradient in GRADIENTS]
    found = trained(mixprec.ScheduleFreeSGD(**SETTINGS), WEIGHTS.astype(dtype), gradients)
    y, _, z = reference(WEIGHTS.astype(dtype), gradients, [0.125] * 3, **SETTINGS)
    assert found.dtype == found.update_rule.state["z"].dtype == dtype
    np.testing.assert_allclose(found.array, y, rtol=0, atol=16 * np.finfo(dtype).eps)
    np.testing.assert_allclose(found.update_rule.state["z"], z, rtol=0, atol=16 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(found.update_rule.state[CARRIED], [3 * 0.125**2, 0.125])


# The weights of an evaluation


def _bits(optimizer):
    found = {name: param.array.tobytes() for name, param in optimizer.target.namedparams()}
    found |= {f"{name}, master": optimizer.master(p).array.tobytes() for name, p in optimizer.target.namedparams()}
    for name, param in optimizer.target.namedparams():
        found |= {f"{name}, {key}": np.asarray(v).tobytes() for key, v in (param.update_rule.state or {}).items()}
    return found


def test_an_evaluation_leaves_no_trace():
    """Also of an error in it, and of what was written into a parameter and has not reached its master."""
    optimizer, loss = mixed(mixprec.ScheduleFreeSGD(**SETTINGS), WEIGHTS)
    for gradient in GRADIENTS:
        optimizer.update(loss, gradient.astype(np.float16))
    param, held = optimizer.target.w0, optimizer.target.w0.array
    before = _bits(optimizer)

    def evaluate():
        with optimizer.evaluated():
            x = param.array.copy()
            master = optimizer.master(param).array.copy()
            assert x.tobytes() == master.astype(np.float16).tobytes()
            assert (x != np.frombuffer(before["/w0"], np.float16).reshape(x.shape)).any()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        evaluate()
    assert _bits(optimizer) == before
    assert param.array is held
    param.array[0, 0] = 3
    with optimizer.evaluated():
        pass
    assert param.array[0, 0] == 3
    assert optimizer.master(param).array[0, 0] == 3


@pytest.mark.parametrize("inner", [mixprec.ScheduleFreeSGD(), chainer.optimizers.MomentumSGD()])
def test_before_a_step_and_with_other_rules_there_is_nothing_to_change(inner):
    optimizer, _ = mixed(inner, WEIGHTS)
    state_of(optimizer)  # makes states
    before = _bits(optimizer)
    with optimizer.evaluated():
        assert _bits(optimizer) == before


def test_what_is_written_before_the_first_step_is_where_z_begins():
    optimizer, loss = mixed(mixprec.ScheduleFreeSGD(0.25, momentum=0.5), [[1.0]])
    state_of(optimizer)
    optimizer.target.w0.array[...] = 4
    optimizer.update(loss, np.ones((1, 1), np.float16))
    assert optimizer.target.w0.update_rule.state["z"].item() == 3.75


# On a device, and in files


def test_on_a_device_nothing_is_read_and_x_is_that_of_the_host(launcher):
    """The share of a step depends on which were skipped, which only the device knows."""
    there, here = (new_optimizer("ScheduleFreeSGD", place) for place in (device_stand_in.send, lambda link: link))
    reads = device_stand_in.DeviceArray.reads
    for step in range(6):
        for optimizer, place in ((there, device_stand_in.array), (here, np.array)):
            optimizer.lr = 0.01 * (step + 1)
            run_step(optimizer, step, place)
    found = {}
    with there.evaluated():
        for name, param in there.target.namedparams():
            found[name] = param.array.copy()
    assert device_stand_in.DeviceArray.reads == reads
    with here.evaluated():
        for name, param in here.target.namedparams():
            np.testing.assert_array_equal(np.asarray(found[name]), param.array, err_msg=name)
    assert {param.update_rule.state[CARRIED][1].item() for param in there.target.params()} == {0.06}
    expected = sum((0.01 * (step + 1)) ** 2 for step in (1, 2, 4, 5))
    for param in there.target.params():
        assert param.update_rule.state[CARRIED][0].item() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("batched", [True, False])
def test_a_file_with_other_numbers_for_each_parameter_may_be_loaded_after_a_step(tmp_path, batched):
    """That of a run in which one part was frozen, into an optimizer whose parameters were all one group."""
    optimizers = [new_optimizer("ScheduleFreeSGD", lambda link: link, batched=batched) for _ in range(3)]
    whole, late, fresh = optimizers
    whole.target.out.disable_update()
    for step in range(3):
        run_step(whole, step, np.array)
    serializers.save_npz(tmp_path / "o.npz", whole)
    serializers.save_npz(tmp_path / "m.npz", whole.target)
    run_step(late, 5, np.array)
    for optimizer in (late, fresh):
        serializers.load_npz(tmp_path / "m.npz", optimizer.target)
        serializers.load_npz(tmp_path / "o.npz", optimizer)
        for step in range(3, 6):
            run_step(optimizer, step, np.array)
    found, expected = state_of(late), state_of(fresh)
    for name, value in expected.items():
        if "mixprec/" not in name:  # counters of steps
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_an_evaluation_inside_of_another_changes_nothing_and_steps_and_files_are_refused(tmp_path):
    optimizer, loss = mixed(mixprec.ScheduleFreeSGD(**SETTINGS), WEIGHTS)
    for gradient in GRADIENTS:
        optimizer.update(loss, gradient.astype(np.float16))
    before = _bits(optimizer)
    with optimizer.evaluated():
        inside = _bits(optimizer)
        with optimizer.evaluated():
            assert _bits(optimizer) == inside
        with pytest.raises(RuntimeError, match="inside of evaluated"):
            optimizer.update(loss, GRADIENTS[0].astype(np.float16))
        with pytest.raises(RuntimeError, match="inside of evaluated"):
            serializers.save_npz(tmp_path / "o.npz", optimizer)
        serializers.save_npz(tmp_path / "m.npz", optimizer.target)
        assert _bits(optimizer) == inside
    assert _bits(optimizer) == before
    optimizer.update(loss, GRADIENTS[0].astype(np.float16))


def test_a_part_that_is_frozen_later_stays_as_it_is_in_an_evaluation():
    optimizer, loss = mixed(mixprec.ScheduleFreeSGD(**SETTINGS), WEIGHTS)
    for gradient in GRADIENTS:
        optimizer.update(loss, gradient.astype(np.float16))
    before = _bits(optimizer)
    optimizer.target.disable_update()
    with optimizer.evaluated():
        assert _bits(optimizer) == before
