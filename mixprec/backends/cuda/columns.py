"""Launches on arrays whose rows have one element per channel."""

from typing import NamedTuple

from mixprec.backends.cuda.base import Base, ceil_div

_LANES = 32  # vectors of a row beside each other in a block, at most: 512 bytes
SUMMED_ROWS = 4  # of a thread, which reads them at once
_FEWEST_LANES = 4  # 64 bytes, for the sake of more blocks with fewer rows
SUMMING_BLOCKS = 512  # enough for a large GPU, and few enough for one block to add up what they give
_WRITTEN_ROWS = 8  # of a thread, at most
_WRITING_BLOCKS = 1024  # that there should be before a thread has more rows than one


class _Blocks(NamedTuple):
    """The distribution of the columns of an array over blocks.

    Attributes:
        width: number of columns of a thread.
        vectors: number of groups of as many columns.
        lanes: number of threads of a block beside each other in a row, a power of two.
        tiles: number of blocks beside each other.
        step: number of rows that a block has at a time.
    """

    width: int
    vectors: int
    lanes: int
    tiles: int
    step: int

    @property
    def columns(self):
        """The arguments of every kernel."""
        return self.vectors, self.lanes, self.tiles

    def rows_to_write(self, rows):
        """Returns the number of rows of a block, from the number of rows to be written."""
        return self.step * max(1, min(_WRITTEN_ROWS, rows * self.tiles // (self.step * _WRITING_BLOCKS)))


class Columns(Base):
    """Sums of columns, and rows that are combined with all others."""

    def _run_columns(self, name, count, before, blocks, after, dtype, other=None):
        """Launches a kernel; the distribution is in the middle of its arguments."""
        self.kernels.launch("columns", name, count, [*before, *blocks.columns, *after], dtype, blocks.width, other)

    def _summing(self, rows, segments, channels, *arrays):
        """Returns the :class:`_Blocks` for sums of segments of rows: few rows of a thread, or many blocks.

        Sums are accumulated in float32, in an order that depends only on shape and alignment.
        """
        blocks = self._blocks(channels, *arrays)
        while (
            blocks.lanes > _FEWEST_LANES
            and rows > blocks.step * SUMMED_ROWS
            and segments * blocks.tiles < SUMMING_BLOCKS
        ):
            lanes = blocks.lanes // 2
            tiles = ceil_div(blocks.vectors, lanes)
            blocks = blocks._replace(lanes=lanes, tiles=tiles, step=self.launcher.threads // lanes)
        return blocks

    def _blocks(self, channels, *arrays):
        """Returns the :class:`_Blocks` for arrays; arrays in another dtype than the first may be wider."""
        width = self._width(channels, *arrays)
        vectors = channels // width
        lanes = min(_LANES, 1 << max(vectors - 1, 0).bit_length())
        return _Blocks(width, vectors, lanes, ceil_div(vectors, lanes), self.launcher.threads // lanes)
