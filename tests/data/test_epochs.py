"""mixprec.data.loaders.epochs: batches, epochs and shards, against what is counted one image at a time."""

import pytest
from chainer.iterators import SerialIterator
from hypothesis import assume, given
from hypothesis import strategies as st

from mixprec.data.loaders.epochs import LAST_BATCH, Epochs


@st.composite
def sets(draw, last_batch=None):
    """All shards of a data set, each of them with at least one full batch."""
    num_shards = draw(st.integers(1, 9))
    batch_size = draw(st.integers(1, 12))
    images = draw(st.integers(num_shards * batch_size, num_shards * batch_size * 5))
    last_batch = last_batch or draw(st.sampled_from(LAST_BATCH))
    return [
        Epochs(images=images, batch_size=batch_size, last_batch=last_batch, shard=shard, num_shards=num_shards)
        for shard in range(num_shards)
    ]


def counts(epochs):
    return [epochs.count(number) for number in range(epochs.batches)]


@given(sets())
def test_shards_lie_side_by_side_and_differ_by_one_image_at_most(shards):
    places = [place for shard in shards for place in range(shard.begin, shard.begin + shard.size)]
    assert places == list(range(shards[0].images))
    sizes = {shard.size for shard in shards}
    assert (min(sizes), max(sizes)) == (shards[0].smallest, shards[0].largest)
    assert max(sizes) - min(sizes) <= 1


@given(sets("partial"))
def test_partial_has_each_image_once_and_no_empty_batch(shards):
    for shard in shards:
        *full, last = counts(shard)
        assert all(count == shard.batch_size for count in full)
        assert 1 <= last <= shard.batch_size
        assert sum(full) + last == shard.size


@given(sets("drop"))
def test_drop_has_full_batches_alone_and_as_many_in_each_shard(shards):
    assert len({shard.batches for shard in shards}) == 1
    for shard in shards:
        assert set(counts(shard)) == {shard.batch_size}
    left_out = min(shard.size - sum(counts(shard)) for shard in shards)
    assert 0 <= left_out < shards[0].batch_size


@given(sets("pad"))
def test_pad_has_each_image_once_and_as_many_batches_in_each_shard(shards):
    assert len({shard.batches for shard in shards}) == 1
    for shard in shards:
        assert sum(counts(shard)) == shard.size
        assert counts(shard) == sorted(counts(shard), reverse=True)
    assert max(shard.count(shard.batches - 1) for shard in shards) > 0  # no batch of padding alone in all of them


@given(sets(), st.integers(0, 40))
def test_every_epoch_has_the_same_counts(shards, number):
    for shard in shards:
        assert shard.count(number) == counts(shard)[number % shard.batches]


@given(sets(), st.integers(0, 3))
def test_epochs_end_with_their_last_batch(shards, epoch):
    for shard in shards:
        end = (epoch + 1) * shard.batches
        for delivered in range(epoch * shard.batches, end):
            assert shard.epoch(delivered) == epoch
            assert epoch <= shard.detail(delivered) < epoch + 1
            assert shard.detail(delivered) < shard.detail(delivered + 1)
            assert shard.is_new(delivered) == (delivered == epoch * shard.batches and epoch > 0)
        assert (shard.epoch(end), shard.detail(end), shard.is_new(end)) == (epoch + 1, epoch + 1, True)


@given(sets(), st.integers(0, 40))
def test_all_shards_agree_where_they_have_as_many_batches(shards, delivered):
    """Else one process of several would evaluate while the others train."""
    assume(shards[0].last_batch != "partial")
    assert len({shard.detail(delivered) for shard in shards}) == 1


@given(st.integers(1, 40), st.integers(1, 12))
def test_one_epoch_is_that_of_chainers_iterator(images, batch_size):
    assume(batch_size <= images)
    epochs = Epochs(images=images, batch_size=batch_size)
    iterator = SerialIterator(list(range(images)), batch_size, repeat=False, shuffle=False)
    for number in range(epochs.batches):
        assert epochs.count(number) == len(next(iterator))
        assert epochs.detail(number + 1) == iterator.epoch_detail
        assert epochs.detail(number) == (iterator.previous_epoch_detail or 0)
        assert epochs.is_new(number + 1) == iterator.is_new_epoch
    with pytest.raises(StopIteration):
        next(iterator)
