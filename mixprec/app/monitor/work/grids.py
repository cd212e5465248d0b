"""Activations and filters as pictures: grids of tiles, and strips of bars."""

import math

import numpy as np
from PIL import Image

from mixprec.app.monitor.work.thumbnails import png_of_array

_TILES = 64
_SMALLEST, _LARGEST = 16, 32  # pixels of a tile's longer side; smaller tiles are enlarged by a whole number
_GAP, _BETWEEN = 2, 96  # pixels between tiles, and their gray
_BARS, _HEIGHT, _WIDTH = 256, 48, 256  # number of bars at most, and pixels of a strip
_SIDE = 128  # rows and columns of a matrix that are shown


def channels(maps):
    """Returns a grid of the first 64 channels of an image as PNG in base64.

    Each channel is scaled to its own smallest (black) and largest (white) value; one that is constant is black.

    Args:
        maps: floating point (C, H, W).
    """
    return png_of_array(_grid([_resized(gray(each)) for each in maps[:_TILES]]))


def bars(vector):
    """Returns a strip of white bars on black, from the zero line up or down, as PNG in base64.

    For more than 256 values, each bar shows the largest magnitude among neighbours. NaN has no bar.

    Args:
        vector: floating point, of any shape.
    """
    values = np.nan_to_num(np.asarray(vector, np.float64).ravel(), posinf=np.finfo("f").max, neginf=np.finfo("f").min)
    parts = np.array_split(values, min(_BARS, max(1, values.size)))
    values = np.array([part[np.abs(part).argmax()] if part.size else 0.0 for part in parts])
    low, high = min(0.0, values.min()), max(0.0, values.max())
    rows = np.rint((high - np.append(values, 0.0)) / (high - low or 1.0) * (_HEIGHT - 1)).astype(int)
    lines, zero = np.arange(_HEIGHT)[:, None], rows[-1]
    strip = (np.minimum(rows[:-1], zero) <= lines) & (lines <= np.maximum(rows[:-1], zero))
    return png_of_array(np.repeat(strip * np.uint8(255), max(1, _WIDTH // len(values)), axis=1))


def filters(weights):
    """Returns a picture of weights as PNG in base64.

    Filters with three channels are tiles in RGB, the first 64, each scaled to its own smallest and largest value. For
    other filters, the first 8 are a row each, with their first 8 channels; a row is scaled as a whole. Filters of one
    pixel, and matrices, are one tile: a row for each output, the first 128 outputs and inputs.

    Args:
        weights: floating point, (K, C, R, S), (K, C), or other shapes, treated like the latter.
    """
    if weights.ndim != 4 or weights.shape[2:] == (1, 1):
        matrix = weights.reshape(len(weights), -1)[:_SIDE, :_SIDE]
        return png_of_array(_enlarged(gray(matrix)))
    if weights.shape[1] == 3:
        return png_of_array(_grid([_resized(gray(each.transpose(1, 2, 0))) for each in weights[:_TILES]]))
    rows = [gray(each[:8]) for each in weights[:8]]
    return png_of_array(_grid([_resized(tile) for row in rows for tile in row], columns=len(rows[0])))


def gray(values):
    """Returns values scaled to their finite range, uint8; all 0 if it is empty."""
    values = np.asarray(values, np.float64)
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    if low == high:
        return np.zeros(values.shape, np.uint8)
    shares = np.clip((np.nan_to_num(values, nan=low, posinf=high, neginf=low) - low) / (high - low), 0, 1)
    return np.rint(255 * shares).astype(np.uint8)


def _resized(tile):
    """Returns a tile (H, W) or (H, W, 3) enlarged or reduced to a visible size."""
    height, width = tile.shape[:2]
    longer = max(height, width)
    if longer <= _LARGEST:
        return _enlarged(tile)
    size = (max(1, width * _LARGEST // longer), max(1, height * _LARGEST // longer))
    return np.asarray(Image.fromarray(np.ascontiguousarray(tile)).resize(size, Image.Resampling.BOX))


def _enlarged(tile):
    factor = max(1, _SMALLEST // max(tile.shape[:2]))
    return np.ascontiguousarray(tile.repeat(factor, 0).repeat(factor, 1))


def _grid(tiles, columns=None):
    columns = columns or math.ceil(math.sqrt(len(tiles)))
    rows = -(-len(tiles) // columns)
    height, width = (side + _GAP for side in tiles[0].shape[:2])
    grid = np.full((rows * height - _GAP, columns * width - _GAP, *tiles[0].shape[2:]), _BETWEEN, np.uint8)
    for index, tile in enumerate(tiles):
        top, left = index // columns * height, index % columns * width
        grid[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    return grid
