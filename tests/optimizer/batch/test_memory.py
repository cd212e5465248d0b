"""Parameters whose axes have another order in memory, as NHWC filters: the same bits as in C order."""

import copy
import pickle
import re

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers, serializers
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import mixprec
from mixprec.backends.launch import CupyLauncher
from mixprec.backends.memory import axes, flat, in_order_of, is_dense, same_order, shaped
from mixprec.optimizer import step as batched_module
from tests.cases import first, pairs
from tests.stand_ins import device_stand_in
from tests.stand_ins.device_runs import stay_on_host
from tests.stand_ins.device_stand_in import DeviceArray
from tests.stand_ins.host_launch import HostLauncher
from tests.stand_ins.update_pair import assert_same_bits, link_of, new_optimizer
from tests.stand_ins.update_twin import Twin, exactly, run

F16, F32 = np.float16, np.float32
BATCHED = pytest.mark.parametrize("batched", [True, False])


def channels_last(array):
    """The same values; four axes (K, C, R, S) get the memory of (K, R, S, C)."""
    if array.ndim != 4:
        return array.copy()
    return array.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)


def in_c_order(array):
    return array.copy(order="C")


def with_gaps(array):
    wide = np.zeros((*array.shape, 2), array.dtype).view(type(array))
    wide[..., 0] = array
    return wide[..., 0]


ORDERS = [channels_last, in_c_order]


# --- arrays and their memory


