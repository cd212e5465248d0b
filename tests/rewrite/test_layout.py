"""Memory orders of images in converted models: NHWC through the trunk, and how often they are converted."""

import re

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.base.dtypes import BFLOAT16
from tests.cases import first, in_turn
from tests.rewrite.twins import SHAPE, WIDTH, assert_same, images, new, step

IN = ("to NHWC", "/stem", "Convolution2DFunction")
OUT = ("to NCHW", "/", "result")


def order(array):
    """``"NHWC"`` or ``"NCHW"``, whatever is C-contiguous; both at once have no pixels or one channel."""
    if array.transpose(0, 2, 3, 1).flags.c_contiguous:
        return "NHWC"
    return "NCHW" if array.flags.c_contiguous else "neither"


def seen(m, h):
    """Notes the order of an image on its way."""
    m.notes.append(order(h.array))
    return h


def found_in(report):
    return [(each.direction, each.link, each.function) for each in report.conversions]


def build(function):
    """Returns plain parts, with a few more."""
    model = new(function)
    with model.init_scope():
        model.grouped = L.Convolution2D(WIDTH, WIDTH, 3, pad=1, groups=2)
        model.up = L.Deconvolution2D(WIDTH, WIDTH, 2, stride=2)
        model.narrow = L.Convolution2D(2, WIDTH, 1)
        model.bn4 = L.BatchNormalization(2)
    return model


def beside(function, example=None, calls=2, **how):
    """Compares a converted model with its plain twin; returns the converted one and its report."""
    plain, model = build(function), build(function)
    report = mixprec.convert(model, images(0) if example is None else example, compute="float32", **how)
    for call in range(calls):
        x = images(call)
        assert_same(step(model, x), step(plain, x))
    return model, report


def _attention(m, h):
    """As an SE block: one factor for each channel of each image."""
    factors = F.sigmoid(F.average(h, axis=(2, 3)))
    return h * F.broadcast_to(factors[:, :, None, None], h.shape)


def _scaled(m, h):
    return F.scale(h, F.sigmoid(F.average(h, axis=(2, 3))), axis=0)


def _split(m, h):
    a, b = F.split_axis(h, 2, axis=1)
    return F.concat([F.relu(b), a], axis=1)


def _unpooled_by_indices(h, ksize, outsize, *how):
    y, indexes = F.max_pooling_2d(h, ksize, *how, return_indices=True)
    return F.upsampling_2d(y, indexes, ksize, *how, outsize=outsize)


