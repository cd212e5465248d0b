"""Places of gradients: each element in one bucket, in the order of readiness."""

from hypothesis import given
from hypothesis import strategies as st

from mixprec.distributed.buckets import LAST, LEAST, MOST, PARTS, layout, limit_of

ITEMSIZES = {"float16": 4, "float32": 4, "bfloat16": 2}
_members = st.lists(st.tuples(st.sampled_from(sorted(ITEMSIZES)), st.integers(0, 50)), max_size=20)


@given(_members, st.integers(1, 200))
def test_each_element_is_in_one_bucket_and_the_order_is_that_of_readiness(kinds, limit):
    members = [(f"{number}", dtype, size) for number, (dtype, size) in enumerate(kinds)]
    plan = layout(members, ITEMSIZES, limit)
    assert plan.sizes == {dtype: sum(size for _, own, size in members if own == dtype) for dtype, _ in kinds}
    assert plan.slots.keys() == {name for name, _, _ in members}
    for dtype in plan.sizes:
        of_dtype = [(name, size) for name, own, size in members if own == dtype]
        place = 0
        for name, size in of_dtype:
            slot = plan.slots[name]
            bucket = plan.buckets[slot.bucket]
            assert (slot.start, slot.stop) == (place, place + size)
            assert bucket.start <= slot.start <= slot.stop <= bucket.stop
            assert slot.dtype == bucket.dtype == dtype
            place = slot.stop
        own = [bucket for bucket in plan.buckets if bucket.dtype == dtype]
        assert [name for bucket in own for name in bucket.names] == [name for name, _ in of_dtype]
        assert [bucket.start for bucket in own] == [0, *(bucket.stop for bucket in own[:-1])]
        assert own[-1].stop == plan.sizes[dtype]
        for bucket in own:
            room = limit // ITEMSIZES[dtype] // (LAST if bucket is own[-1] else 1)
            assert len([n for n in bucket.names if plan.slots[n].stop > plan.slots[n].start]) <= 1 or (
                bucket.stop - bucket.start <= room
            )
    ready = [max(int(name) for name in bucket.names) for bucket in plan.buckets]
    assert ready == sorted(ready)


def test_buckets_of_small_and_large_models():
    assert [limit_of(total) for total in (0, 100, 2**20, 2**24, 2**30)] == [LEAST, LEAST, 2**20 // PARTS, 2**21, MOST]
