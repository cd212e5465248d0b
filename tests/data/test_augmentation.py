"""RandAugment, TrivialAugment and random erasing: what is drawn, and what Pillow and DALI make of it.

The references are the formulas of torchvision 0.28 (``transforms/v2``), written out here in float64 with NumPy.
"""

import functools
import math

import numpy as np
import pytest
from PIL import Image

from mixprec.data.loaders import erasing, random_policies
from mixprec.data.loaders.augmentation import PARTS, DrawnBatches
from mixprec.data.loaders.operations import EXTRA, OPERATIONS
from mixprec.data.loaders.random_policies import Step, step
from mixprec.data.loaders.uniforms import CROP
from tests.cases import first
from tests.data import loader_settings

BINS = 31
WARPS = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
EVERY = (*OPERATIONS, *EXTRA)
SIGNED = (*WARPS, "brightness", "color", "contrast", "sharpness")
spec_of = functools.partial(loader_settings.spec_of, size=32)


def published(policy, operation, size):
    """The 31 magnitudes of ``_AUGMENTATION_SPACE``, in float64."""
    if policy == "rand":
        highest = {"shear": 0.3, "translate": 150 / 331 * size, "rotate": 30, "posterize": 4, "enhance": 0.9}
    else:
        highest = {"shear": 0.99, "translate": 32, "rotate": 135, "posterize": 6, "enhance": 0.99}
    if operation == "posterize":
        return (8 - np.arange(BINS) / ((BINS - 1) / highest["posterize"])).round()
    if operation == "solarize":
        return 255 * np.linspace(1, 0, BINS)
    if operation == "solarize_add":  # of timm: _solarize_add_level_to_arg, whose levels are 0 to 10
        return np.array([min(128, int(round(number / 3 / 10 * 110, 9))) for number in range(BINS)])
    kind = operation.partition("_")[0]
    return np.linspace(0, highest[kind if kind in highest else "enhance"], BINS)


def affine(angle=0, translate=(0, 0), shear=(0, 0), centre=(0, 0)):
    """``_get_inverse_affine_matrix``, by a product of matrices and its inverse."""

    def moved(x, y):
        return np.array([[1, 0, x], [0, 1, y], [0, 0, 1.0]])

    turn, sx, sy = math.radians(angle), *map(math.radians, shear)
    rotation = np.array([[math.cos(turn), -math.sin(turn), 0], [math.sin(turn), math.cos(turn), 0], [0, 0, 1]])
    shear_y = np.array([[1, 0, 0], [-math.tan(sy), 1, 0], [0, 0, 1]])
    shear_x = np.array([[1, -math.tan(sx), 0], [0, 1, 0], [0, 0, 1]])
    whole = moved(*translate) @ moved(*centre) @ rotation @ shear_y @ shear_x @ moved(*(-c for c in centre))
    return np.linalg.inv(whole)[:2]


def published_matrix(operation, magnitude, size):
    if operation == "rotate":  # Pillow's rotate turns counter-clockwise, by the matrix of the other direction
        return affine(angle=-magnitude, centre=(size / 2, size / 2))
    degrees = math.degrees(math.atan(magnitude))
    return {
        "shear_x": affine(shear=(degrees, 0)),
        "shear_y": affine(shear=(0, degrees)),
        "translate_x": affine(translate=(int(magnitude + 1e-9 * np.sign(magnitude)), 0)),
        "translate_y": affine(translate=(0, int(magnitude + 1e-9 * np.sign(magnitude)))),
    }[operation]


@pytest.mark.parametrize(("policy", "size"), [("rand", 32), ("rand", 331), ("trivial", 32)])
@pytest.mark.parametrize("operation", EVERY)
def test_steps_are_those_that_are_published(policy, operation, size):
    for number in range(BINS):
        for sign in (1, -1):
            kind, value = step(policy, operation, number, sign, size)
            if operation in ("identity", "auto_contrast", "equalize", "invert"):
                assert (kind, value) == (operation, None)
                continue
            magnitude = published(policy, operation, size)[number] * (sign if operation in SIGNED else 1)
            if operation in WARPS:
                expected = published_matrix(operation, magnitude, size)
                np.testing.assert_allclose(np.reshape(value, (2, 3)), expected, rtol=0, atol=1e-11)
                assert kind == "warp"
            else:
                assert kind == operation
                assert value == pytest.approx(magnitude + (operation in SIGNED), rel=1e-12, abs=1e-12)


