"""The distribution of arrays (N, C, *spatial) over the blocks of ``batch_norm_planes.cu``."""

import functools
import math
from typing import NamedTuple

from mixprec.backends.cuda.base import Base, ceil_div
from mixprec.backends.cuda.kernels import width_of

FILE = "batch_norm_planes"
_MAX_CHANNELS = 32  # of a block
_BLOCK_BYTES = 512  # of an image, that a block should have beside each other
_UNITS_OF_THREAD = 4  # at least, before planes are split
_BLOCKS = 1024  # at most, where each has sums to be combined
_WRITING_BLOCKS = 4096


class Tiling(NamedTuple):
    """The division of an array between threads, the same on every GPU.

    Attributes:
        width: elements of a unit.
        units: of a plane.
        block_channels: neighbouring channels of a block, a power of two.
        parts: number of parts that the units of each channel are split into.
        part_units: units of each part but the last.
        blocks: number of blocks.
    """

    width: int
    units: int
    block_channels: int
    parts: int
    part_units: int
    blocks: int


class Planes(Base):
    """Launches on arrays whose planes, the pixels of an image and a channel, lie beside each other."""

    def _tiling(self, arrays, *, writes):
        """Returns the :class:`Tiling` of arrays (N, C, *spatial) of one shape; ``writes``: one of them is written."""
        x = arrays[0]
        width = width_of(math.prod(x.shape), [x.dtype], map(self._address, arrays))
        return _tiling_of(*planes_of(x), x.dtype.itemsize, width, self.launcher.threads, writes)

    def _run_planes(self, name, tiling, arrays, after):
        """Launches a kernel.

        Args:
            name: of the kernel in ``batch_norm_planes.cu``.
            tiling: from :meth:`_tiling`.
            arrays: its first arguments; the first of them gives shape and dtype.
            after: its last arguments.
        """
        x = arrays[0]
        arguments = [*map(self._address, arrays), *planes_of(x), tiling.units, tiling.block_channels, tiling.part_units]
        self.kernels.launch(FILE, name, tiling.blocks, [*arguments, *after], x.dtype, tiling.width)


def planes_of(array):
    """Returns ``(N, C, P)``: the first two axes, and over all others."""
    return *array.shape[:2], math.prod(array.shape[2:])


@functools.lru_cache(maxsize=1024)
def _tiling_of(images, channels, pixels, itemsize, width, threads, writes):
    width = width if pixels >= width else 1  # a unit is in two planes at most
    # Where planes begin anywhere: those that begin in one, or those that it is in.
    units = ceil_div(pixels, width) if writes or pixels % width == 0 else ceil_div(pixels - 1, width) + 1
    wanted = max(1, min(_MAX_CHANNELS, channels, ceil_div(_BLOCK_BYTES, max(1, pixels * itemsize))))
    block_channels = 1 << (wanted - 1).bit_length()
    tiles = ceil_div(channels, block_channels)
    all_units = images * units
    blocks = _WRITING_BLOCKS if writes else _BLOCKS
    parts = min(ceil_div(all_units * block_channels, threads * _UNITS_OF_THREAD), blocks // max(1, tiles))
    part_units = max(1, ceil_div(all_units, max(1, parts)))
    parts = ceil_div(all_units, part_units)
    return Tiling(width, units, block_channels, parts, part_units, parts * tiles)