@st.composite
def _dense(draw):
    """A dense array, its axes in any order, with strides for axes of length 1 that are anything."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=3))
    order = draw(st.permutations(range(len(shape))))
    memory = np.arange(int(np.prod(shape)), dtype=draw(st.sampled_from([F16, F32])))
    array = memory.reshape([shape[axis] for axis in order]).transpose(np.argsort(order) if shape else ())
    if array.size:
        strides = [
            draw(st.integers(-99, 99)) * 4 if length == 1 else stride
            for length, stride in zip(shape, array.strides, strict=True)
        ]
        array = np.lib.stride_tricks.as_strided(array, shape, strides)
    return memory, array


@given(_dense())
def test_the_memory_of_a_dense_array(dense):
    memory, array = dense
    assert is_dense(array)
    assert_same_bits(flat(array), memory, "memory")
    assert not array.size or np.shares_memory(flat(array), memory)
    again = shaped(memory, array)
    assert_same_bits(again, array, "shaped")
    assert not array.size or np.shares_memory(again, memory)
    assert same_order(again, array)


@given(_dense(), st.data())
def test_a_copy_in_the_order_of_another_array(dense, data):
    _, model = dense
    order = data.draw(st.permutations(range(model.ndim)))
    array = np.arange(model.size, dtype=F32).reshape([model.shape[axis] for axis in order])
    array = array.transpose(np.argsort(order) if order else ())
    found = in_order_of(array, model)
    assert same_order(found, model)
    assert is_dense(found)
    assert not np.shares_memory(found, array)
    np.testing.assert_array_equal(found, array, strict=True)
    # In the same order is just what is the same element by element in memory.
    array[...] = np.arange(array.size).reshape(array.shape)
    found[...] = array
    assert same_order(array, found) == (flat(array).tobytes() == flat(found).tobytes()) or array.size < 2


NOT_DENSE = [
    np.zeros(6)[::2],
    np.zeros(6)[::-1],
    np.zeros((4, 3))[:, :2],
    np.broadcast_to(np.zeros(3), (2, 3)),
    np.broadcast_to(np.zeros(1), (2, 2)),
]


@pytest.mark.parametrize("array", NOT_DENSE)
def test_arrays_that_are_not_dense(array):
    """They have an order of axes, which their dense copies share."""
    assert not is_dense(array)
    with pytest.raises(ValueError, match=re.escape(f"shape {array.shape}")):
        flat(array)
    assert same_order(in_order_of(array, array), array)


def test_a_1x1_filter_is_in_both_orders():
    filters = np.zeros((4, 3, 1, 1), F16)
    assert same_order(channels_last(filters), filters)
    assert channels_last(filters).strides != filters.strides
    three = np.zeros((4, 3, 3, 3), F16)
    assert not same_order(channels_last(three), three)
    assert axes(channels_last(three)) == (0, 2, 3, 1)


# --- NumPy

SHAPES = (
    {"half3x3": ((4, 3, 3, 3), F16), "half1x1": ((4, 3, 1, 1), F16), "half1x3": ((5, 4, 1, 3), F16)}
    | {"half_one_input": ((4, 1, 3, 3), F16), "half_large": ((16, 15, 3, 3), F16), "single3x3": ((4, 3, 3, 3), F32)}
    | {"single1x1": ((4, 3, 1, 1), F32), "empty": ((0, 3, 3, 3), F16), "matrix": ((3, 5), F16), "vector": ((7,), F32)}
)


def _values(shape, dtype, seed):
    return np.random.RandomState(seed).normal(size=shape).astype(dtype)


def _wrapped(order, inner, hooks=(), place=stay_on_host, **settings):
    model = link_of({name: order(_values(shape, dtype, 7)) for name, (shape, dtype) in SHAPES.items()})
    settings = {"loss_scale": 4.0, **settings}
    optimizer = mixprec.MixedPrecisionOptimizer(inner, **settings).setup(place(model))
    for hook in hooks:
        optimizer.add_hook(hook)
    return optimizer


def _write_gradients(optimizer, seed, order, missing=(), spoiled=None):
    for number, (name, param) in enumerate(sorted(optimizer.target.namedparams())):
        param.cleargrad()
        if name[1:] not in missing:
            gradient = _values(param.shape, param.dtype, 100 * seed + number).view(type(param.array))
            param.grad = order(gradient)
            param._loss_scale = 4.0  # as Chainer's backward(loss_scale=...) leaves it
            if name[1:] == spoiled:
                param.grad[1, 0, 1, 0] = np.inf


def _step(optimizer, seed, order, missing=(), spoiled=None):
    _write_gradients(optimizer, seed, order, missing, spoiled)
    optimizer.update()
    assert optimizer.last_step_skipped == (spoiled is not None)


def _everything(optimizer):
    """All arrays by name: parameters, masters, states."""
    found = {}
    for name, param in optimizer.target.namedparams():
        found[name] = param.array
        found[f"master of {name}"] = optimizer.master(param).array
        for state, value in ({} if param.update_rule is None else param.update_rule.state or {}).items():
            found[f"{state} of {name}"] = value
    return found


def _assert_same(found, expected):
    found, expected = _everything(found), _everything(expected)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert_same_bits(np.asarray(found[name]), np.asarray(array), name)


@pytest.mark.parametrize(
    ("name", "batched"), [("Adam", True), ("Adam", False), ("MSVAG", True), ("LARS", True), ("AMSGrad", False)]
)
def test_rules(name, batched):
    """Gradients come in either order, with gaps and not at all, and one step is skipped."""
    other, plain = (_wrapped(order, new_optimizer(name), batched=batched) for order in ORDERS)
    arrays = {name: (param.array, param.array.strides) for name, param in other.target.namedparams()}
    if batched:
        assert other.report().batched == (0 if name in ("LARS", "LAMB") else len(SHAPES))
    for seed, order in enumerate([channels_last, in_c_order, channels_last, with_gaps, channels_last]):
        missing = {"half3x3", "single1x1"} if seed == 2 else ()
        spoiled = "half_large" if seed == 3 else None
        _step(other, seed, order, missing, spoiled)
        _step(plain, seed, in_c_order, missing, spoiled)
        _assert_same(other, plain)
    for name, param in other.target.namedparams():
        assert param.array is arrays[name][0]
        assert param.array.strides == arrays[name][1]
        assert same_order(other.master(param).array, param.array)


HOOKS = [
    [optimizer_hooks.GradientHardClipping(-0.7, 0.8), optimizer_hooks.Lasso(0.0017)],
    [optimizer_hooks.GradientClipping(3.1), optimizer_hooks.WeightDecay(0.013)],
]


@pytest.mark.parametrize("hooks", HOOKS, ids=lambda hooks: type(hooks[0]).__name__)
def test_hooks(hooks):
    other, plain = (_wrapped(order, optimizers.Adam(), hooks) for order in ORDERS)
    for seed in range(3):
        spoiled = "single3x3" if seed == 1 else None
        _step(other, seed, channels_last, spoiled=spoiled)
        _step(plain, seed, in_c_order, spoiled=spoiled)
    _assert_same(other, plain)


# --- NumPy: what users do


@pytest.mark.parametrize(("zero_gradients", "batched"), [(True, True), (False, False)])
def test_another_order_in_mid_run(zero_gradients, batched):
    """The parameter's array is replaced; its master keeps the bits that do not fit into float16, its rule the state."""
    settings = {"batched": batched, "zero_gradients": zero_gradients}
    other, plain = (_wrapped(in_c_order, optimizers.Adam(), **settings) for _ in range(2))
    for seed, order in enumerate([in_c_order, channels_last, in_c_order]):
        for param in other.target.params():
            param.array = order(param.array)
        for gradients in ORDERS:
            _step(other, seed, gradients)
            _step(plain, seed, in_c_order)
            if zero_gradients:
                assert not any(param.grad.any() for param in other.target.params())
    _assert_same(other, plain)
    for param in other.target.params():
        assert same_order(other.master(param).array, param.array)