def sampled(matrix, size):
    """Where a warp takes each pixel: columns and rows, float64 (size, size) each."""
    y, x = np.mgrid[:size, :size] + 0.5
    a, b, c, d, e, f = matrix
    return a * x + b * y + c, d * x + e * y + f


def is_clear(matrix, size):
    """Pixels whose place is more than 1/1000 of a pixel beside a border; Pillow has 16 bits behind the point."""
    return np.all([abs(place - np.rint(place)) > 1e-3 for place in sampled(matrix, size)], 0)


def gray(x):
    return np.floor((x @ [19595, 38470, 7471] + 32768) / 65536)[..., None]  # Pillow's L, which torchvision takes


def blend(none, x, factor):
    """``ImagingBlend``, which cuts off what is behind the point."""
    return np.floor(np.clip(none + factor * (x - none), 0, 255) + 1e-5)


def reference(x, operation, value):
    """One operation on float64 (H, W, 3), 0 to 255."""
    if operation == "warp":
        size = len(x)
        column, row = (np.floor(place).astype(int) for place in sampled(value, size))
        inside = (column >= 0) & (column < size) & (row >= 0) & (row < size)
        return np.where(inside[..., None], x[row.clip(0, size - 1), column.clip(0, size - 1)], 0)
    if operation == "brightness":
        return blend(0, x, value)
    if operation == "color":
        return blend(gray(x), x, value)
    if operation == "contrast":
        return blend(np.floor(gray(x).mean() + 0.5), x, value)
    if operation == "sharpness":
        smooth = x.copy()
        around = sum(x[i : len(x) - 2 + i, j : len(x) - 2 + j] for i in range(3) for j in range(3))
        smooth[1:-1, 1:-1] = np.floor((around + 4 * x[1:-1, 1:-1]) / 13 + 0.5)
        return blend(smooth, x, value)
    if operation == "posterize":
        return x - x % 2 ** (8 - value)
    if operation == "solarize":
        return np.where(x < value, x, 255 - x)
    if operation == "invert":
        return 255 - x
    if operation == "solarize_add":
        return np.where(x < 128, np.minimum(x + value, 255), x)
    if operation == "auto_contrast":
        low, high = x.min((0, 1)), x.max((0, 1))
        return np.where(high > low, np.floor((x - low) * 255 / np.maximum(high - low, 1) + 1e-9), x)
    if operation == "equalize":
        return np.stack([equalized(channel) for channel in np.moveaxis(x, 2, 0)], 2)
    return x


