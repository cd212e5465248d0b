"""The kernel that packs gradients, on the host, beside NumPy and float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixprec.base.dtypes import BFLOAT16
from mixprec.distributed import device_arena
from mixprec.distributed.arena import pack
from mixprec.distributed.buckets import ALIGNED, layout
from mixprec.distributed.device_arena import DeviceArena
from tests.cases import first
from tests.stand_ins.device_stand_in import DeviceArray
from tests.stand_ins.host_launch import HostLauncher

HALF, BRAIN, FULL = np.dtype(np.float16), np.dtype(BFLOAT16), np.dtype(np.float32)
PAIRS = first(2, [(HALF, FULL), (FULL, FULL), (HALF, HALF), (HALF, BRAIN), (BRAIN, BRAIN), (BRAIN, FULL), (FULL, HALF)])
LAUNCHER = HostLauncher()
SHAPES = [(), (1,), (3,), (8,), (1000,), (5, 7), (8, 3, 3, 4), (2, 1, 16), (3000,), (0, 4)]


class Transport:
    """Fills the array, and adds up nothing."""

    def __init__(self, size):
        self.size, self.held = size, None

    def start(self, array, fill, held):
        self.held = held
        array[...] = np.nan  # what is not written is seen
        fill()


def _array(random, shape, dtype, order, offset=0):
    """Random numbers, some of them not finite, which lie in memory with their axes in an order, perhaps not aligned."""
    order = [axis for axis in order if axis < len(shape)]
    flat = np.zeros(int(np.prod(shape)) + offset, dtype).view(DeviceArray)[offset:]
    turned = flat.reshape([shape[axis] for axis in order])
    turned[...] = random.normal(size=turned.shape) * 2.0 ** random.randint(-20, 14, turned.shape)
    if turned.size > 2:
        turned.reshape(-1)[random.randint(turned.size)] = random.choice([np.inf, np.nan, 65504])
    return turned.transpose(np.argsort(order))


@pytest.mark.parametrize(("dtype", "dtype_of_sum"), PAIRS, ids=str)
@given(
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=12),
    ranks=st.sampled_from([1, 2, 3, 8, 1000]),
    orders=st.lists(st.permutations(range(4)), min_size=2, max_size=2),
    offset=st.sampled_from([0, 1, 8]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_bucket_is_packed_as_on_numpy(dtype, dtype_of_sum, shapes, ranks, orders, offset, seed):
    """Any order of axes, of parameters and of gradients; addresses that are not aligned; some have no gradient."""
    random = np.random.RandomState(seed)
    models = {str(place): _array(random, shape, dtype, orders[0]) for place, shape in enumerate(shapes)}
    plan = layout([(name, "own", array.size) for name, array in models.items()], {"own": 2}, 2**20, ALIGNED)
    transport = Transport(ranks)
    arena = DeviceArena(plan.sizes["own"], dtype, dtype_of_sum, transport, LAUNCHER)
    gradients = {}
    for name, model in models.items():
        arena.add(name, plan.slots[name], model)
        order = orders[random.randint(2)]
        gradients[name] = None if random.randint(5) == 0 else _array(random, model.shape, dtype, order, offset)
        arena.put(name, gradients[name])
    reads = DeviceArray.reads
    for bucket in plan.buckets:
        arena.start(bucket)
        held = [gradients[name] for name in bucket.names if gradients[name] is not None]
        assert all(one is other for one, other in zip(transport.held, held, strict=True))
    assert DeviceArray.reads == reads
    for name, model in models.items():
        slot, expected = plan.slots[name], np.empty(model.shape, dtype_of_sum)
        assert slot.start % ALIGNED == 0
        pack(None if gradients[name] is None else gradients[name].view(np.ndarray), 1 / ranks, expected)
        packed, expected = arena._views[name][0].view(np.ndarray).astype("f"), expected.astype("f")
        np.testing.assert_array_equal(packed, expected, err_msg=name)


@pytest.mark.parametrize(("dtype", "dtype_of_sum"), PAIRS, ids=str)
def test_one_rounding_of_a_product_in_float32(dtype, dtype_of_sum):
    """Beside float64: half a unit of float32 for the product, and half a unit of the sum's dtype."""
    random = np.random.RandomState(0)
    transport = Transport(3)
    arena = DeviceArena(4096, dtype, dtype_of_sum, transport, LAUNCHER)
    gradient = (random.normal(size=4096) * 2.0 ** random.randint(-10, 4, 4096)).astype(dtype).view(DeviceArray)
    plan = layout([("w", "own", 4096)], {"own": 4}, 2**20, ALIGNED)
    arena.add("w", plan.slots["w"], gradient)
    arena.put("w", gradient)
    arena.start(plan.buckets[0])
    exact = gradient.view(np.ndarray).astype(np.float64) * float(np.float32(1 / 3))
    bits = {"float16": 11, "bfloat16": 8, "float32": 24}[dtype_of_sum.name]
    bound = abs(exact) * (2.0**-bits + 2.0**-24) + 2.0**-25 * (dtype_of_sum == np.float16)
    found = arena._views["w"][0].view(np.ndarray).astype(np.float64)
    assert (abs(found - exact) <= bound).all()


def test_many_gradients_take_several_launches_and_padding_stays_zero(monkeypatch):
    shapes = [(index % 13 + 1,) for index in range(2 * device_arena.ROWS + 5)]
    members = [(str(index), "float16", shape[0]) for index, shape in enumerate(shapes)]
    plan = layout(members, {"float16": 2}, 2**20, ALIGNED)
    arena = DeviceArena(plan.sizes["float16"], np.dtype(np.float16), np.dtype(np.float32), Packs(), LAUNCHER)
    for (name, *_), shape in zip(members, shapes, strict=True):
        gradient = np.ones(shape, np.float16).view(DeviceArray)
        arena.add(name, plan.slots[name], gradient)
        arena.put(name, gradient)
    before = len(LAUNCHER.launches)
    for bucket in plan.buckets:
        arena.start(bucket)
    packed = len(LAUNCHER.launches)
    assert packed == before + sum(-(-len(bucket.names) // device_arena.ROWS) for bucket in plan.buckets) > before + 1
    expected = np.zeros(plan.sizes["float16"], np.float32)
    for slot in plan.slots.values():
        expected[slot.start : slot.stop] = 1
    np.testing.assert_array_equal(arena.sums.view(np.ndarray), expected)
    for bucket in plan.buckets:
        arena.end(bucket)
    assert len(LAUNCHER.launches) == packed + 1
    np.testing.assert_array_equal(arena.gradients.view(np.ndarray), expected.astype(np.float16))


class Packs:
    size = 1

    def start(self, array, fill, held):
        fill()
