"""What hardly anybody does to a converted model, and what must be right all the same."""

import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import ml_dtypes
import numpy as np
import pytest
from chainer.functions.normalization.batch_normalization import BatchNormalization, GeneralBatchNormalizationImpl
from chainer.utils import type_check

import mixprec
from mixprec.precision.conversion_state import active


class Net(chainer.Chain):
    """Convolutions and batch normalizations, of which ``function(net, x)`` makes a network."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        np.random.seed(0)
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, pad=1)
            self.bn = L.BatchNormalization(8)
            self.conv2 = L.Convolution2D(8, 8, 3, pad=1)
            self.bn2 = L.BatchNormalization(8)

    def forward(self, x):
        return self.function(self, x)


def images(seed=0, channels=3):
    return np.random.RandomState(seed).normal(size=(2, channels, 6, 6)).astype(np.float32)


def residual(net, x):
    h = F.relu(net.bn(net.conv(x)))
    return F.relu(net.bn2(net.conv2(h)) + h)


def pair(function, **options):
    """Returns a plain network and a converted one, with the same weights, the latter in float32 unless told."""
    plain, converted = Net(function), Net(function)
    mixprec.convert(converted, **{"compute": "float32", **options})
    return plain, converted


POOLINGS = [
    lambda h: F.average_pooling_nd(h, 3, stride=2, pad=1, pad_value=None),
    lambda h: F.average_pooling_2d(h, 3, stride=2, pad=1),
    lambda h: F.max_pooling_2d(h, 3, stride=2),
]


@pytest.mark.parametrize(
    "pool", POOLINGS, ids=["average without padding", "average with padding", "maximum that covers all"]
)
def test_poolings_at_the_border(pool):
    plain, converted = pair(lambda net, x: pool(net.conv(x)))
    expected, found = plain(images()), converted(images())
    assert found.shape == expected.shape == (2, 8, 3, 3)
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-4, atol=1e-5)


# Parameters that several links share.


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
@pytest.mark.parametrize("before", ["nothing", "conv2", "extra"])
def test_revert_of_parameters_that_two_links_share(compute, before):
    """The second link found the dtype that the first one had given them."""
    model = Net(residual)
    with model.init_scope():
        model.extra = L.Convolution2D(8, 8, 3, pad=1)
        model.extra.W = model.conv2.W
    if before != "nothing":  # a part was converted before the rest
        mixprec.convert(model[before], compute=compute)
    mixprec.convert(model, compute=compute)
    assert model.conv2.W.dtype.name == compute
    mixprec.revert(model)
    assert model.conv2.W is model.extra.W
    assert model.conv2.W.dtype == np.float32
    assert model.conv2.W.array.flags.c_contiguous


def test_revert_of_lazy_parameters_that_two_links_share():
    model = chainer.Sequential(L.Linear(None, 4), L.Linear(None, 4))
    model[1].W = model[0].W
    initializer = model[0].W.initializer
    mixprec.convert(model)
    mixprec.revert(model)
    assert model[0].W.initializer is initializer
    assert model(np.ones((2, 4), np.float32)).dtype == np.float32
    assert model[0].W.dtype == np.float32


# Buffers that a model fills again and again.


def _frames(layer):
    def forward(net, frames):
        outputs, buffer = [], np.empty_like(frames[0])
        for frame in frames:
            buffer[...] = frame
            outputs.append(F.relu(layer(net, buffer)))
        return F.concat(outputs, axis=0)

    return forward


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("order", ["NCHW", "NHWC", "NC"])
def test_a_buffer_that_is_normalized_without_backprop(train, order):
    """What was deferred was computed when the buffer held the next frame."""
    frames = np.random.RandomState(0).normal(size=(3, 4, 6, 6, 8)).astype(np.float32)
    frames = {
        "NHWC": frames.transpose(0, 1, 4, 2, 3),
        "NCHW": np.ascontiguousarray(frames.transpose(0, 1, 4, 2, 3)),
        "NC": frames[:, :, 0, 0],
    }[order]
    plain, converted = pair(_frames(lambda net, x: net.bn(x)))
    with chainer.using_config("train", train), chainer.no_backprop_mode():
        expected, found = plain(frames).array, converted(frames).array
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(converted.bn.avg_var, plain.bn.avg_var, rtol=1e-5)


def test_a_buffer_in_evaluation_where_nobody_has_said_no_backprop_mode():
    """The conversion to NHWC of the first frame was taken for all."""
    frames = np.stack([images(0), images(1)])
    plain, converted = pair(_frames(lambda net, x: F.convolution_2d(x, net.conv.W, pad=1)))
    with chainer.using_config("train", False):
        expected, found = plain(frames).array, converted(frames).array
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


# Shapes and dtypes.


def test_a_product_with_one_element_of_five_axes():
    """It was taken for a number, and the result for images."""
    factor = np.full((1, 1, 1, 1, 1), 2, np.float32)
    plain, converted = pair(lambda net, x: net.conv(x) * factor)
    expected = plain(images()).array
    assert expected.ndim == 5
    np.testing.assert_allclose(converted(images()).array, expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_images_in_nchw():
    """Chainer's cast and the rule for it called each other without an end."""
    plain, converted = pair(residual, layout="nchw", fuse=False)
    x = images().astype(ml_dtypes.bfloat16)
    found = converted(x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.array, plain(x.astype(np.float32)).array, rtol=1e-5, atol=1e-5)


