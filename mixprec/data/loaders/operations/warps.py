"""Shears, translations and rotations: each pixel gets the colour of the pixel nearest to its source position.

Where a number falls on the border between two pixels, which is rare, DALI may take the other one.
"""

import math
from typing import ClassVar

from mixprec.data.loaders.operations.image_operation import LAST_BIN, Operation


class _Warp(Operation):
    """Its value is a matrix, six floats a, b, c, d, e, f.

    The pixel with the centre (x, y) gets the colour at (a x + b y + c, d x + e y + f), in pixels from the upper left
    corner.
    """

    kind = "warp"

    def row(self, value):
        return (0, *_as_pillow(*value[:3]), *_as_pillow(*value[3:]))

    def pillow(self, image, value):
        from PIL import Image

        return image.transform(image.size, Image.Transform.AFFINE, value, Image.Resampling.NEAREST)

    def dali(self, graph, pixels, matrix, number):
        return graph.fn.warp_affine(
            pixels, matrix=matrix, inverse_map=True, interp_type=graph.types.INTERP_NN, fill_value=0
        )


class _Shear(_Warp):
    strongest: ClassVar = {"rand": 0.3, "trivial": 0.99}  # pixels a row

    def __init__(self, axis):
        self.name, self._axis = f"shear_{axis}", axis

    def value(self, policy, number, sign, size):
        return _moving(self._axis, 1.0, sign * self.strongest[policy] * number / LAST_BIN, 0.0)


class _Translation(_Warp):
    """By whole pixels; with RandAugment up to 150 of 331."""

    def __init__(self, axis):
        self.name, self._axis = f"translate_{axis}", axis

    def value(self, policy, number, sign, size):
        # One division, so that it is exact where the result is.
        farthest, parts = (150 * size, 331) if policy == "rand" else (32, 1)
        return _moving(self._axis, 1.0, 0.0, float(-sign * int(farthest * number / (parts * LAST_BIN))))


class _Rotation(_Warp):
    """Counter-clockwise about the centre; sines and cosines are rounded as in Pillow, to 15 digits."""

    name = "rotate"
    strongest: ClassVar = {"rand": 30, "trivial": 135}  # degrees

    def value(self, policy, number, sign, size):
        angle, centre = -math.radians(sign * self.strongest[policy] * number / LAST_BIN), size / 2
        cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
        return (cos, sin, centre - (cos + sin) * centre, -sin, cos, centre - (cos - sin) * centre)


def _moving(axis, own, other, always):
    """The matrix along one axis: coefficients of this axis and of the other, and a constant, in pixels."""
    return (own, other, always, 0.0, 1.0, 0.0) if axis == "x" else (1.0, 0.0, 0.0, other, own, always)


def _as_pillow(x, y, moved):
    """Rounds to multiples of 1/65536, as Pillow does: the coefficients, and the values at the centre of pixel 0."""
    first, x, y = (math.floor(value * 65536 + 0.5) / 65536 for value in (moved + (x + y) / 2, x, y))
    return x, y, first - (x + y) / 2


OPERATIONS = (_Shear("x"), _Shear("y"), _Translation("x"), _Translation("y"), _Rotation())
