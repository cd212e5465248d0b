"""Pooling of regions of interest, as in Faster R-CNN, in converted models."""

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from tests.cases import first, pairs
from tests.rewrite.twins import images, new, step

ROWS = np.array([[0, 0, 7, 7], [2, 1, 9, 11], [4, 4, 5, 5]], np.float32)
PLACES = ROWS, np.array([0, 2, 1], np.int32)
REGIONS = {
    "ROIPooling2D": lambda h: F.roi_pooling_2d(h, np.c_[PLACES[1], ROWS].astype("f"), 3, 3, 0.5),
    "ROIMaxPooling2D": lambda h: F.roi_max_pooling_2d(h, *PLACES, 3, 0.5),
    "ROIAveragePooling2D": lambda h: F.roi_average_pooling_2d(h, *PLACES, 3, 0.5),
    "ROIMaxAlign2D": lambda h: F.roi_max_align_2d(h, *PLACES, 3, 0.5),
    "ROIAverageAlign2D": lambda h: F.roi_average_align_2d(h, *PLACES, 3, 0.5),
}
# What follows: a function of (model, regions), and whether its result is an image.
HEADS = {
    "convolution": (lambda m, h: m.conv2(h), True),
    "linear": (lambda m, h: m.last(h), False),
    "both": (lambda m, h: (m.conv2(h), m.last(h)), True),
}


@pytest.mark.parametrize(
    ("name", "head", "compute"), first(6, pairs(list(REGIONS), list(HEADS), ["float16", "bfloat16"]))
)
def test_regions_take_no_conversion_more(name, head, compute):
    """One conversion of the input, and one of an image that is returned. A region may lie elsewhere by a rounding."""
    function, is_image = HEADS[head]

    def build():
        model = new(lambda m, x: function(m, REGIONS[name](m.conv1(m.stem(x)))))
        with model.init_scope():
            model.last = L.Linear(36, 2)
        return model

    plain, model = build(), build()
    report = mixprec.convert(model, images(0), compute=compute)
    assert len(report.conversions) == 1 + is_image
    assert not report.unconverted
    found, expected = step(model, images(1)), step(plain, images(1))
    eps = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[compute]
    for key, array in expected.items():
        if array is not None:
            assert np.linalg.norm(np.float64(found[key]) - array) <= 32 * eps * np.linalg.norm(array), key