# Functions on images (N, 4, 6, 6) before a convolution of 4 channels, by name.
TRUNK = {
    "convolution": lambda m, h: m.conv1(h),
    "grouped convolution": lambda m, h: m.grouped(h),
    "deconvolution": lambda m, h: m.up(h),
    "crop": lambda m, h: m.up(h)[:, :, 1:-2, ::2],
    "crop and concat": lambda m, h: F.concat([h, m.up(h)[:, :, 3:-3, 3:-3]], axis=1)[:, 2:6],
    "channels": lambda m, h: m.narrow(h[:, 1:3]),
    "batch normalization": lambda m, h: m.bn1(h),
    "batch normalization, add, ReLU": lambda m, h: F.relu(m.bn1(m.conv1(h)) + h),
    "add": lambda m, h: h + m.conv1(h),
    "three": lambda m, h: F.add(h, m.conv1(h), h),
    "multiply": lambda m, h: h * m.conv1(h),
    "divide": lambda m, h: h / (m.conv1(h) ** 2 + 1),
    "number": lambda m, h: 1 - 2 * h / 3 + 0.5,
    "negative": lambda m, h: -h,
    "power": lambda m, h: h**2,
    "relu": lambda m, h: F.relu(h),
    "leaky_relu": lambda m, h: F.leaky_relu(h),
    "relu6": lambda m, h: F.relu6(h),
    "sigmoid": lambda m, h: F.sigmoid(h),
    "tanh": lambda m, h: F.tanh(h),
    "exp": lambda m, h: F.exp(h * 0.1),
    "sqrt": lambda m, h: F.sqrt(h**2 + 1),
    "absolute": lambda m, h: F.absolute(h),
    "clip": lambda m, h: F.clip(h, -0.5, 0.5),
    "maximum": lambda m, h: F.maximum(h, m.conv1(h)),
    "concat": lambda m, h: F.concat([h[:, :2], m.conv1(h)[:, 2:]], axis=1),
    "split and concat": _split,
    "max pooling": lambda m, h: F.max_pooling_2d(h, 3, stride=1, pad=1),
    "average pooling": lambda m, h: F.average_pooling_2d(h, 3, stride=1, pad=1),
    "max pooling of any dimension": lambda m, h: F.max_pooling_nd(h, 2),
    "average pooling of any dimension": lambda m, h: F.average_pooling_nd(h, 2),
    "max pooling and its indices": lambda m, h: _unpooled_by_indices(h, 2, (6, 6)),
    "overlapping windows and their indices": lambda m, h: _unpooled_by_indices(h, 3, (6, 6), 2, 1),
    "unpooling": lambda m, h: F.unpooling_2d(h, 2, cover_all=False),
    "unpooling, cropped": lambda m, h: F.unpooling_2d(h, (3, 2), outsize=(16, 12)),
    "resize": lambda m, h: F.resize_images(h, (9, 5)),
    "resize, corners move": lambda m, h: F.resize_images(h, (13, 12), align_corners=False),
    "resize to the nearest": lambda m, h: F.resize_images(h, (4, 11), mode="nearest"),
    "pad": lambda m, h: F.pad(h, ((0, 0), (0, 0), (1, 0), (0, 2)), "constant", constant_values=-1),
    "pad with values": lambda m, h: F.pad(
        h, ((0, 0), (0, 0), (1, 1), (2, 2)), "constant", constant_values=((0, 0), (0, 0), (1, 2), (3, 4))
    ),
    "pad all axes": lambda m, h: F.pad(h, 1, "constant")[1:-1, 1:-1],
    "reflect": lambda m, h: F.pad(h, ((0, 0), (0, 0), (2, 2), (2, 2)), "reflect"),
    "flip": lambda m, h: F.flip(h, 3) + h,
    "flip channels": lambda m, h: F.flip(h, 1),
    "repeat": lambda m, h: F.repeat(F.repeat(h, 2, axis=2), (1, 2, 3, 1, 1, 1), axis=-1),
    "prelu": lambda m, h: F.prelu(h, m.bn1.beta),
    "dropout": lambda m, h: F.dropout(h, 0.0),
    "local response normalization": lambda m, h: F.local_response_normalization(h),
    "channel attention": _attention,
    "channel attention by scale": _scaled,
    "cast": lambda m, h: F.cast(F.cast(h, "float64"), "float32"),
}


@pytest.mark.parametrize("name", TRUNK)
def test_two_conversions_in_all(name):
    """One at the entrance and one for the result, which is an image; everything between is in NHWC."""

    def function(m, x):
        h = seen(m, m.stem(x))
        return m.conv2(TRUNK[name](m, h))

    model, report = beside(function)
    assert set(model.notes) == {"NHWC"}
    assert found_in(report) == [IN, OUT]
    assert not report.unconverted


@pytest.mark.parametrize(("name", "compute"), first(12, in_turn(TRUNK, ["float16", "bfloat16"])))
def test_two_conversions_in_16_bits_as_well(compute, name):
    def function(m, x):
        return m.conv2(TRUNK[name](m, m.stem(x)))

    model, plain = build(function), build(function)
    report = mixprec.convert(model, images(0), compute=compute)
    assert found_in(report) == [IN, OUT]
    found, expected = model(images(1)).array, plain(images(1)).array
    assert found.dtype == np.float32
    eps = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[compute]
    assert np.linalg.norm(found - expected) <= 12 * eps * np.linalg.norm(expected)