def test_a_convolution_of_too_many_channels_is_chainers_error_even_if_they_are_zeros():
    """They were taken for those that a loader pads; on a GPU nobody looks whether they are zeros."""

    def forward(net, x):
        return F.convolution_2d(net.conv(x) * 0, net.conv2.W[:, :7], pad=1)

    for model in pair(forward):
        with pytest.raises(type_check.InvalidType):
            model(images())


# What a step holds.


def test_forget_does_not_hold_what_the_call_has_cast():
    """The function that is repeated held the scope of the call, and that all inputs beside their casts."""
    held = []

    def forward(net, x):
        held.append(active.scope)
        return F.forget(lambda h: residual(net, h), x)

    model = Net(forward)
    mixprec.convert(model)
    y = model(images())
    scope = weakref.ref(held.pop())
    assert scope() is None
    F.sum(y).backward()
    assert model.conv.W.grad is not None


# Optimizers.


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("dtypes", [("float32", "float16"), ("bfloat16", "float16"), ("float16", "bfloat16")])
def test_masters_keep_their_bits_if_a_run_goes_on_in_another_dtype(dtypes, batched):
    """They were rounded together with what the model computes with."""
    model = Net(residual)
    mixprec.convert(model, compute=dtypes[0])
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(0.05), 8, batched=batched).setup(model)

    def step():
        optimizer.update(lambda x: F.mean(model(x) ** 2), images())
        return {name: optimizer.master(param).array.copy() for name, param in model.namedparams()}

    before = step()
    model.conv.b.array[0] = 3  # written by somebody: counts
    before["/conv/b"][0] = 3
    mixprec.convert(model, compute=dtypes[1])
    for name, param in model.namedparams():
        np.testing.assert_array_equal(optimizer.master(param).array, before[name], err_msg=name)
        np.testing.assert_array_equal(param.array, before[name].astype(param.dtype), err_msg=name)
    after = step()
    assert any((after[name] != before[name]).any() for name in after)
    mixprec.revert(model)
    for name, param in model.namedparams():
        np.testing.assert_array_equal(param.array, after[name], err_msg=name)


@pytest.mark.parametrize("example", [False, True])
@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
@pytest.mark.parametrize("setup_first", [True, False])
def test_setup_before_convert_trains_from_the_float32_weights_and_after_it_from_the_rounded_ones(
    setup_first, compute, example, tmp_path
):
    """What is loaded after both is in the masters bit for bit in either order."""
    model = Net(residual)
    before = {name: param.array.copy() for name, param in model.namedparams()}
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(0), 8)
    if setup_first:
        optimizer.setup(model)
    mixprec.convert(model, images() if example else None, compute=compute)
    if not setup_first:
        optimizer.setup(model)
    optimizer.update(lambda x: F.mean(model(x) ** 2), images())  # a learning rate of 0: nothing moves
    assert optimizer.skipped == 0
    for name, param in model.namedparams():
        rounded = before[name].astype(param.dtype)
        np.testing.assert_array_equal(param.array, rounded, err_msg=name)
        expected = before[name] if setup_first else rounded.astype(np.float32)
        np.testing.assert_array_equal(optimizer.master(param).array, expected, err_msg=name)
    assert (model.conv.W.array != before["/conv/W"]).any()

    other = Net(residual)
    for param in other.params():
        param.array = np.random.RandomState(7).normal(size=param.shape).astype(np.float32)
    chainer.serializers.save_npz(tmp_path / "other.npz", other)
    chainer.serializers.load_npz(tmp_path / "other.npz", model)
    for (name, param), (_, loaded) in zip(model.namedparams(), other.namedparams(), strict=True):
        np.testing.assert_array_equal(optimizer.master(param).array, loaded.array, err_msg=name)


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
def test_weights_that_are_drawn_in_a_forward_pass_are_rounded_whether_setup_or_convert_comes_first(compute):
    found = []
    for setup_first in (True, False):
        np.random.seed(0)
        model = L.Linear(None, 5)
        optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(0), 8)
        if setup_first:
            optimizer.setup(model)
        mixprec.convert(model, np.ones((2, 7), np.float32), compute=compute)
        if not setup_first:
            optimizer.setup(model)
        found.append(optimizer.master(model.W).array)
        np.testing.assert_array_equal(found[-1], model.W.array.astype(np.float32), strict=True)
    np.testing.assert_array_equal(*found)
    assert found[0].any()