def test_states_in_another_order():
    """As Chainer loads them into a rule that has none, or as users write them."""
    other, plain = (_wrapped(order, optimizers.Adam()) for order in ORDERS)
    for seed in range(4):
        if seed == 2:
            for param in other.target.params():
                for name, value in param.update_rule.state.items():
                    param.update_rule.state[name] = with_gaps(value) if name == "m" else value.copy(order="C")
        _step(other, seed, channels_last)
        _step(plain, seed, in_c_order)
        _assert_same(other, plain)
    assert other.report().batched == len(SHAPES)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
@BATCHED
def test_copies(copied, batched):
    optimizer = _wrapped(channels_last, optimizers.Adam(), batched=batched)
    _step(optimizer, 0, channels_last)
    other = copied(optimizer)
    for each in (optimizer, other):
        _step(each, 1, channels_last)
    _assert_same(other, optimizer)


def _save(kind, path, optimizer):
    save = getattr(serializers, f"save_{kind}")
    save(str(path / "model"), optimizer.target)
    save(str(path / "optimizer"), optimizer)


def _load(kind, path, optimizer):
    load = getattr(serializers, f"load_{kind}")
    load(str(path / "model"), optimizer.target)
    load(str(path / "optimizer"), optimizer)


@pytest.mark.parametrize(
    ("writer", "reader", "into", "kind"), first(2, pairs(ORDERS, ORDERS, ["new", "live"], ["npz", "hdf5"]))
)
def test_snapshots(writer, reader, into, kind, tmp_path):
    """A file of either goes on in the other, bit for bit as the uninterrupted run in C order."""
    if kind == "hdf5":
        pytest.importorskip("h5py", reason="h5py is not installed")
    uninterrupted, written, loaded = (
        _wrapped(order, optimizers.AMSGrad(), loss_scale=mixprec.DynamicLossScale(init=4.0, interval=100))
        for order in (in_c_order, writer, reader)
    )
    for seed in range(3):
        _step(uninterrupted, seed, in_c_order)
        _step(written, seed, writer)
    if into == "live":
        _step(loaded, 50, reader)
    arrays = [param.array for param in loaded.target.params()]
    _save(kind, tmp_path, written)
    _load(kind, tmp_path, loaded)
    for seed in range(3, 5):
        _step(uninterrupted, seed, in_c_order)
        _step(loaded, seed, reader)
    _assert_same(loaded, uninterrupted)
    assert all(param.array is array for param, array in zip(loaded.target.params(), arrays, strict=True))
    assert loaded.report().batched == len(SHAPES)


