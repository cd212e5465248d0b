"""mixprec.data.loaders.epochs: batches, epochs and shards, against what is counted one image at a time."""

import dataclasses

import pytest
from chainer.iterators import SerialIterator
from hypothesis import assume, given
from hypothesis import strategies as st

from mixprec.data.loaders.epochs import LAST_BATCH, Epochs, Stages


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
    return list(range(*epochs.positions(number)))


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
        assert (new.epoch(found), new.positions(found)[0]) == (epoch, images)
    else:  # all that is left is left out
        assert (old.last_batch, new.epoch(found), new.is_new(found)) == ("drop", epoch + 1, True)
    assert old.delivered(old, delivered) == delivered


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


@st.composite
def staged(draw, ranks=None):
    """Stages of training, and the epochs of each but the last one."""
    images, num_shards = draw(st.integers(20, 50)), ranks or draw(st.integers(1, 3))
    last_batch = draw(st.sampled_from(LAST_BATCH))
    lengths, found, before = draw(st.lists(st.integers(1, 3), max_size=3)), [], (0, 0)
    for length in [*lengths, 1]:
        epochs = Epochs(
            images=images,
            batch_size=draw(st.integers(1, 20 // num_shards)),
            last_batch=last_batch,
            num_shards=num_shards,
            epochs_before=before[0],
            batches_before=before[1],
        )
        found.append(epochs)
        before = before[0] + length, before[1] + length * epochs.batches
    return Stages(tuple(found)), lengths


@given(staged())
def test_stages_are_one_after_the_other(drawn):
    """Against each stage alone, which counts from 0."""
    stages, lengths = drawn
    number = epoch = 0
    for stage, (each, length) in enumerate(zip(stages.epochs, [*lengths, 2], strict=True)):
        alone = dataclasses.replace(each, epochs_before=0, batches_before=0)
        for own in range(length * alone.batches):
            assert stages.of(number) == stage
            assert stages.at(number).epoch(number) == epoch + alone.epoch(own)
            assert stages.at(number).detail(number) == pytest.approx(epoch + alone.detail(own))
            assert stages.at(number).count_of_all(number) == alone.count_of_all(own)
            assert stages.at(number).is_new(number) == (number > 0 and own % alone.batches == 0)
            assert (each.count(number), each.positions(number)) == (alone.count(own), alone.positions(own))
            number += 1
        assert each.begin(epoch + length) == number
        epoch += length


@given(st.data(), st.integers(0, 60))
def test_stages_of_another_number_of_shards_go_on_at_the_same_image(data, delivered):
    old, lengths = data.draw(staged(ranks=2))
    new, before = [], (0, 0)
    for each, length in zip(old.epochs, [*lengths, 1], strict=True):
        one = {"batch_size": 2 * each.batch_size, "num_shards": 1}
        new.append(dataclasses.replace(each, **one, epochs_before=before[0], batches_before=before[1]))
        before = before[0] + length, before[1] + length * new[-1].batches
    assert Stages(tuple(new)).delivered(old, delivered) == delivered  # as many images in a batch of all
    halved, before = [], (0, 0)
    for each, length in zip(old.epochs, [*lengths, 1], strict=True):
        halved.append(dataclasses.replace(each, num_shards=1, epochs_before=before[0], batches_before=before[1]))
        before = before[0] + length, before[1] + length * halved[-1].batches
    found = Stages(tuple(halved)).delivered(old, delivered)
    assert Stages(tuple(halved)).at(found).epoch(found) >= old.at(delivered).epoch(delivered)
    if not old.at(delivered).is_new(delivered):
        stage = old.of(delivered)
        assert halved[stage].positions(found)[0] == old.epochs[stage].positions(delivered)[0]
