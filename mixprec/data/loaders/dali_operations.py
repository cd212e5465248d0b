"""The operations of augmentation and erasing, in DALI's graph, on the CPU or on a GPU.

What is done to each image is drawn in Python, as for Pillow, and comes through an external source; of DALI's own
policies (``nvidia.dali.auto_aug``) only the choice between operations is used, as its operations are others. Colours
are those of Pillow within one level; and where a number falls on the border between two pixels, which is rare, a warp
may take the other one.
"""

import math

import numpy as np

from mixprec.data.loaders.augmentation import steps
from mixprec.data.loaders.erasing import erased_box

_GRAY = (19595 / 65536, 38470 / 65536, 7471 / 65536)  # as Pillow converts RGB to L
_SMOOTH = ((1, 1, 1), (1, 5, 1), (1, 1, 1))  # PIL.ImageFilter.SMOOTH, the sum being 13


class DrawnBatches:
    """Sources for DALI's ``external_source``: what is done to the images of each batch.

    Args:
        spec (BatchSpec): Augmentation and erasing.
        places (callable): From the number of a batch to ``(epoch, places of its images)``.
        first (int): Number of the batch of DALI's first iteration.
    """

    def __init__(self, spec, places, first):
        self._spec, self._places, self._first = spec, places, first
        self._began = {}  # DALI's first iteration, which after a resume is not 0, of each source

    def steps(self, iteration):
        """Returns of each image float32 (n, 8), a row a step: number of ``KINDS``, number, and matrix."""
        return [
            np.array([_row(each) for each in steps(self._spec, epoch, place)], np.float32)
            for epoch, place in self._of("steps", iteration)
        ]

    def boxes(self, iteration):
        """Returns what is erased of each image: float32 (4,), top, left, height and width in pixels."""
        return [np.array(erased_box(self._spec, *each), np.float32) for each in self._of("boxes", iteration)]

    def _of(self, source, iteration):
        number = self._first + iteration - self._began.setdefault(source, iteration)
        epoch, places = self._places(number)
        return [(epoch, int(place)) for place in places]


def augment(dali, pixels, drawn, spec):
    """Adds the operations to the graph, which must be defined with ``enable_conditionals``.

    Args:
        dali (module): ``nvidia.dali``.
        pixels (DataNode): uint8 (size, size, 3), RGB.
        drawn (DrawnBatches): What is done to each image.
        spec (BatchSpec): How many operations, and the size.

    Returns:
        DataNode: Likewise.
    """
    from nvidia.dali.auto_aug.core import select

    types = dali.types
    rows = dali.fn.external_source(drawn.steps, name="steps", batch=True, dtype=types.FLOAT, ndim=2)
    operations = [getattr(_Operations(dali, spec.size), kind) for kind in KINDS]
    for step in range(spec.augment_operations if spec.augment == "rand" else 1):
        kind = dali.fn.cast(rows[step, 0], dtype=types.INT32)
        matrix = dali.fn.reshape(rows[step, 2:8], shape=[2, 3])
        pixels = select(operations, kind, pixels, matrix, rows[step, 1])
    return pixels


def erase(dali, normalized, drawn):
    """Adds erasing to the graph: 0 in a rectangle of normalized images, (H, W, C)."""
    boxes = dali.fn.external_source(drawn.boxes, name="boxes", batch=True, dtype=dali.types.FLOAT, ndim=1)
    return dali.fn.erase(normalized, name="erase", anchor=boxes[0:2], shape=boxes[2:4], axis_names="HW", fill_value=0)


