"""Counts gradients by their position in the range of FP16, on their device.

:class:`mixprec.training.GradientHistogram` calls it at its trigger.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from chainer import backend
from chainer.backends import cuda

# FP16 rounds to nearest, ties to even.
LARGEST_FLUSHED = 2.0**-25  # half the smallest subnormal: magnitudes up to this become zero
SMALLEST_NORMAL = 2.0**-14
SMALLEST_OVERFLOW = 65520.0  # half way from the largest number, 65504, to 2^16: from here on a magnitude becomes inf

LOWEST, HIGHEST = -149, 127  # binades of FP32, subnormal numbers included


class Regions(NamedTuple):
    """Numbers of values in the regions of FP16; exact zeros are in no region."""

    flushed: int
    subnormal: int
    normal: int
    overflow: int


@dataclasses.dataclass(frozen=True)
class Counts:
    """The numbers of gradients of a layer, or of all layers, in each part of the range.

    Attributes:
        zeros: exact zeros.
        not_finite: inf and NaN; they are included in ``overflow``, too.
        scaled: the regions of the gradients times the loss scale.
        unscaled: the regions of the gradients themselves.
        binades: ``binades[i]`` counts the gradients of 2^(LOWEST + i) <= magnitude < 2^(LOWEST + i + 1).
    """

    zeros: int
    not_finite: int
    scaled: Regions
    unscaled: Regions
    binades: np.ndarray

    @property
    def values(self):
        """Number of all values."""
        return self.zeros + sum(self.scaled)


@dataclasses.dataclass(frozen=True)
class Summary:
    """The counts of one step.

    Attributes:
        scale: the loss scale, a power of two.
        layers: :class:`Counts` by path of the link, in the order of its parameters.
        total: :class:`Counts` of all layers.
    """

    scale: float
    layers: dict[str, Counts]
    total: Counts

    @property
    def shift(self):
        """log2 of the scale: the number of binades by which it shifts every gradient."""
        return math.frexp(self.scale)[1] - 1


def summarize(gradients, scale):
    """Counts gradients; only the counts are read from the device.

    Args:
        gradients: pairs ``(name, array)``, the name as in ``namedparams``, the array float32 and unscaled.
        scale: the loss scale, a power of two.

    Returns:
        Summary
    """
    layers = {}
    for name, array in gradients:
        path = name.rpartition("/")[0] or "/"
        layers[path] = layers.get(path, 0) + cuda.to_cpu(_count(array, scale))
    total = sum(layers.values(), start=np.zeros(_LENGTH, np.int64))
    return Summary(scale, {path: _counts(numbers) for path, numbers in layers.items()}, _counts(total))


_BINADES = HIGHEST - LOWEST + 1
_LENGTH = 2 + 4 + 4 + _BINADES  # zeros, not finite, regions twice, binades


def _count(array, scale):
    xp = backend.get_array_module(array)
    magnitude = xp.abs(array).astype(np.float64).ravel()  # the product with any scale is exact in FP64
    zero, finite = magnitude == 0, xp.isfinite(magnitude)
    numbers = [zero.sum(), (~finite).sum(), *_regions(magnitude, zero, scale), *_regions(magnitude, zero, 1.0)]
    # Slot 0 is for zeros, inf and NaN, which are in no binade.
    slots = xp.where(zero | ~finite, 0, xp.frexp(magnitude)[1] - LOWEST)
    return xp.concatenate([xp.stack(numbers), xp.bincount(slots, minlength=1 + _BINADES)[1:]])


def _regions(magnitude, zero, scale):
    scaled = magnitude * scale
    flushed, small, fits = scaled <= LARGEST_FLUSHED, scaled < SMALLEST_NORMAL, scaled < SMALLEST_OVERFLOW
    # Comparisons with NaN are false, so it is in the last region.
    return [(flushed & ~zero).sum(), (small & ~flushed).sum(), (fits & ~small).sum(), (~fits).sum()]


def _counts(numbers):
    zeros, not_finite, *regions = numbers[:10].tolist()
    return Counts(zeros, not_finite, Regions(*regions[:4]), Regions(*regions[4:]), numbers[10:])