@pytest.mark.parametrize("compute", [F16, F32])
def test_through_backward_passes(compute):
    """Chainer's own convolution leaves gradients in C order; accumulated ones have any."""
    optimizers_ = []
    for order in ORDERS:
        model = chainer.Chain(conv=chainer.links.Convolution2D(3, 4, 3, initialW=_values((4, 3, 3, 3), F32, 0)))
        mixprec.convert(model, compute=np.dtype(compute).name)
        model.conv.W.array = order(model.conv.W.array)
        optimizers_.append(mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(), 8.0).setup(model))
    for seed in range(3):
        for optimizer in optimizers_:
            model = optimizer.target
            model.cleargrads()
            for _ in range(2):
                y = model.conv(_values((2, 3, 5, 5), F32, seed))
                loss = F.sum(F.cast(y, "float32")) + F.sum(F.cast(model.conv.W, "float32"))
                optimizer.scale_loss(loss).backward()
            optimizer.update()
    _assert_same(*optimizers_)
    assert optimizers_[0].report().batched == 2


# --- a device: the kernels on the host


class _Launcher(HostLauncher):
    """Counts copies of gradients."""

    copies = 0

    def contiguous(self, array):
        self.copies += 1
        return super().contiguous(array)


@pytest.fixture
def launcher():
    return _Launcher()


def _send(value):
    return channels_last(device_stand_in.array(value))


def test_gradients_in_c_order_on_a_device(launcher):
    both = Twin(
        launcher, _send, np.asarray, [("Adam", (4, 3, 3, 3), F16), ("LARS", (11, 13, 5, 5), F32), ("SGD", 31, F16)]
    )
    both.send = device_stand_in.array
    run(both, exactly)
    assert launcher.copies > 0


def test_only_gradients_in_another_order_are_copied(launcher):
    """A parameter each way; then their gradients the other way round, which looks alike if one only counts."""
    shape = (4, 3, 3, 3)
    both = Twin(launcher, device_stand_in.array, np.asarray, [("SGD", shape, F16)] * 2 + [("SGD", (5, 4, 1, 3), F32)])
    for entry in both.entries[1:]:
        entry.param.array = channels_last(entry.param.array)
        entry.master.array = channels_last(entry.master.array)
    both.entries[2].master.array = both.entries[2].param.array

    def copies(*orders, zero=False):
        gradients = both.gradients()
        for entry, gradient, order in zip(both.entries, gradients, orders, strict=True):
            entry.param.grad = order(gradient.view(DeviceArray))
        expected = both.expect(gradients, 1)
        launcher.copies = 0
        both.batch.check()
        both.batch.update(zero_gradients=zero)
        exactly(both, expected, None)
        for entry in both.entries:
            assert zero != entry.param.grad.view(np.ndarray).any()
        return launcher.copies

    assert copies(in_c_order, channels_last, channels_last) == 0
    assert copies(channels_last, in_c_order, channels_last) == 2
    assert copies(channels_last, channels_last, channels_last, zero=True) == 1
    assert copies(with_gaps, with_gaps, in_c_order, zero=True) == 3
    assert copies(in_c_order, channels_last, channels_last, zero=True) == 0

    def other_strides(gradient):
        """Those of an axis of length 1 say nothing."""
        found = channels_last(gradient)
        strides = [1000 if length == 1 else stride for length, stride in zip(found.shape, found.strides, strict=True)]
        return np.lib.stride_tricks.as_strided(found, found.shape, strides, subok=True)

    assert copies(in_c_order, channels_last, other_strides) == 0


