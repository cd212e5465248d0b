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


def places(epochs, number):
    return list(range(*epochs.places(number)))


@given(sets(), st.integers(0, 40))
def test_batches_of_all_shards_are_those_of_one_with_as_many_images(shards, number):
    first = shards[0]
    size = first.batch_size * len(shards)
    one = Epochs(images=first.images, batch_size=size, last_batch=first.last_batch)
    assert {shard.batches for shard in shards} == {one.batches}
    assert [place for shard in shards for place in places(shard, number)] == places(one, number)
    assert {shard.count_of_all(number) for shard in shards} == {one.count(number)}
    sizes = {shard.count(number) for shard in shards}
    assert max(sizes) - min(sizes) <= 1
    for shard in shards:
        assert shard.detail(number) == one.detail(number)


@given(sets("partial") | sets("pad"))
def test_partial_and_pad_have_each_image_once(shards):
    found = [place for number in range(shards[0].batches) for shard in shards for place in places(shard, number)]
    assert found == list(range(shards[0].images))
    for shard in shards:
        assert set(counts(shard)[:-1]) <= {shard.batch_size}


@given(sets("drop"))
def test_drop_has_full_batches_alone(shards):
    for shard in shards:
        assert set(counts(shard)) == {shard.batch_size}
    assert 0 <= shards[0].images - sum(map(sum, map(counts, shards))) < shards[0].batch_size * len(shards)


@given(sets(), st.integers(1, 6), st.integers(1, 12), st.integers(0, 60))
def test_another_division_goes_on_at_the_same_image(shards, num_shards, batch_size, delivered):
    old = shards[0]
    assume(num_shards * batch_size <= old.images)
    new = Epochs(images=old.images, batch_size=batch_size, last_batch=old.last_batch, num_shards=num_shards)
    found, (epoch, batch) = new.delivered(old, delivered), divmod(delivered, old.batches)
    images = batch * old.batch_size * old.num_shards
    if batch == 0:
        assert found == epoch * new.batches
    elif images % (num_shards * batch_size):
        assert found is None
    elif found < (epoch + 1) * new.batches:
        assert (new.epoch(found), new.places(found)[0]) == (epoch, images)
    else:  # all that is left is left out
        assert (old.last_batch, new.epoch(found), new.is_new(found)) == ("drop", epoch + 1, True)
    assert old.delivered(old, delivered) == delivered


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
