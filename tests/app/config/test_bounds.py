"""Every number of a config has a smallest and a largest value, and so have the same arguments in Python."""

import typing

import pytest

import mixprec
from mixprec.app.config import Config, ConfigError, load
from mixprec.base import bounds
from mixprec.base.declaration import keys
from mixprec.data.data_error import DataError
from mixprec.data.loaders.pillow import PillowIterator
from mixprec.data.loaders.synthetic import SyntheticIterator
from tests.app.config.refusal import refusal
from tests.data.loader_settings import objects

SMALL = """
model: {arch: resnet8, classes: 10}
data: {train: t, val: v}
optimizer: {lr: 0.5}
training: {batch_size: 32, epochs: 90}
"""
KEYS = keys(Config)


def kinds(kind):
    """The plain types in an annotation: of ``tuple[float, ...] | None`` float and NoneType."""
    return {kind} if not typing.get_args(kind) else {k for inner in typing.get_args(kind) for k in kinds(inner)}


HUGE = ["1" + 60 * "0", 400 * "9", 5000 * "9", "9e99", "1e999"]
NUMBERS = [name for name, key in KEYS.items() if kinds(key.type) & {int, float}]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(SMALL)
    return path


def test_the_walk_finds_the_numbers_of_the_schema():
    assert len(NUMBERS) > 35
    assert {"loss_scale.init_scale", "data.mean", "schedule.milestones", "optimizer.momentum", "training.seed"} < {
        *NUMBERS
    }


def test_every_number_of_a_config_has_a_smallest_and_a_largest_value(path):
    for name in NUMBERS:
        for number in (HUGE[0], f"-{HUGE[1]}", HUGE[2], f"-{HUGE[3]}"):
            assert_refused(path, name, number)


def assert_refused(path, name, number):
    key = KEYS[name]
    integer = kinds(key.type) <= {int, type(None)}
    count = 2 if name == "data.crop_area" else 3
    value = f"[{', '.join([number] * count)}]" if typing.get_origin(key.type) is tuple else number
    message = refusal(path, [f"{name}={value}"])
    assert len(message) < 400
    assert f"'{name}' is" in message or "cannot be read: an integer of" in message
    if f"'{name}' is" in message and not (integer and "e" in number):
        assert (key.limit or key.other).text in message


BEYOND = [
    ("loss_scale.hysteresis=2147483648", "an integer >= 1 and <= 2147483647"),
    ("data.threads=100000000", "an integer >= 1 and <= 1024"),
    ("data.size=100000000", "an integer >= 8 and <= 16384"),
    ("optimizer.lr=1e-300", "a number >= 1e-12 and <= 1000000"),  # 0 in float32: nothing is learned
    ("optimizer.momentum=0.99999999", "a number >= 0 and <= 0.999999, or null"),  # 1 in float32
    ("training.ema_decay=0.99999999", "a number > 0 and <= 0.999999, or null"),
    ("schedule.gamma=1.5", "a number > 0 and <= 1"),
    ("schedule.milestones=[1, 2000000]", "a list of numbers >= 0 and <= 1000000, each larger than the one before, "),
]


@pytest.mark.parametrize(("override", "allowed"), BEYOND)
def test_a_number_beyond_its_bound_is_one_line_with_the_bound(path, override, allowed):
    assert f"; allowed: {allowed}" in refusal(path, [override])


def test_a_list_of_numbers_has_a_largest_length(path):
    several = [*range(bounds.SEVERAL)]
    load(path, ["schedule.kind=step", f"schedule.milestones={several}"])
    with pytest.raises(ConfigError, match="at most 1024 of them"):
        load(path, ["schedule.kind=step", f"schedule.milestones={[*several, 1024]}"])


def test_pixels_that_are_infinite_in_float16_are_refused(path):
    load(path, ["data.std=[0.004, 1, 1]", "data.mean=[127, 0, 0]"])
    with pytest.raises(ConfigError, match="from -65504 to 65504, the range of float16"):
        load(path, ["data.std=[0.001, 1, 1]"])


@pytest.mark.parametrize("name", ["interval", "hysteresis", "patience"])
def test_a_dynamic_loss_scale_counts_to_the_largest_int32(name):
    scale = mixprec.DynamicLossScale(**{name: bounds.INT32})
    for overflow in (True, False, True):
        scale.adjust(overflow)
    with pytest.raises(ValueError, match=f"{name} must be .* to 2147483647; found 2147483648$"):
        mixprec.DynamicLossScale(**{name: bounds.INT32 + 1})


@pytest.mark.parametrize("name", ["init", "growth", "cap", "floor", "backoff"])
@pytest.mark.parametrize("value", [2**2000, 2.0**128, 2.0**-150], ids=["2^2000", "2^128", "2^-150"])
def test_a_loss_scale_is_a_number_of_float32(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be ") as caught:
        mixprec.DynamicLossScale(**{name: value})
    assert len(str(caught.value)) < 200
    with pytest.raises(ValueError, match=r"^value must be a positive power of two from "):
        mixprec.StaticLossScale(value)


REFUSED = [
    *({"size": 10**8}, {"size": 10**400}, {"threads": 10**8}, {"prefetch": 10**400}, {"shuffle_window": 2**31}),
    *({"std": (1e-300, 1, 1)}, {"mean": (1e300, 1, 1)}, {"mean": (0, float("nan"), 0)}, {"crop_area": (1e-300, 1)}),
]


@pytest.mark.parametrize("changes", REFUSED)
def test_a_loader_refuses_the_numbers_that_a_config_does(changes):
    with pytest.raises(DataError) as caught:
        PillowIterator(range(10), *objects(2, **changes))
    assert str(caught.value).startswith(next(iter(changes)))
    assert len(str(caught.value)) <= 1000


@pytest.mark.parametrize("changes", [{"size": 10**8}, {"classes": 10**400}, {"images": 2**31}])
def test_random_images_have_the_bounds_of_a_config(changes):
    settings = {"images": 10, "size": 8, "classes": 2, **changes}
    contents = objects(2, size=settings["size"])
    with pytest.raises(DataError, match=f"^{next(iter(changes))} .*must be"):
        SyntheticIterator(settings["images"], *contents, classes=settings["classes"], device="@numpy")