def test_a_model_without_masters_does_not_keep_what_was_rounded():
    model = Net(residual)
    array = weakref.ref(model.conv.W.array)
    mixprec.convert(model)
    assert array() is None


# What a model does inside, and returns.


@pytest.mark.parametrize("example", [False, True])
def test_a_model_that_differentiates_inside_also_in_evaluation(example):
    """The example was called without backprop in evaluation, so that a gradient was None there."""

    def forward(net, x):
        x = chainer.Variable(x)
        (gradient,) = chainer.grad([F.sum(residual(net, x) ** 2)], [x])
        return residual(net, x.array - 0.01 * gradient.array)

    plain, converted = pair(forward, example=images() if example else None)
    for train in (True, False):
        with chainer.using_config("train", train):
            np.testing.assert_allclose(converted(images()).array, plain(images()).array, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
def test_arrays_that_a_model_returns_are_float32(compute):
    """NumPy adds float16 in float16."""
    counts = np.arange(3)

    def forward(net, x):
        h = residual(net, x)
        return h, h.array, {"probabilities": [F.softmax(h).array], "counts": counts, "x": x}

    _, converted = pair(forward, compute=compute)
    h, array, others = converted(x := images())
    assert array.dtype == others["probabilities"][0].dtype == np.float32
    np.testing.assert_array_equal(array, h.array)
    assert array.flags.c_contiguous
    assert others["counts"] is counts
    assert others["x"] is x


@pytest.mark.parametrize("which", ["mean", "var"])
def test_statistics_that_want_a_gradient(which):
    """That of a variable without a creator was None."""
    statistics = {"mean": np.full(8, 0.1, np.float32), "var": np.full(8, 0.9, np.float32)}
    statistics[which] = chainer.Variable(statistics[which])

    def forward(net, x):
        h = F.fixed_batch_normalization(net.conv(x), net.bn.gamma, net.bn.beta, **statistics)
        return F.relu(h)

    gradients = []
    for model in pair(forward):
        statistics[which].cleargrad()
        F.sum(model(images()) ** 2).backward()
        gradients.append(statistics[which].grad)
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-4)


# Batch normalizations with an implementation of their own, as that of ChainerMN.


class Halved(GeneralBatchNormalizationImpl):
    """Takes half of the batch's variance."""

    def get_mean_and_var(self, axis, gamma, x, xp, interm_dtype):
        assert x.dtype == np.float32
        return x.mean(axis), x.var(axis) / 2


@pytest.mark.parametrize("options", [{}, {"compute": "bfloat16"}, {"layout": "nchw", "fuse": False}], ids=str)
def test_a_batch_normalization_with_another_implementation_is_computed_by_it(options):
    """It was computed as any other, in silence."""

    def halved(node, inputs):
        return Halved()

    def forward(net, x):
        bn = net.bn
        node = BatchNormalization(bn.eps, bn.avg_mean, bn.avg_var, bn.decay, impl_selector=halved)
        return F.relu(node.apply((net.conv(x), bn.gamma, bn.beta))[0])

    plain, converted = Net(forward), Net(forward)
    report = mixprec.convert(converted, **{"compute": "float16", "example": images(), **options})
    rounding = 2.0**-7 if options.get("compute") == "bfloat16" else 2.0**-10
    np.testing.assert_allclose(converted(images()).array, plain(images()).array, atol=8 * rounding)
    np.testing.assert_allclose(converted.bn.avg_var, plain.bn.avg_var, rtol=4 * rounding)
    assert "/ (BatchNormalization): it is computed by halved, in float32" in report.unconverted
    assert report.fused["ReLU"] == 0


def test_an_example_that_fails_leaves_the_implementation_of_a_batch_normalization():
    """While the example is computed it is Chainer's, which waits for no other process."""
    nodes = []

    def halved(node, inputs):
        return Halved()

    def forward(net, x):
        nodes.append(BatchNormalization(net.bn.eps, impl_selector=halved))
        return nodes[-1].apply((net.conv(x), net.bn.gamma[:1], net.bn.beta))[0]

    with pytest.raises(type_check.InvalidType):
        mixprec.convert(Net(forward), images())
    assert nodes[-1]._impl_selector is halved


def test_labels_in_a_list_are_named():
    model = L.Classifier(L.Linear(3, 4))
    mixprec.convert(model)
    found = r"^SoftmaxCrossEntropy: input 1 must be an array or a variable; found \[0, 1\]$"
    with pytest.raises(TypeError, match=found):
        model(np.zeros((2, 3), np.float32), [0, 1])
