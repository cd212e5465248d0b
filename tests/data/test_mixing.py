"""Mixup and CutMix beside the formulas of timm, written here once more, in float64."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.data.mixing import Mixing
from tests.backends.primitive_cases import FLOAT32, STORAGE, arrays, assert_close, exact
from tests.cases import tries


def timms_box(height, width, share, cy, cx):
    """``rand_bbox`` of timm.data.mixup, with its two random integers as arguments: top, bottom, left, right."""
    ratio = math.sqrt(1 - share)
    cut_h, cut_w = int(height * ratio), int(width * ratio)
    top, bottom = np.clip(cy - cut_h // 2, 0, height), np.clip(cy + cut_h // 2, 0, height)
    left, right = np.clip(cx - cut_w // 2, 0, width), np.clip(cx + cut_w // 2, 0, width)
    return top, bottom, left, right


def timms_images(x, share, box=None):
    """``Mixup._mix_batch`` of timm: a batch with itself in reversed order, and the share with ``correct_lam``."""
    y = exact(x)
    if box is None:
        return y * share + y[::-1] * (1 - share), share
    top, bottom, left, right = box
    y = y.copy()
    y[:, :, top:bottom, left:right] = exact(x)[::-1, :, top:bottom, left:right]
    return y, 1 - (bottom - top) * (right - left) / (x.shape[2] * x.shape[3])


@settings(max_examples=tries(60))
@given(
    count=st.integers(1, 5),
    size=st.sampled_from([(8, 8), (7, 12), (1, 1)]),
    alphas=st.sampled_from([(0.2, 0.0), (0.0, 1.0), (0.8, 1.0)]),
    dtype=st.sampled_from(STORAGE),
    padded=st.booleans(),
    number=st.integers(0, 10**9),
    seed=st.integers(0, 2**32 - 1),
)
def test_images_and_shares_are_timms(count, size, alphas, dtype, padded, number, seed):
    rng = np.random.default_rng(seed)
    x, t = arrays(rng, (count, 4 if padded else 3, *size), dtype), rng.integers(0, 9, count).astype(np.int32)
    mixing = Mixing(*alphas, seed=seed)
    mixture = mixing.draw(number, *size)
    top, left, bottom, right = mixture.box
    box = None if mixture.share < 1 else (top, bottom, left, right)
    expected, target = timms_images(x, exact(np.float32(mixture.share)), box)
    y, labels, second, share = mixing(x, t, number)
    assert_close(y, expected, dtype, 4 * np.finfo(np.float32).eps * (np.abs(exact(x)) + np.abs(exact(x)[::-1])))
    assert (share.dtype, share.shape) == (FLOAT32, ())
    assert share == np.float32(target)
    assert (labels.tolist(), second.tolist()) == (t.tolist(), t[::-1].tolist())
    assert y.transpose(0, 2, 3, 1).flags.c_contiguous


@pytest.mark.parametrize(("height", "width"), [(224, 224), (32, 48), (5, 3)])
def test_boxes_are_timms(height, width):
    """With the share and the centre that were drawn: the same generator draws them here."""
    mixing = Mixing(cutmix=1.0, seed=3, rank=2)
    for number in range(200):
        random = np.random.Generator(np.random.Philox(key=[3, number], counter=[0, 0, 1, 2]))
        random.random(2)
        share, (y, x) = random.beta(1.0, 1.0), random.random(2)
        top, bottom, left, right = timms_box(height, width, share, int(y * height), int(x * width))
        assert mixing.draw(number, height, width).box == (top, left, bottom, right)


def test_probabilities():
    mixing = Mixing(0.2, 1.0, cutmix_probability=0.3, probability=0.6, seed=5)
    drawn = [mixing.draw(number, 32, 32) for number in range(4000)]
    plain = sum(each.share == 1 and each.box == (0, 0, 0, 0) for each in drawn) / 4000
    mixed = sum(each.share < 1 for each in drawn) / 4000
    # Some boxes of CutMix are empty: those whose sides are below 2 pixels, 1 - share being below (2 / 32)^2.
    assert abs(plain - 0.4) < 0.04
    assert abs(mixed - 0.6 * 0.7) < 0.03
    assert all(each.target == 1 for each in drawn if each.box == (0, 0, 0, 0) and each.share == 1)


def test_numbers_follow_from_seed_rank_and_batch():
    def drawn(**keywords):
        mixing = Mixing(0.2, 1.0, **keywords)
        return [mixing.draw(number, 32, 32) for number in (7, 0, 3, 7)]

    first = drawn(seed=1)
    assert first == drawn(seed=1)
    assert first[0] == first[3]
    assert first[0] != first[1]
    assert first != drawn(seed=2)
    assert first != drawn(seed=1, rank=1)


TEXTS = [
    ({"mixup": 0.2}, "Mixup (alpha 0.2)"),
    ({"cutmix": 1, "probability": 0.75}, "CutMix (alpha 1); 25% of the batches are not mixed"),
    (
        {"mixup": 0.2, "cutmix": 1, "cutmix_probability": 0.3},
        "CutMix (alpha 1) in 30% of the batches, Mixup (alpha 0.2) in the others",
    ),
]


@pytest.mark.parametrize(("arguments", "text"), TEXTS)
def test_text(arguments, text):
    assert str(Mixing(**arguments)) == text


def test_what_is_left_alone_may_be_infinite():
    x = np.array([1, np.inf], np.float16).reshape(2, 1, 1, 1)
    mixing = Mixing(mixup=1.0, probability=0.0)
    y, _, _, share = mixing(x, np.zeros(2, np.int32), 0)
    assert (y.ravel().tolist(), share) == ([1, np.inf], 1)


MESSAGES = [
    ({}, ValueError, "mixup or cutmix must be above 0; found 0 for both"),
    ({"mixup": -1}, ValueError, "mixup must be a finite number, 0 or more; found -1"),
    ({"cutmix": "1"}, ValueError, "cutmix must be a finite number, 0 or more; found '1'"),
    ({"mixup": 1, "probability": 2}, ValueError, "probability must be from 0 to 1; found 2.0"),
    ({"mixup": 1, "seed": 2**32}, ValueError, "seed must be from 0 to 2^32 - 1; found 4294967296"),
    ({"mixup": 1, "seed": 0.5}, ValueError, "seed must be a whole number, 0 or more; found 0.5"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), MESSAGES)
def test_messages(arguments, error, message):
    with pytest.raises(error) as caught:
        Mixing(**arguments)
    assert message in str(caught.value)
