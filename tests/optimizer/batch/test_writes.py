"""The batched update and what others do to its arrays: writes into parameters, odd gradients, replaced arrays."""

import gc
import weakref

import chainer
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers, serializers

import mixprec
from mixprec.base.dtypes import BFLOAT16
from tests.cases import pairs
from tests.stand_ins.update_pair import add, assert_same_bits, link_of

HALF = [np.dtype(np.float16), BFLOAT16]
HALVES = pytest.mark.parametrize("half", HALF, ids=str)
DTYPES = [*HALF, np.dtype(np.float32)]
SHAPES = [(3, 5), (37, 60)]  # the native library goes over blocks of 1,024 elements
BOTH = [True, False]
BATCHED = pytest.mark.parametrize("batched", BOTH)


def _optimizer(arrays, inner=None, batched=True, hooks=()):
    optimizer = mixprec.MixedPrecisionOptimizer(inner or optimizers.MomentumSGD(lr=0.1), 1.0, batched=batched)
    optimizer.setup(link_of(arrays))
    for hook in hooks:
        optimizer.add_hook(hook)
    return optimizer


def _values(shape, seed=0, dtype=np.float16):
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype(dtype)


def _step(optimizer, seed=1, bad=None):
    for name, param in optimizer.target.namedparams(include_uninit=False):
        param.cleargrad()
        param.grad = _values(param.shape, seed, param.dtype)
        param._loss_scale = 1.0  # also of one that nobody has seen yet
        if name == bad:
            param.grad[...] = np.inf
    optimizer.update()
    assert optimizer.last_step_skipped == (bad is not None)


def _freeze(optimizer):
    """From now on a step moves nothing, so that a master is what was written."""
    optimizer.hyperparam.lr = optimizer.hyperparam.momentum = 0.0


def _master_array(param):
    """The array of its master; ``optimizer.master`` would look for writes first."""
    return param._mixprec_master_array[1]


# --- writes into a parameter


def _elements(optimizer, values, where, tmp_path):
    optimizer.target.w.array[where] = values[where]


def _view(optimizer, values, where, tmp_path):
    np.copyto(optimizer.target.w.array.reshape(-1), np.where(where, values, optimizer.target.w.array).reshape(-1))


def _copydata(optimizer, values, where, tmp_path):
    optimizer.target.w.copydata(chainer.Parameter(np.where(where, values, optimizer.target.w.array)))


def _another_array(optimizer, values, where, tmp_path):
    optimizer.target.w.array = np.where(where, values, optimizer.target.w.array)


def _npz(optimizer, values, where, tmp_path):
    saved = serializers.DictionarySerializer()
    optimizer.target.serialize(saved)
    saved.target["w"] = np.where(where, values, saved.target["w"])
    np.savez(tmp_path / "file.npz", **saved.target)
    serializers.load_npz(tmp_path / "file.npz", optimizer.target)


WRITES = pairs([_elements, _view, _copydata, _another_array, _npz], SHAPES, ["all", "first", "last"], BOTH, HALF, BOTH)


@pytest.mark.parametrize(("write", "shape", "elements", "skip", "half", "batched"), WRITES)
def test_a_write_reaches_the_master(write, shape, elements, skip, half, batched, tmp_path):
    """All elements, or one and no other, which keep what they have beyond 16 bits; also if the next step is skipped."""
    arrays = {"w": _values(shape, dtype=half), "x": _values((3,)), "y": _values((1200,), dtype=half)}
    optimizer = _optimizer(arrays, batched=batched)
    for seed in (1, 2):
        _step(optimizer, seed)
    _freeze(optimizer)
    array, master = optimizer.target.w.array, optimizer.master(optimizer.target.w).array.copy()
    array_before = array.copy()
    assert not np.array_equal(master, array)
    where = np.zeros(shape, bool)
    where.reshape(-1)[{"all": slice(None), "first": 0, "last": -1}[elements]] = True
    written = _values(shape, 9, half)
    write(optimizer, written, where, tmp_path)
    _step(optimizer, 3, bad="/y" if skip else None)
    if write is not _npz:  # whoever writes the value that is there does not write
        where &= written != array_before
    expected = np.where(where, written, master).astype(np.float32)
    assert_same_bits(_master_array(optimizer.target.w), expected, "the master, before anybody asks for it")
    assert_same_bits(optimizer.master(optimizer.target.w).array, expected, "the master")
    assert_same_bits(optimizer.target.w.array, expected.astype(half), "the parameter")
    _step(optimizer, 4)
    assert_same_bits(optimizer.master(optimizer.target.w).array, expected, "the master, a step later")