# Heads: what makes vectors of images, name -> (function, conversions behind the trunk).
HEADS = {
    "average": (lambda m, h: F.average(h, axis=(2, 3)), []),
    "average that keeps dimensions": (lambda m, h: F.average(h, axis=(2, 3), keepdims=True)[:, :, 0, 0], []),
    "sum": (lambda m, h: F.sum(h, axis=(2, 3)), []),
    "maximum": (lambda m, h: F.max(h, axis=(2, 3)), []),
    "global average pooling": (lambda m, h: F.average_pooling_2d(h, 6), []),
    "global max pooling": (lambda m, h: F.max_pooling_2d(h, 6), []),
    "global pooling, reshape": (lambda m, h: F.reshape(F.average_pooling_2d(h, 6), (len(h), WIDTH)), []),
    "reshape": (lambda m, h: F.reshape(h, (h.shape[0], -1)), [("to NCHW", "/", "Reshape")]),
    "flatten": (lambda m, h: F.flatten(h), [("to NCHW", "/", "Reshape")]),
    "flatten of one": (lambda m, h: F.flatten(h[0]), []),
    "nothing": (lambda m, h: h, [("to NCHW", "/fc", "Reshape")]),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads(name):
    head, conversions = HEADS[name]

    def function(m, x):
        y = head(m, F.relu(m.bn1(m.stem(x))))
        return y if y.ndim == 1 else m.fc(y)

    def build():
        model = new(function)
        with model.init_scope():
            np.random.seed(2)
            model.fc = L.Linear(WIDTH if y.ndim != 4 and y.shape[-1] == WIDTH else y.size // len(y), 3)
        return model

    y = head(None, chainer.Variable(images(0, (3, WIDTH, 6, 6))))
    plain, model = build(), build()
    report = mixprec.convert(model, images(0), compute="float32")
    for call in range(2):
        assert_same(step(model, images(call)), step(plain, images(call)))
    assert found_in(report) == [IN, *conversions]
    assert not report.unconverted


@pytest.mark.parametrize("pixels", ["1x1", "1 row"])
def test_a_reshape_of_a_single_pixel_is_no_conversion(pixels):
    def function(m, x):
        h = F.max_pooling_2d(m.stem(x), 6 if pixels == "1x1" else (6, 1))
        return F.reshape(h, (len(h), -1))

    _, report = beside(function)
    assert found_in(report) == ([IN] if pixels == "1x1" else [IN, ("to NCHW", "/", "Reshape")])


# Entrances.


def several_convolutions(m, x):
    return m.stem(x) + F.convolution_2d(x, m.stem.W * 2, pad=1) + m.stem(x)


def test_an_input_of_several_convolutions_is_converted_once():
    _, report = beside(several_convolutions)
    # once with a fourth channel of zeros, for all three
    assert found_in(report) == [IN, OUT]


def test_an_input_that_is_a_parameter_or_an_attribute():
    def function(m, x):
        return m.stem(x) + m.stem(m.offset) * m.stem(m.image)

    def build():
        model = new(function)
        with model.init_scope():
            model.image = chainer.Parameter(images(5))
        model.offset = images(6)
        return model

    plain, model = build(), build()
    report = mixprec.convert(model, images(0), compute="float32")
    for call in range(2):
        assert_same(step(model, images(call)), step(plain, images(call)))
    assert [each[0] for each in found_in(report)] == ["to NHWC"] * 3 + ["to NCHW"]


@pytest.mark.parametrize(("channels", "compute"), [(3, "float16"), (4, "float16"), (4, "bfloat16"), (3, "float32")])
def test_a_loader_that_delivers_nhwc_needs_no_conversion(channels, compute):
    def function(m, x):
        return F.average(F.relu(m.bn1(m.stem(x))), axis=(2, 3))

    def delivered(seed):
        x = images(seed).transpose(0, 2, 3, 1)
        x = np.concatenate([x, np.zeros_like(x[..., :1])], axis=3)[..., :channels]
        dtype = BFLOAT16 if compute == "bfloat16" else compute
        return np.ascontiguousarray(x).astype(dtype).transpose(0, 3, 1, 2)

    model, plain = new(function), new(function)
    report = mixprec.convert(model, delivered(0), compute=compute)
    assert found_in(report) == []
    found = model(delivered(1)).array
    expected = plain(np.float32(delivered(1))[:, :3]).array
    eps = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-22}[compute]
    assert np.linalg.norm(found - expected) <= 8 * eps * np.linalg.norm(expected)
    F.sum(model(delivered(1)) ** 2).backward()
    assert model.stem.W.grad.shape == (WIDTH, 3, 3, 3)


def test_a_fourth_channel_that_is_not_zero_is_an_error():
    model = new(lambda m, x: m.stem(x))
    mixprec.convert(model, compute="float32")
    x = np.ones((2, 6, 6, 4), np.float32).transpose(0, 3, 1, 2)
    with pytest.raises(ValueError, match="with only zeros beyond"):
        model(x)


@pytest.mark.parametrize("size", [3, 4, 1])
def test_sizes_that_are_numbers_of_channels(size):
    """Neither height nor width is taken for the channels."""

    def function(m, x):
        return F.relu(m.bn1(m.conv1(m.stem(x))))

    plain, model = new(function), new(function)
    mixprec.convert(model, compute="float32")
    for shape in ((3, 3, size, size), (3, 3, size, 5), (3, 3, 5, size)):
        assert_same(step(model, images(0, shape)), step(plain, images(0, shape)))


@pytest.mark.parametrize("shape", [(2, 3, 6, 6), (1, 3, 5, 7), (4, 3, 1, 9), (2, 3, 9, 1)])
def test_inputs_of_other_sizes_and_strides(shape):
    def function(m, x):
        return m.conv1(F.relu(m.stem(x)))

    plain, model = new(function), new(function)
    mixprec.convert(model, compute="float32")
    x = images(0, (shape[0] * 2, *shape[1:]))
    n = shape[0]
    inputs = [
        x[::2],  # strided
        np.asfortranarray(x[::2]),
        x[:n, :, ::-1, :],
        np.ascontiguousarray(x[:n].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
        np.broadcast_to(x[:1], shape),
    ]
    for each in inputs:
        with chainer.no_backprop_mode():
            found, expected = model(each), plain(np.ascontiguousarray(each))
        np.testing.assert_allclose(found.array, expected.array, atol=1e-5 * abs(expected.array).max())
        assert order(found.array) == "NCHW" or 1 in found.shape


# Results.


def test_gradients_of_the_input_have_its_order_of_axes_and_dtype():
    model = new(lambda m, x: m.conv1(m.stem(x)))
    mixprec.convert(model)
    x = chainer.Variable(images(0))
    F.sum(model(x)).backward()
    assert (x.grad.shape, x.grad.dtype) == (SHAPE, np.float32)
    assert x.grad.flags.c_contiguous


def test_gradients_of_filters_lie_like_the_filters():
    model = new(lambda m, x: m.conv1(m.stem(x)))
    mixprec.convert(model, compute="float32")
    model.cleargrads()
    F.sum(model(images(0))).backward()
    assert order(model.stem.W.array) == order(model.stem.W.grad) == "NHWC"
    assert model.stem.W.grad.shape == model.stem.W.shape


# Fences.


ORDERS = []


class New(chainer.FunctionNode):
    """A function of a user who takes axis 1 for the channels and memory for C-contiguous."""

    def forward(self, inputs):
        (x,) = inputs
        ORDERS.append((order(x), x.flags.c_contiguous, x.dtype.name))
        self.retain_inputs(())
        return (x * np.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None, None],)

    def backward(self, indexes, grads):
        (gradient,) = grads
        return (gradient * np.arange(1, gradient.shape[1] + 1, dtype=gradient.dtype)[:, None, None],)


class Old(chainer.Function):
    """The same in the style of Chainer 1."""

    def forward(self, inputs):
        (x,) = inputs
        ORDERS.append((order(x), x.flags.c_contiguous, x.dtype.name))
        return (x * np.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None, None],)

    def backward(self, inputs, grads):
        (gradient,) = grads
        return (gradient * np.arange(1, gradient.shape[1] + 1, dtype=gradient.dtype)[:, None, None],)


