"""Launches on arrays of rows that are as wide as a tensor has channels."""

from typing import NamedTuple

from mixprec.backends.cuda.base import Base, ceil_div, rows_of

FILE = "columns"
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
        """What every kernel takes of it, after the number of rows."""
        return self.vectors, self.lanes, self.tiles

    def rows_to_write(self, rows):
        """Returns how many rows a block should have of so many that are written."""
        return self.step * max(1, min(_WRITTEN_ROWS, rows * self.tiles // (self.step * _WRITING_BLOCKS)))


class Columns(Base):
    """Sums of columns, and rows that are combined with all others."""

    def _sum_columns(self, x, dtype, segments=1, divisor=1):
        """Returns the sums of each column over segments of rows, all of them equally long but for the last.

        They are accumulated in float32, in an order that depends on nothing but shape and alignment.

        Args:
            x: (..., C) in a storage dtype.
            dtype: of the result.
            segments: number of segments.
            divisor: of the sums, a number.

        Returns:
            (segments, C).
        """
        rows, channels = rows_of(x)
        sums = self._empty((segments, channels), dtype)
        of_segment = ceil_div(rows, max(segments, 1))
        blocks = self._summing(of_segment, segments, channels, x, sums)
        count = segments * blocks.tiles
        arguments = [x, sums, rows, *blocks.columns, of_segment, float(divisor)]
        self.kernels.launch(FILE, "sum_columns", count, arguments, x.dtype, blocks.width, sums.dtype)
        return sums

    def _summing(self, rows, segments, channels, *arrays):
        """Returns the :class:`_Blocks` for sums of so many rows: few rows of a thread, or many blocks."""
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

    def _repeat_rows(self, x, rows, divisor, shape):
        """Returns each row of ``x`` (M, C), divided, ``rows`` times, as an array of a shape (..., C)."""
        sources, channels = x.shape
        y = self._empty(shape, x.dtype)
        blocks = self._blocks(channels, x, y)
        of_block = blocks.rows_to_write(sources * rows)
        of_row = ceil_div(rows, of_block)
        arguments = [x, y, rows, *blocks.columns, of_block, of_row, float(divisor)]
        self.kernels.launch(FILE, "repeat_rows", sources * of_row * blocks.tiles, arguments, x.dtype, blocks.width)
        return y

    def _blocks(self, channels, *arrays):
        """Returns the :class:`_Blocks` for arrays; what is in another dtype than the first one may be wider."""
        width = self._width(channels, *arrays)
        vectors = channels // width
        lanes = min(_LANES, 1 << max(vectors - 1, 0).bit_length())
        return _Blocks(width, vectors, lanes, ceil_div(vectors, lanes), self.launcher.threads // lanes)