@pytest.mark.parametrize(("value", "half", "batched"), pairs([-0.0, 65504, np.inf, np.nan, 2.0**-24], HALF, BOTH))
def test_any_value_may_be_written(value, half, batched):
    """Zeros of both signs, and what is not finite; a NaN stays one."""
    arrays = {"w": _values((9,), dtype=half), "x": _values((1100,), dtype=half), "y": _values((3,))}
    optimizer = _optimizer(arrays, batched=batched)
    _step(optimizer)
    written = optimizer.target.w, optimizer.target.x
    for param in written:
        param.array[5] = value
    _step(optimizer, bad="/y")
    for param in written:
        master = optimizer.master(param).array
        expected = np.array(value, half).astype(np.float32)
        np.testing.assert_array_equal(master[5], expected)
        assert np.signbit(master[5]) == np.signbit(expected)
        assert np.count_nonzero(master != param.array) > 2


@BATCHED
@HALVES
def test_a_write_of_the_value_that_is_there_changes_nothing(half, batched):
    """The master keeps its bits."""
    optimizer = _optimizer({"w": _values((9,), dtype=half), "x": _values((1100,), dtype=half)}, batched=batched)
    _step(optimizer)
    _freeze(optimizer)
    before = {name: optimizer.master(param).array.copy() for name, param in optimizer.target.namedparams()}
    for param in optimizer.target.params():
        param.array[...] = param.array.copy()
    _step(optimizer)
    for name, param in optimizer.target.namedparams():
        assert_same_bits(optimizer.master(param).array, before[name], name)


UPDATES = pairs(
    HALF,
    ["enabled", "disabled", "none", "unknown hook"],
    [(), [optimizer_hooks.GradientClipping(1.0)], [optimizer_hooks.WeightDecay(0.1)]],
)


@pytest.mark.parametrize(("half", "rule", "hooks"), UPDATES)
def test_writes_whoever_updates_the_parameter(half, rule, hooks):
    """The batch, Chainer, or nobody."""
    arrays = {"w": _values((9,), dtype=half), "x": _values((1100,), dtype=half), "z": _values((4,))}
    optimizer = _optimizer(arrays, hooks=hooks)
    for param in (optimizer.target.w, optimizer.target.x):
        if rule == "disabled":
            param.update_rule.enabled = False
        elif rule == "none":
            param.update_rule = None
        elif rule == "unknown hook":
            param.update_rule.add_hook(lambda rule, param: None, name="odd")
    _step(optimizer)
    before = [optimizer.master(param).array.copy() for param in (optimizer.target.w, optimizer.target.x)]
    _freeze(optimizer)
    for param in (optimizer.target.w, optimizer.target.x):
        param.array[1] = 0.25
    for bad in ("/z", None):
        _step(optimizer, bad=bad)
        for param, master in zip((optimizer.target.w, optimizer.target.x), before, strict=True):
            master[1] = 0.25
            assert_same_bits(_master_array(param), master, rule)


# --- arrays that are replaced


@pytest.mark.parametrize(("shape", "dtype", "batched"), pairs(SHAPES, DTYPES, BOTH))
def test_another_array_of_the_same_shape(shape, dtype, batched):
    """It is the parameter from now on, and is updated in place; the old one is left alone."""
    optimizer = _optimizer({"w": _values(shape, dtype=dtype), "x": _values((3,))}, batched=batched)
    _step(optimizer)
    old = optimizer.target.w.array
    before, master = old.copy(), optimizer.master(optimizer.target.w).array.copy()
    optimizer.target.w.array = new = _values(shape, 5, dtype)
    expected = new.astype(np.float32)
    if dtype != np.float32:
        np.copyto(expected, master, where=new == before)
    momentum = np.asarray(optimizer.target.w.update_rule.state["v"]).copy()
    _step(optimizer, 2)
    expected += momentum * np.float32(0.9) - np.float32(0.1) * _values(shape, 2, dtype).astype(np.float32)
    assert optimizer.target.w.array is new
    assert_same_bits(old, before, "the old array")
    assert_same_bits(optimizer.master(optimizer.target.w).array, expected, "the master")