class _Operations:
    """Each takes pixels, a matrix and a number, of which it uses what it needs, and returns pixels."""

    def __init__(self, dali, size):
        self._dali, self._fn, self._types, self._size = dali, dali.fn, dali.types, size

    def identity(self, pixels, matrix, number):
        return pixels

    def warp(self, pixels, matrix, number):
        return self._fn.warp_affine(
            pixels, matrix=matrix, inverse_map=True, interp_type=self._types.INTERP_NN, fill_value=0
        )

    def brightness(self, pixels, matrix, number):
        return self._levels(self._wide(pixels) * _beside(pixels, number))

    def color(self, pixels, matrix, number):
        return self._blend(self._gray(pixels), pixels, number)

    def contrast(self, pixels, matrix, number):
        mean = self._fn.reductions.mean(self._gray(pixels), axes=[0, 1, 2], keep_dims=True)
        return self._blend(self._dali.math.floor(mean + 0.5), pixels, number)

    def sharpness(self, pixels, matrix, number):
        smooth = self._fn.filter(pixels, self._constant(pixels, np.float32(_SMOOTH) / 13))
        inner = np.zeros((self._size, self._size, 1), np.uint8)
        inner[1:-1, 1:-1] = 1  # Pillow leaves the border as it is
        inner, border = self._constant(pixels, inner), self._constant(pixels, 1 - inner)
        return self._blend(self._wide(smooth * inner + pixels * border), pixels, number)

    def posterize(self, pixels, matrix, number):
        unit = self._fn.cast(2 ** (8 - _beside(pixels, number)), dtype=self._types.UINT8)
        return pixels // unit * unit

    def solarize(self, pixels, matrix, number):
        is_dark = self._wide(pixels) < _beside(pixels, number)
        return is_dark * pixels + (is_dark ^ True) * (self._constant(pixels, np.uint8(255)) - pixels)

    def auto_contrast(self, pixels, matrix, number):
        wide = self._wide(pixels)
        low, high = self._over(self._fn.reductions.min, wide), self._over(self._fn.reductions.max, wide)
        is_flat = high <= low
        scaled = (wide - low) * (255 / (high - low + is_flat))
        return self._levels(is_flat * wide + (is_flat ^ True) * scaled)

    def equalize(self, pixels, matrix, number):
        # OpenCV's formula, which DALI has, leaves out the lowest level; Pillow's leaves out the highest one, and rounds
        # the number of pixels for a level down. Of inverted colours the former tells how many pixels are darker.
        wide, white = self._wide(pixels), self._constant(pixels, np.uint8(255))
        is_highest = wide == self._over(self._fn.reductions.max, wide)
        lower = self._size**2 - self._over(self._fn.reductions.sum, self._wide(is_highest))
        darker = (255 - self._wide(self._fn.equalize(white - pixels))) * lower / 255
        step = self._dali.math.floor(lower / 255)
        is_kept = step < 1
        equalized = darker / (step + is_kept) + 0.5
        return self._levels(is_kept * wide + (is_kept ^ True) * equalized)

    def _over(self, reduction, wide):
        """A reduction over the pixels of each channel."""
        return reduction(wide, axes=[0, 1], keep_dims=True)

    def _blend(self, none, pixels, factor):
        """Pixels times the factor, the rest being what an image has of which the factor is 0."""
        return self._levels(none + _beside(pixels, factor) * (self._wide(pixels) - none))

    def _gray(self, pixels):
        weighted = self._wide(pixels) * self._constant(pixels, np.float32(_GRAY))
        return self._dali.math.floor(self._fn.reductions.sum(weighted, axes=[2], keep_dims=True) + 0.5)

    def _wide(self, pixels):
        return self._fn.cast(pixels, dtype=self._types.FLOAT)

    def _levels(self, wide):
        return self._fn.cast(self._dali.math.floor(wide), dtype=self._types.UINT8)  # which saturates

    def _constant(self, pixels, array):
        return self._types.Constant(array, device=pixels.device)


def _beside(pixels, number):
    """The number on the device of the pixels."""
    return number.gpu() if pixels.device == "gpu" else number


KINDS = tuple(name for name in vars(_Operations) if not name.startswith("_"))


def _as_pillow(x, y, moved):
    """Rounds to multiples of 1/65536, as Pillow does: x and y, and what they have at the centre of the first pixel."""
    first, x, y = (math.floor(value * 65536 + 0.5) / 65536 for value in (moved + (x + y) / 2, x, y))
    return x, y, first - (x + y) / 2


def _row(step):
    kind, value = step
    if kind == "warp":
        return KINDS.index(kind), 0, *_as_pillow(*value[:3]), *_as_pillow(*value[3:])
    return KINDS.index(kind), value or 0, 0, 0, 0, 0, 0, 0
