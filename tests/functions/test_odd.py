"""What users do to functions and links on NHWC that is not ordinary: allowed or not, it is easily done."""

import chainer
import chainer.functions as CF
import chainer.links as CL
import numpy as np
import pytest
from chainer.link_hooks import SpectralNormalization, WeightStandardization

from mixprec import functions as F
from mixprec import links as L
from tests.cases import in_turn, pairs
from tests.functions.nhwc import DTYPES, normal, to_nchw

IMAGES, FILTERS = normal(0, 2, 6, 5, 8), normal(1, 4, 8, 3, 3)
ONES = np.ones(8, np.float32)


# Strides and the like

GEOMETRIES = {
    "convolution_2d: stride": (lambda value: F.convolution_2d(IMAGES, FILTERS, stride=value), 1),
    "convolution_2d: dilate": (lambda value: F.convolution_2d(IMAGES, FILTERS, pad=2, dilate=value), 1),
    "deconvolution_2d: pad": (lambda value: F.deconvolution_2d(IMAGES[..., :4].copy(), FILTERS, pad=value), 0),
    "deconvolution_2d: outsize": (
        lambda value: F.deconvolution_2d(IMAGES[..., :4].copy(), FILTERS, stride=2, outsize=value),
        1,
    ),
    "max_pooling_2d: ksize": (lambda value: F.max_pooling_2d(IMAGES, value), 1),
    "max_pooling_2d: pad": (lambda value: F.max_pooling_2d(IMAGES, 2, 2, value), 0),
    "average_pooling_2d: ksize": (lambda value: F.average_pooling_2d(IMAGES, value), 1),
}


@pytest.mark.parametrize(("name", "value"), in_turn(GEOMETRIES, ["too small", 1.5, "2", (1, 2, 3), (2, None)]))
def test_steps_and_margins_are_whole_numbers(name, value):
    function, least = GEOMETRIES[name]
    value = least - 1 if value == "too small" else value
    with pytest.raises(ValueError, match=rf"^{name} must be .*whole number.* {least} .*; found [^\n]+$"):
        function(value)


@pytest.mark.parametrize("value", [np.int64(2), [2, 2], np.array([2, 2]), (np.int32(2), 2)])
def test_steps_and_margins_may_be_numpys(value):
    expected = F.max_pooling_2d(F.convolution_2d(IMAGES, FILTERS, stride=2, pad=2, dilate=2), 2).array
    found = F.max_pooling_2d(F.convolution_2d(IMAGES, FILTERS, stride=value, pad=value, dilate=value), value).array
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("groups", [0, -1, 1.5, (1, 1)])
def test_groups_are_a_whole_number(groups):
    for call in (F.convolution_2d, F.deconvolution_2d):
        with pytest.raises(ValueError, match=f"^{call.__name__}: groups must be a whole number, 1 or more; found "):
            call(IMAGES, FILTERS, groups=groups)


# Inputs


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_channels_than_the_filter_has_must_be_zeros(dtype):
    x, W = normal(0, 2, 5, 5, 4, dtype=dtype), normal(1, 8, 3, 3, 3, dtype=dtype)
    calls = (lambda: F.convolution_2d(x, W), lambda: L.Convolution2D(3, 8, 3, dtype=dtype)(x))
    for call in calls:
        with pytest.raises(ValueError, match=r"x must be \(N, H, W, 3\), with only zeros beyond; found .*\(2, 5, 5, 4"):
            call()
    x[..., 3:] = 0
    for call in calls:
        call()


def test_images_of_an_empty_batch():
    W = normal(1, 4, 12)
    x = chainer.Variable(np.empty((0, 2, 2, 3), np.float32))
    y = F.linear(x, W)
    assert y.shape == (0, 4)
    y.grad = np.empty((0, 4), np.float32)
    y.backward()
    assert x.grad.shape == x.shape
    assert F.linear(np.empty((0, 5, 12), np.float32), W, n_batch_axes=2).shape == (0, 5, 4)


# Links


@pytest.mark.parametrize(
    ("hook", "kind", "lazy", "height"),
    pairs([WeightStandardization, SpectralNormalization], ["Convolution2D", "Deconvolution2D"], [False, True], [5, 6]),
)
def test_hooks_on_links(hook, kind, lazy, height):
    x = normal(0, 2, height, 4, 6)  # as high as it has channels, and not
    results = []
    for links, images in ((L, x), (CL, to_nchw(x))):
        np.random.seed(0)
        link = getattr(links, kind)(None if lazy else 6, 8, 3)
        link.add_hook(hook())
        y = link(images)
        link.cleargrads()
        CF.sum(y * y).backward()
        results += [y.array if links is L else y.array.transpose(0, 2, 3, 1), link.W.grad]
        assert type(link.W) is chainer.Parameter
    np.testing.assert_allclose(results[0], results[2], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(results[1], results[3], rtol=1e-4, atol=1e-4 * np.abs(results[3]).max())


def test_a_static_graph_is_refused_by_name():
    class Model(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.fc = L.Linear(3, 2)

        @chainer.static_graph
        def forward(self, x):
            return self.fc(x)

    with pytest.raises(RuntimeError, match=r"linear of mixprec .* chainer\.static_graph"):
        Model()(normal(0, 4, 3))
