"""RandAugment and TrivialAugment: the operations that an image gets, and their magnitudes.

RandAugment (Cubuk et al. 2020, arXiv:1909.13719) applies a few operations of one strength, TrivialAugment Wide (Mueller
and Hutter 2021, arXiv:2103.10158) one operation of random strength. :mod:`mixprec.data.loaders.operations` has the
operations.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

from mixprec.base.declaration import Limit, between, key
from mixprec.data.loaders.operations import EXTRA, OPERATIONS, available, kinds
from mixprec.data.loaders.operations.image_operation import LAST_BIN
from mixprec.data.loaders.typed import Typed
from mixprec.data.loaders.uniforms import uniforms

SOURCE, COUNTER, IS_OF_PIXELS = {"name": "steps", "ndim": 2}, 2, True  # as of mixprec.data.loaders.augmentation.PARTS
_NUMBERS = 5  # for each operation: which, whether at all, sign, and two for the magnitude


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keys(Typed):
    """The policy, and the further settings of RandAugment."""

    augment: str = key(
        "Training: [RandAugment or TrivialAugment Wide](recipes.md#augmentation-by-the-loaders), after crop and flip.",
        "none",
        choices=("none", "rand", "trivial"),
        aliases=("auto_augment", "aa"),
    )
    augment_operations: int = key(
        "RandAugment: number of operations an image.", 2, limit=between(1, len(OPERATIONS)), aliases=("num_ops",)
    )
    augment_magnitude: int = key("RandAugment: their strength.", 9, limit=between(0, LAST_BIN), aliases=("magnitude",))
    augment_deviation: float = key("RandAugment: standard deviation of the strength.", 0.0, limit=between(0, LAST_BIN))
    augment_probability: float = key("RandAugment: probability of each operation.", 1.0, limit=between(0, 1))
    extra_operations: tuple[str, ...] = key(
        "RandAugment: operations of timm in addition to torchvision's.",
        (),
        limit=Limit(
            f"from {', '.join(EXTRA)}, none of them twice",
            lambda names: len(set(names)) == len(names) and set(names) <= EXTRA.keys(),
        ),
    )


#: Settings that only RandAugment has, and their values without it.
RAND_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Keys) if field.name.startswith("augment_")}


class Step(NamedTuple):
    """One operation on an image.

    Attributes:
        kind: kind of the operation.
        value: from :meth:`~mixprec.data.loaders.operations.image_operation.Operation.value`.
    """

    kind: str
    value: object = None


def impossible(settings):
    """Yields a message for each setting that excludes another."""
    for name, default in {**RAND_DEFAULTS, "extra_operations": ()}.items():
        if settings.augment != "rand" and getattr(settings, name) != default:
            yield f"{name} {getattr(settings, name)}: only with augment 'rand'"


def described(settings):
    """Returns a description of the policy."""
    if settings.augment == "trivial":
        return "TrivialAugment Wide"
    deviation = f" +- {settings.augment_deviation:g}" if settings.augment_deviation else ""
    extra = f", {', '.join(settings.extra_operations)} among them" if settings.extra_operations else ""
    return (
        f"RandAugment, {settings.augment_operations} operations of strength {settings.augment_magnitude}{deviation}, "
        f"each with probability {settings.augment_probability:g}{extra}"
    )


def draw(spec, epoch, position):
    """Draws the operations on an image.

    Args:
        spec (BatchSpec): Its policy, image size and seed are used.
        epoch (int): Number of the epoch.
        position (int): Position of the image in the order of the epoch.

    Returns:
        list of Step: ``augment_operations`` of them; one with TrivialAugment.
    """
    settings, found = spec.augmentation, []
    numbers = iter(uniforms(_NUMBERS * _count(settings), spec, epoch, COUNTER, position))
    names = tuple(available(settings.extra_operations))
    for which, skipped, sign, *strength in zip(*[numbers] * _NUMBERS, strict=True):
        operation = names[int(which * len(names))]
        if skipped >= settings.augment_probability:
            operation = "identity"
        found.append(
            step(settings.augment, operation, _bin(settings, *strength), -1 if sign < 0.5 else 1, spec.crop.size)
        )
    return found


def step(policy, operation, number, sign, size):
    """Returns the :class:`Step` of an operation.

    Args:
        policy (str): ``'rand'`` or ``'trivial'``.
        operation (str): Its name.
        number (int): The bin of the magnitude, 0 to 30.
        sign (int): 1 or -1, for operations that have two directions.
        size (int): Height and width of the image.

    Returns:
        Step: What is done.

    Example:
        >>> step("rand", "brightness", 10, -1, 224)
        Step(kind='brightness', value=0.7)
        >>> step("trivial", "translate_x", 30, 1, 224)
        Step(kind='warp', value=(1.0, 0.0, -32.0, 0.0, 1.0, 0.0))
    """
    operation = available(EXTRA)[operation]
    return Step(operation.kind, operation.value(policy, number, sign, size))


def pillow(image, steps):
    """Returns an image of the same size after steps, one after the other; both in RGB, of Pillow."""
    known = kinds(EXTRA)
    for kind, value in steps:
        image = known[kind].pillow(image, value)
    return image


def rows(spec, steps):
    """Returns the steps for :func:`dali`: float32 (n, 8), a row a step: number of the kind, number, and matrix."""
    import numpy as np

    known = kinds(spec.augmentation.extra_operations)
    return np.array([(list(known).index(kind), *known[kind].row(value)) for kind, value in steps], np.float32)


def dali(dali, pixels, rows, spec):
    """Adds the steps to the graph, which must be defined with ``enable_conditionals``.

    Args:
        dali (module): ``nvidia.dali``.
        pixels (DataNode): uint8 (size, size, 3), RGB.
        rows (DataNode): Steps of each image.
        spec (BatchSpec): Number of steps, and the size.

    Returns:
        DataNode: As ``pixels``.
    """
    from nvidia.dali.auto_aug.core import select

    from mixprec.data.loaders.dali_arithmetic import DaliArithmetic

    graph, known = DaliArithmetic(dali, spec.crop.size), kinds(spec.augmentation.extra_operations)
    operations = [functools.partial(operation.dali, graph) for operation in known.values()]
    for number in range(_count(spec.augmentation)):
        kind = dali.fn.cast(rows[number, 0], dtype=dali.types.INT32)
        matrix = dali.fn.reshape(rows[number, 2:8], shape=[2, 3])
        pixels = select(operations, kind, pixels, matrix, rows[number, 1])
    return pixels


def _count(settings):
    return settings.augment_operations if settings.augment == "rand" else 1


def _bin(settings, first, second):
    """The bin of the magnitude: uniform for TrivialAugment, normal around the setting for RandAugment."""
    if settings.augment == "trivial":
        return int(first * (LAST_BIN + 1))
    normal = math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)  # Box and Muller 1958
    return min(max(round(settings.augment_magnitude + settings.augment_deviation * normal), 0), LAST_BIN)