def test_arrays_of_cupy():
    """Their flags and strides, without a GPU: on the host's memory, which nobody looks at."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    memory = np.zeros(4 * 3 * 3 * 3, F16)
    owner = cupy.cuda.UnownedMemory(memory.ctypes.data, memory.nbytes, memory, 0)
    pointer = cupy.cuda.MemoryPointer(owner, 0)

    def filters(rows, columns):
        return cupy.ndarray((4, rows, columns, 3), F16, pointer).transpose(0, 3, 1, 2)

    three, one, plain = filters(3, 3), filters(1, 1), cupy.ndarray((4, 3, 3, 3), F16, pointer)
    launcher = CupyLauncher(0)
    assert launcher.orders([one, plain]) == ()
    assert launcher.orders([three, plain, three]) == ([False, True, False], [three.strides] * 2)
    assert is_dense(three)
    assert not is_dense(plain[:, :2])
    assert not same_order(three, plain)
    assert same_order(one, cupy.ndarray((4, 3, 1, 1), F16, pointer))
    for array in (three, one, plain, cupy.ndarray((), F16, pointer), cupy.ndarray((0, 3), F16, pointer)):
        flattened = flat(array)
        assert flattened.shape == (array.size,)
        assert flattened.data.ptr == pointer.ptr
        again = shaped(flattened, array)
        assert again.data.ptr == pointer.ptr
        assert again.shape == array.shape
        assert same_order(again, array)


@pytest.mark.gpu
def test_on_a_gpu(tmp_path):
    """The kernels, and copies of gradients in C order, beside Chainer; a file into arrays that are not C-contiguous."""
    import cupy

    def send(value):
        value = cupy.asarray(value)
        return cupy.ascontiguousarray(value.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if value.ndim == 4 else value

    shapes = [((64, 61, 3, 3), F16), ((96, 95, 1, 1), F32), ((5, 4, 1, 3), F32), (31, F16)]
    both = Twin(
        CupyLauncher(0), send, cupy.asnumpy, [(name, *each) for name in ("MomentumSGD", "AdaDelta") for each in shapes]
    )
    run(both, exactly)
    both.send = cupy.asarray
    run(both, exactly)
    model = link_of({"w": send(_values((4, 3, 3, 3), F16, 0))})
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.Adam(), 1.0).setup(model)
    for seed in range(2):
        model.w.grad = send(_values(model.w.shape, F16, seed))
        optimizer.update()
    before = {name: cupy.asnumpy(array) for name, array in _everything(optimizer).items()}
    _save("npz", tmp_path, optimizer)
    for array in _everything(optimizer).values():
        array[...] = 0
    _load("npz", tmp_path, optimizer)
    for name, array in _everything(optimizer).items():
        assert_same_bits(cupy.asnumpy(array), before[name], name)


def test_the_optimizer_on_a_device(launcher, monkeypatch):
    """The run of NumPy in C order, bit for bit: skips, writes, states and arrays in another order, a file."""
    monkeypatch.setattr(
        batched_module, "launcher_of", lambda array: launcher if isinstance(array, DeviceArray) else None
    )
    settings = {"loss_scale": mixprec.DynamicLossScale(init=4.0, interval=100), "zero_gradients": True}
    device = _wrapped(channels_last, optimizers.Adam(), place=device_stand_in.send, **settings)
    host = _wrapped(in_c_order, optimizers.Adam(), **copy.deepcopy(settings))
    for seed in range(8):
        for optimizer, order in ((device, channels_last), (host, in_c_order)):
            for param in optimizer.target.params():
                if seed == 3 and param.size:
                    param.array[...] = np.float16(0.25)
                if seed == 5:
                    param.update_rule.state["m"] = param.update_rule.state["m"].copy(order="C")
                if seed == 6:
                    param.array = in_c_order(param.array)
            if seed == 7:
                saved = serializers.DictionarySerializer()
                optimizer.target.serialize(saved)
                optimizer.target.serialize(serializers.NpzDeserializer(saved.target))
            _write_gradients(optimizer, seed, order, spoiled="half_large" if seed in (0, 4) else None)
            reads = DeviceArray.reads
            optimizer.update()
            assert optimizer is host or seed in (5, 6, 7) or DeviceArray.reads == reads
    assert device.report().batched == len(SHAPES)
    assert device.skipped == host.skipped == 2
    _assert_same(device, host)