@BATCHED
def test_another_array_of_another_shape(batched):
    """FP16 has a master that no longer fits; the message names the parameter. setup() begins afresh."""
    optimizer = _optimizer({"w": _values((7,)), "x": _values((3,))}, batched=batched)
    _step(optimizer)
    optimizer.target.w.array = _values((7, 2))
    with pytest.raises(ValueError, match=r"/w has changed its shape from \(\d+,\) to \(\d+, 2\): call setup\(\) again"):
        _step(optimizer)
    _step(optimizer.setup(optimizer.target))
    assert optimizer.t == 1


@BATCHED
def test_a_gradient_of_another_shape(batched):
    """An array was replaced after the backward pass. Nothing changes, and the next step can go on."""
    arrays = {"w": _values((7,), dtype=np.float32), "x": _values((1100,), dtype=np.float32)}
    optimizer = _optimizer(arrays, batched=batched)
    _step(optimizer)
    for param in optimizer.target.params():
        param.cleargrad()
        param.grad = _values(param.shape, 3, param.dtype)
    param = optimizer.target.w
    param.array = _values((2, param.size), 4, param.dtype)
    param.update_rule._state = None
    before = [each.array.copy() for each in optimizer.target.params()]
    with pytest.raises(ValueError, match=r"the gradient of /w has shape \(\d+,\), the parameter \(2, \d+\): call"):
        optimizer.update()
    for each, array in zip(optimizer.target.params(), before, strict=True):
        assert_same_bits(each.array, array, each.name)
    assert optimizer.t == 1
    _step(optimizer)
    assert optimizer.t == 2


def test_a_master_whose_array_somebody_replaces():
    """The parameter's own counts: the master of an optimizer is how hooks see it."""
    optimizer = _optimizer({"w": _values((7,)), "x": _values((1100,))})
    reference = _optimizer({"w": _values((7,)), "x": _values((1100,))})
    for seed in range(3):
        for param in optimizer.target.params():
            master = optimizer.master(param)
            master.array = master.array.copy()
        for each in (optimizer, reference):
            _step(each, seed)
    for param, other in zip(optimizer.target.params(), reference.target.params(), strict=True):
        assert_same_bits(param.array, other.array, param.name)
        assert_same_bits(optimizer.master(param).array, reference.master(other).array, param.name)


@BATCHED
def test_a_parameter_freed_and_made_again(batched):
    """Often, so that addresses come again: each has its own master, state and first values."""
    optimizer = _optimizer({"w": _values((7,)), "x": _values((1100,))}, batched=batched)
    for number in range(40):
        name = "wx"[number % 2]
        shape = getattr(optimizer.target, name).shape
        delattr(optimizer.target, name)
        param = add(optimizer.target, name, _values(shape, number))
        param.update_rule = optimizer.create_update_rule()
        _step(optimizer, number + 1)
        expected = _values(shape, number).astype(np.float32)
        expected -= np.float32(0.1) * _values(shape, number + 1).astype(np.float32)
        assert_same_bits(optimizer.master(param).array, expected, name)
        assert param.update_rule.t == 1
    assert len(optimizer._masters._masters) == 2


def test_a_parameter_that_was_taken_away_is_let_go():
    optimizer = _optimizer({"w": _values((7,)), "x": _values((1100,))})
    _step(optimizer)
    gone = [weakref.ref(optimizer.target.x), weakref.ref(optimizer.target.x.array)]
    del optimizer.target.x
    _step(optimizer)
    gc.collect()
    assert [each() for each in gone] == [None, None]


@pytest.mark.parametrize(("hooks", "skip"), [((), False), ([optimizer_hooks.GradientClipping(1.0)], True)])
def test_gradients_are_not_kept_alive(hooks, skip):
    """Memory for the next backward pass: as soon as the user clears them they are gone."""
    optimizer = _optimizer({"w": _values((7,)), "x": _values((1100,))}, hooks=hooks)
    for _ in range(2):
        _step(optimizer, bad="/x" if skip else None)
        gradients = [weakref.ref(param.grad) for param in optimizer.target.params()]
        optimizer.target.cleargrads()
        gc.collect()
        assert [gradient() for gradient in gradients] == [None, None]