@pytest.mark.parametrize("kind", [New, Old])
def test_functions_of_users_are_fenced_and_named(kind):
    def function(m, x):
        h = m.stem(x)
        return m.conv1(kind()(h) if kind is Old else kind().apply((h,))[0])

    model, report = beside(function)
    assert report.unconverted == [f"/ ({kind.__name__}): not a function of Chainer: computes in NCHW and float32"]
    name = kind.__name__
    assert found_in(report) == [IN, ("to NCHW", "/", name), ("to NHWC", "/conv1", "Convolution2DFunction"), OUT]
    mixprec.convert(model, images(0), compute="float16")
    del ORDERS[:]
    assert model(images(0)).dtype == np.float32
    assert ORDERS == [("NCHW", True, "float32")]


# Functions of Chainer that are not known in NHWC: name -> function of (model, image), class of its node.
UNKNOWN = {
    "group normalization": (lambda m, h: F.group_normalization(h, 2, m.bn1.gamma, m.bn1.beta), "GroupNormalization"),
    "maxout": (lambda m, h: F.concat([F.maxout(h, 2)] * 2, axis=1), None),
    "overlapping unpooling": (lambda m, h: F.unpooling_2d(h, 3, 2, 1, cover_all=False), "Unpooling2D"),
    "moved channels": (lambda m, h: F.moveaxis(F.moveaxis(h, 1, 3) * 2, 3, 1), None),
    "channel shuffle": (
        lambda m, h: F.reshape(F.transpose(F.reshape(h, (3, 2, 2, 6, 6)), (0, 2, 1, 3, 4)), (3, 4, 6, 6)),
        None,
    ),
    "stack and sum": (lambda m, h: F.sum(F.stack([h, h * 2], axis=1), axis=1), None),
    "pixel by pixel": (lambda m, h: F.concat([h[:, :, :3], h[:, :, 3:] * 2], axis=2), None),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_functions_that_are_not_known_are_right(name):
    middle, label = UNKNOWN[name]
    _, report = beside(lambda m, x: m.conv1(middle(m, m.stem(x))))
    if label is not None:
        left = [each for each in report.unconverted if f"({label})" in each]
        contiguous = not any(each[0] == "to NHWC" and each[1] == "/conv1" for each in found_in(report))
        assert left or contiguous  # NumPy keeps the order in some of them


def test_a_function_whose_result_is_nchw_is_named():
    _, report = beside(lambda m, x: m.conv1(F.group_normalization(m.stem(x), 2, m.bn1.gamma, m.bn1.beta)))
    assert report.unconverted == ["/ (GroupNormalization): not known in NHWC: its result is NCHW"]
    assert ("to NHWC", "/conv1", "Convolution2DFunction") in found_in(report)
    assert "GroupNormalization" in str(report)


# What users see.


@pytest.mark.parametrize("calls", ["the model", "Chainer"])
def test_a_copy_in_every_step_is_announced_once_by_its_place(calls, announced):
    last = L.Linear(3, 2)
    layers = [lambda x: F.relu(F.linear(x[:, 1:], last.W))] if calls == "the model" else [lambda x: x[:, 1:], last]
    model = chainer.Sequential(L.Linear(4, 4), *layers)
    mixprec.convert(model)
    for _ in range(2):
        F.sum(model(np.ones((2, 4), "f"))).backward()
    (message,) = announced.messages
    start = r"linear: x is not C-contiguous, and is copied in every step, at .*/test_layout\.py:\d+"
    assert re.match(start + (": results" if calls == "the model" else r" \(Linear 1\): results"), message)


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
def test_intermediate_variables_have_the_usual_shape_and_values(compute):
    def function(m, x):
        h = m.stem(x)
        y = m.bn1(m.conv1(h))
        z = F.max_pooling_2d(F.relu(y), 2)
        m.notes[:] = [h, y, z]
        channels = h.array.mean(axis=(0, 2, 3)) if compute != "bfloat16" else np.float32(h.array).mean(axis=(0, 2, 3))
        m.means = np.float32(channels)
        m.pixel = float(h.array[1, 2, 3, 4])
        return z * float(h.shape[1])

    plain, model = new(function), new(function)
    mixprec.convert(model, images(0), compute=compute)
    for call in range(2):
        model(images(call))
        plain(images(call))
    eps = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[compute]
    for found, expected in zip(model.notes, plain.notes, strict=True):
        assert found.shape == expected.shape
        assert found.dtype.name == compute
        assert order(found.array) == "NHWC"
        difference = np.linalg.norm(np.float32(found.array) - expected.array)
        assert difference <= 8 * eps * np.linalg.norm(expected.array)
    np.testing.assert_allclose(model.means, plain.means, atol=8 * eps * abs(plain.notes[0].array).max())
    assert model.pixel == pytest.approx(plain.pixel, abs=8 * eps * float(abs(plain.notes[0].array).max()))


# Filters.


@pytest.mark.parametrize(("written", "compute"), [(True, "float16"), (False, "float32")])
def test_filters_stay_in_the_order_of_nhwc(written, compute):
    """Copies, files and devices: test_chainer.py."""
    model = new(lambda m, x: m.conv1(m.stem(x)))
    mixprec.convert(model, images(0), compute=compute)
    expected = model(images(1)).array
    given = np.ascontiguousarray(model.conv1.W.array)
    if written:
        model.conv1.W.array[...] = given
    else:
        model.conv1.W.array = given
    np.testing.assert_array_equal(model(images(1)).array, expected)
    assert order(model.conv1.W.array) == "NHWC"
    assert model.conv1.W.dtype == compute


# float64.


def test_float64_models_are_left_alone_and_right():
    def function(m, x):
        x = m.stem(x)
        h = F.relu(m.bn1(m.conv1(x)))
        h = F.max_pooling_2d(F.relu(m.bn2(m.conv2(h)) + x), 2)
        return F.dropout(F.local_response_normalization(F.leaky_relu(h)), 0.0)

    found = []
    for convert in (False, True):
        with chainer.using_config("dtype", np.float64):
            model = new(function)
            for param in model.params():
                param.array = param.array.astype(np.float64)
            params = [param.array for param in model.params()]
            if convert:
                report = mixprec.convert(model, images(0).astype(np.float64))
                assert all(param.array is array for param, array in zip(model.params(), params, strict=True))
                assert set(report.parameters) == {"float64"}
            for call in range(2):
                x = chainer.Variable(images(call).astype(np.float64))
                model.cleargrads()
                y = model(x)
                F.sum(y * y).backward()
                assert y.dtype == x.grad.dtype == np.float64
                found.append({"y": y.array, "x": x.grad} | {n: param.grad for n, param in model.namedparams()})
    for plain, same in zip(found[:2], found[2:], strict=True):
        for name, array in plain.items():
            assert (array is None) == (same[name] is None)
            if array is not None:
                np.testing.assert_allclose(same[name], array, atol=1e-11 * max(abs(array).max(), 1e-3))


@pytest.mark.parametrize("compute", ["float16", "float32"])
def test_filters_are_laid_out_as_soon_as_they_have_moved_to_a_device(compute):
    """CuPy copies into the order of the axes, and raw memory may be sent before anybody calls the link."""
    link = L.Convolution2D(4, 6, 3)
    mixprec.convert(link, compute=compute)
    expected = link.W.array.copy()
    link.W.array = np.ascontiguousarray(link.W.array)
    link.to_device("@numpy")
    assert link.W.array.transpose(0, 2, 3, 1).flags.c_contiguous
    np.testing.assert_array_equal(link.W.array, expected)