def equalized(x):
    count = np.bincount(x.astype(int).ravel(), minlength=256)
    size = (x.size - count[count > 0][-1]) // 255
    if size == 0:
        return x
    table = np.clip((np.cumsum(count) - count + size // 2) // size, 0, 255)
    return table[x.astype(int)]


def pictures(size):
    """uint8 (4, size, size, 3): a ramp, noise, dark noise, and one colour."""
    y, x = np.mgrid[:size, :size] * 64 // size
    noise = np.random.default_rng(0).integers(0, 256, (size, size, 3))
    images = (np.stack([y * 3 + 20, x * 3 + 30, 200 - x - y], -1), noise, noise // 3 + 30, np.full_like(noise, 77))
    return np.stack(images).astype(np.uint8)


def every_step(policy, operation, size):
    return [step(policy, operation, number, sign, size) for number in (0, 1, 9, 15, 22, 30) for sign in (1, -1)]


@pytest.mark.parametrize(("policy", "size"), [("rand", 64), ("trivial", 16)])
@pytest.mark.parametrize("operation", EVERY)
def test_operations_of_pillow_are_the_formulas(policy, size, operation):
    """Within one level where a product may be rounded otherwise; not where a place is on the border of two pixels."""
    for image in pictures(size):
        for each in every_step(policy, operation, size):
            found = np.asarray(random_policies.pillow(Image.fromarray(image), [each]), np.float64)
            difference = np.abs(found - reference(image.astype(np.float64), *each))
            if each.kind == "warp":
                assert difference[is_clear(each.value, len(image))].max() == 0
            elif operation in ("identity", "posterize", "solarize", "equalize", *EXTRA):
                assert difference.max() == 0
            else:
                assert difference.max() <= 1
                assert np.mean(difference > 0) < 0.12


@pytest.mark.parametrize(("policy", "size"), first(1, [("rand", 64), ("trivial", 16)]))
@pytest.mark.parametrize("operation", first(6, reversed(EVERY)))  # the last have most arithmetic of our own
def test_operations_of_dali_are_those_of_pillow(policy, size, operation, monkeypatch):
    dali = pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    wanted = every_step(policy, operation, size)
    batch = [(image, each) for image in pictures(size) for each in wanted]
    monkeypatch.setattr(random_policies, "draw", lambda spec, epoch, place: [batch[place][1]])
    spec = spec_of(augment="trivial", size=size, extra_operations=tuple(EXTRA))
    source = DrawnBatches(spec, lambda number: (0, range(len(batch))), 0).source(random_policies)

    @dali.pipeline_def(batch_size=len(batch), num_threads=1, device_id=None, enable_conditionals=True)
    def graph():
        images = [image for image, _ in batch]
        pixels = dali.fn.external_source(lambda _: images, batch=True, layout="HWC", dtype=dali.types.UINT8)
        rows = dali.fn.external_source(source, batch=True, dtype=dali.types.FLOAT, **random_policies.SOURCE)
        return random_policies.dali(dali, pixels, rows, spec)

    pipeline = graph()
    pipeline.build()
    (output,) = pipeline.run()
    for found, (image, each) in zip(np.asarray(output.as_tensor()), batch, strict=True):
        expected = np.asarray(random_policies.pillow(Image.fromarray(image), [each]), np.int64)
        difference = np.abs(found.astype(np.int64) - expected)
        if each.kind == "warp":
            assert np.mean(difference > 0) < 0.002
        else:
            assert difference.max() <= (operation in ("auto_contrast", "equalize"))


# What is drawn


def test_numbers_of_a_seed_never_change():
    """A run that goes on with a later version gets the same images."""
    rand = spec_of(augment="rand", augment_deviation=1.0, augment_probability=0.9, seed=7, erase=1.0)
    found = [tuple(kind for kind, _ in random_policies.draw(rand, 2, place)) for place in range(6)]
    assert found == EXPECTED_KINDS
    assert random_policies.draw(spec_of(augment="trivial", seed=7), 2, 4) == EXPECTED_TRIVIAL
    assert [erasing.draw(rand, 2, place) for place in range(3)] == EXPECTED_BOXES


EXPECTED_KINDS = [
    *(("auto_contrast", "brightness"), ("equalize", "auto_contrast"), ("warp", "warp"), ("warp", "warp")),
    *(("solarize", "brightness"), ("auto_contrast", "warp")),
]
EXPECTED_TRIVIAL = [Step(kind="solarize", value=51.0)]
EXPECTED_BOXES = [(7, 11, 10, 11), (2, 0, 6, 17), (2, 19, 13, 8)]


def test_each_augmentation_has_random_numbers_of_its_own():
    assert len({CROP, 1, *(part.COUNTER for part in PARTS)}) == 2 + len(PARTS)  # 1 is that of Mixup and CutMix


def test_draws_depend_on_seed_epoch_and_place_alone():
    spec, other = spec_of(augment="rand", erase=1.0), spec_of(augment="rand", erase=1.0, batch_size=2, num_shards=2)

    def drawn(spec, epoch, place):
        return tuple(random_policies.draw(spec, epoch, place)), erasing.draw(spec, epoch, place)

    assert drawn(spec, 3, 5) == drawn(other, 3, 5)
    places = [(epoch, place) for epoch in range(5) for place in range(20)]
    assert len({drawn(spec, *each) for each in places}) == 100
    assert drawn(spec, 3, 5) != drawn(spec_of(augment="rand", erase=1.0, seed=2), 3, 5)


def fixed(monkeypatch, *numbers):
    """Makes these the random numbers, five for each operation."""
    monkeypatch.setattr(random_policies, "uniforms", lambda count, *_: [*numbers][:count])


def test_one_operation_from_its_numbers(monkeypatch):
    brightness = (list(OPERATIONS).index("brightness") + 0.5) / len(OPERATIONS)
    trivial = spec_of(augment="trivial")
    for strength, number in ((0.0, 0), (0.5, 15), (1 - 2**-53, 30)):
        fixed(monkeypatch, brightness, 0.99, 0.5, strength, 0.0)
        assert random_policies.draw(trivial, 0, 0) == [Step("brightness", 1 + 0.99 * number / 30)]
    fixed(monkeypatch, brightness, 0.99, 0.49, 0.5, 0.0)  # the sign
    assert random_policies.draw(trivial, 0, 0) == [Step("brightness", 1 - 0.99 / 2)]
    rand = spec_of(augment="rand", augment_operations=1, augment_probability=0.75, augment_deviation=2.0)
    one_away = 1 - math.exp(-0.5)  # Box and Muller: a distance of one deviation
    for skipped, second, number in ((0.0, 0.0, 11), (0.7499, 0.5, 7), (0.0, 0.25, 9)):
        fixed(monkeypatch, brightness, skipped, 0.5, one_away, second)
        (found,) = random_policies.draw(rand, 0, 0)
        assert (found.kind, found.value) == ("brightness", pytest.approx(1 + 0.9 * number / 30))
    fixed(monkeypatch, brightness, 0.75, 0.5, one_away, 0.0)
    assert random_policies.draw(rand, 0, 0) == [Step("identity")]


def test_extra_operations_are_drawn_only_where_they_are_named():
    def drawn(**settings):
        rand = spec_of(augment="rand", augment_operations=4, **settings)
        return [random_policies.draw(rand, 0, place) for place in range(300)]

    kinds = [each.kind for steps in drawn(extra_operations=tuple(EXTRA)) for each in steps]
    for name in EXTRA:  # each as often as one of the others
        assert abs(kinds.count(name) - 1200 / len(EVERY)) < 5 * math.sqrt(1200 / len(EVERY))
    assert not {each.kind for steps in drawn() for each in steps} & EXTRA.keys()


def test_strengths_are_clipped():
    found = {
        round(abs(value - 1) / 0.9 * 30)
        for magnitude in (0, 30)
        for place in range(300)
        for kind, value in random_policies.draw(
            spec_of(augment="rand", augment_magnitude=magnitude, augment_deviation=1.0, augment_operations=4), 0, place
        )
        if kind == "color"
    }
    assert found >= {0, 1, 29, 30}
    assert found <= {0, 1, 2, 3, 4, 26, 27, 28, 29, 30}


def test_boxes_are_those_of_the_formula():
    """Area 0.02 to 0.33 of the image, sides from their ratio, and each place in reach."""
    size = 100
    for area, ratio in ((0.0, 0.5), (0.5, 0.2), (0.9, 0.9)):
        wanted = (0.02 + 0.31 * area) * size**2
        aspect = 0.3 * (3.3 / 0.3) ** ratio
        height, width = round(math.sqrt(wanted * aspect)), round(math.sqrt(wanted / aspect))
        assert erasing.box(size, [area, ratio, 0.0, 0.0]) == (0, 0, height, width)
        last = 1 - 2**-53
        assert erasing.box(size, [area, ratio, last, last]) == (size - height, size - width, height, width)
    too_tall = [0.9999, 0.9999, 0, 0]  # 104 rows of 100
    assert erasing.box(size, too_tall) == (0, 0, 0, 0)
    assert erasing.box(size, [*too_tall, 0.0, 0.5, 0.5, 0.5]) == (43, 43, 14, 14)


def test_boxes_are_drawn_as_often_as_asked_for():
    spec = spec_of(erase=0.25, size=64)
    boxes = np.array([erasing.draw(spec, 0, place) for place in range(4000)])
    erased = boxes[boxes[:, 2] > 0]
    assert abs(len(erased) / 4000 - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 4000)
    top, left, height, width = erased.T
    assert (top + height).max() <= 64
    assert (left + width).max() <= 64
    area = height * width / 64**2
    assert 0.015 < area.min() < 0.03 < 0.3 < area.max() < 0.34
    assert (height / width).min() < 0.5 < 2 < (height / width).max()