# --- arrays that are not as usual


def _transposed(values):
    return np.asfortranarray(values)


def _strided(values):
    wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
    wide[..., ::2] = values
    return wide[..., ::2]


def _reversed(values):
    return values[::-1, ::-1].copy()[::-1, ::-1]


def _broadcast(values):
    return np.broadcast_to(values[:1], values.shape)


def _read_only(values):
    values = values.copy()
    values.flags.writeable = False
    return values


ODD = [_transposed, _strided, _reversed, _broadcast, _read_only]


@pytest.mark.parametrize(
    ("odd", "shape", "dtype", "hooks", "batched"),
    pairs(ODD, SHAPES, DTYPES, [(), [optimizer_hooks.WeightDecay(0.1), optimizer_hooks.GradientClipping(0.1)]], BOTH),
)
def test_gradients_in_odd_layouts(odd, shape, dtype, hooks, batched):
    """The values count, not where they lie; the gradient itself is left as it was, the user's own array."""
    optimizer, reference = (
        _optimizer({"w": _values(shape, dtype=dtype), "x": _values((3,))}, batched=batched, hooks=hooks) for _ in "ab"
    )
    for seed in (1, 2):
        gradient = odd(_values(shape, seed, dtype))
        before = gradient.copy()
        for each in (optimizer, reference):
            each.target.cleargrads()
        optimizer.target.w.grad, reference.target.w.grad = gradient, np.ascontiguousarray(gradient)
        optimizer.update()
        reference.update()
        assert optimizer.target.w.grad is gradient
        assert_same_bits(gradient, before, "the gradient")
    assert optimizer.t == 2
    assert_same_bits(optimizer.master(optimizer.target.w).array, reference.master(reference.target.w).array, "master")
    gradient = odd(np.full(shape, np.nan, dtype))
    optimizer.target.w.grad = gradient
    optimizer.update()
    assert optimizer.last_step_skipped


@BATCHED
@pytest.mark.parametrize(
    ("param", "gradient"), [(np.float16, np.float32), (np.float32, "f8"), (np.float16, BFLOAT16), (BFLOAT16, "f8")]
)
def test_a_gradient_in_another_float_dtype(param, gradient, batched):
    """Chainer's setter refuses it, users' backward passes may leave it; no bit is lost before FP32."""
    arrays = {"w": np.zeros(6, param), "x": _values((3,), dtype=param)}
    optimizer = _optimizer(arrays, optimizers.SGD(lr=1.0), batched=batched)
    optimizer.target.x.grad = optimizer.target.x.array.copy()
    values = _values((6,), 1, gradient)
    optimizer.target.w.cleargrad()
    optimizer.target.w._grad = values
    optimizer.target.w._grad_valid = True
    optimizer.update()
    assert_same_bits(optimizer.master(optimizer.target.w).array, -values.astype(np.float32), "the master")


@pytest.mark.parametrize(
    ("odd", "dtype", "shape", "batched"), pairs([_transposed, _strided, _reversed], DTYPES, SHAPES, BOTH)
)
def test_parameters_in_odd_layouts(odd, dtype, shape, batched):
    """They are updated in place, to the same bits; those with gaps or backwards one by one."""
    values = _values(shape, dtype=dtype)
    optimizer = _optimizer({"w": values.copy(), "x": _values((3,))}, batched=batched)
    reference = _optimizer({"w": values.copy(), "x": _values((3,))}, batched=batched)
    for seed in range(4):
        if seed == 2:
            optimizer.target.w.array = array = odd(optimizer.target.w.array)
            if batched:
                assert "/w" in str(optimizer.report())
                row = next(row for row in optimizer.report().parameters if row.name == "/w")
                dense = odd is _transposed
                assert row.path == (
                    "batched: MomentumSGDRule" if dense else "one by one: its array is not dense in memory"
                )
        for each in (optimizer, reference):
            _step(each, seed)
    assert optimizer.target.w.array is array
    assert_same_bits(optimizer.master(optimizer.target.w).array, reference.master(reference.target.w).array, "master")
    assert_same_bits(np.ascontiguousarray(array), reference.target.w.array, "the parameter")
