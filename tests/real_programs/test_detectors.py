"""Detectors of chainercv train in 16 bits as in plain Chainer: the library is unmodified."""

import pytest

from tests.real_programs import run_script

pytestmark = pytest.mark.long


@pytest.mark.parametrize("way", ["plain", "float16", "bfloat16"])
@pytest.mark.parametrize("detector", ["SSD", "FasterRCNN"])
def test_detector_trains_and_predicts(detector, way):
    arguments = [] if way == "plain" else [way]
    first, last = map(float, run_script("detectors", detector, *arguments, needs="chainercv").split())
    assert last < 0.6 * first
