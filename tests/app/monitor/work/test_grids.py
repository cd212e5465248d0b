"""Grids and strips: the place and the gray of each value, and numbers that are none."""

import numpy as np
import pytest

from mixprec.app.monitor.work import grids
from tests.app.monitor.work.asking import picture


def test_gray_goes_from_the_smallest_to_the_largest():
    assert grids.gray([-1, 0, 1]).tolist() == [0, 128, 255]
    assert grids.gray([5.0, 5.0]).tolist() == [0, 0]
    assert grids.gray([0, 1, np.nan, np.inf, -np.inf]).tolist() == [0, 255, 0, 255, 0]
    assert grids.gray([np.nan]).tolist() == [0]
    assert grids.gray(np.array([-3e38, 3e38], "f")).tolist() == [0, 255]


def test_each_channel_has_a_tile_and_a_scale_of_its_own():
    maps = np.zeros((5, 2, 2), "f")
    for channel in range(4):
        maps[channel].flat[channel] = 10.0**channel
    found = picture(grids.channels(maps))
    assert found.shape == (34, 52)  # two rows of three tiles of 16 x 16, with gaps of 2
    for channel in range(5):
        top, left = channel // 3 * 18, channel % 3 * 18
        tile = found[top : top + 16, left : left + 16]
        expected = (maps[channel] > 0).repeat(8, 0).repeat(8, 1) * 255
        np.testing.assert_array_equal(tile, expected)
    assert (found[16:18] == 96).all()


@pytest.mark.parametrize(("shape", "size"), [((70, 8, 8), (142, 142)), ((1, 100, 50), (32, 16)), ((2, 1, 1), (16, 34))])
def test_sizes_of_grids(shape, size):
    assert picture(grids.channels(np.random.RandomState(0).normal(size=shape))).shape == size


def test_bars_stand_on_the_zero_line():
    found = picture(grids.bars(np.array([0, 1, -1, 0.5, np.nan]))) > 0
    assert found.shape == (48, 255)
    heights = found.sum(0)[::51]
    assert heights.tolist() == [1, 25, 24, 13, 1] or heights.tolist() == [1, 24, 25, 12, 1]
    assert found[0, 51]
    assert not found[0, 0]
    assert found[47, 102]


def test_bars_of_many_and_of_odd_values():
    many = np.zeros(100_000)
    many[77] = -3
    found = picture(grids.bars(many)) > 0
    assert found.shape == (48, 256)
    assert found[:, 0].all()
    assert (found[:, 1:].sum(0) == 1).all()
    for values in ([np.inf, 1], [np.nan, np.nan], [0, 0], [[[1.0, 2.0]]]):
        assert picture(grids.bars(values)).shape[0] == 48


def test_filters():
    random = np.random.RandomState(0)
    colors = random.normal(size=(70, 3, 7, 7)).astype("f")
    found = picture(grids.filters(colors))
    assert found.shape == (8 * 16 - 2, 8 * 16 - 2, 3)  # 7 x 7 are enlarged to 14 x 14
    tile = found[:14:2, 16:30:2].astype(float)
    np.testing.assert_allclose(tile, grids.gray(colors[1]).transpose(1, 2, 0))
    assert picture(grids.filters(random.normal(size=(4, 16, 3, 3)))).shape == (4 * 17 - 2, 8 * 17 - 2)
    assert picture(grids.filters(random.normal(size=(4, 16, 1, 1)))).shape == (4, 16)
    assert picture(grids.filters(random.normal(size=(1000, 512)))).shape == (128, 128)
    assert picture(grids.filters(random.normal(size=(2, 3, 4, 5, 6)))).ndim == 2
