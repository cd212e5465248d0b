"""Wrong arguments of the public face: one line that names the argument, what was found, and what would be right."""

import pickle

import chainer
import chainer.links as CL
import ml_dtypes
import numpy as np
import pytest
from chainer import optimizers

import mixprec
import mixprec.functions as F
import mixprec.links as L
from mixprec.base import arguments
from mixprec.graph_capture import capture_evaluation
from mixprec.precision.loss_scale import NoLossScale
from mixprec.training import CapturedUpdater, GradientHistogram, LogReport, LossScaleLog

X = np.ones((2, 6, 6, 8), np.float32)
W = np.ones((8, 8, 3, 3), np.float32)
ONES = np.ones(8, np.float32)
LABELS = np.zeros(2, np.int32)


def _model():
    return CL.Linear(3, 2)


def _optimizer(**keywords):
    return mixprec.MixedPrecisionOptimizer(optimizers.SGD(), **keywords).setup(_model())


def _plain(**keywords):
    return mixprec.MixedPrecisionOptimizer(optimizers.SGD(), **keywords)


def _loss(array):
    return chainer.Variable(np.asarray(array))


def _normalize(**keywords):
    return F.batch_normalization(X, ONES, ONES, **keywords)


def _iterator():
    return chainer.iterators.SerialIterator([0], 1)


# The argument, a call in which it is wrong, and words that must be in the message: what was found, or would be right.
WRONG = [
    ("model", lambda: mixprec.convert(5), "chainer.Link; found int"),
    ("model", lambda: mixprec.convert(CL.Linear), "chainer.Link; found the class Linear"),
    ("example", lambda: mixprec.convert(_model(), 5), "an array or variable"),
    ("example", lambda: mixprec.convert(_model(), {1: X}), "strings as keys"),
    ("compute", lambda: mixprec.convert(_model(), compute="half_"), "found 'half_'; did you mean 'half'?"),
    (
        "layout",
        lambda: mixprec.convert(_model(), layout="NHWD"),
        "nhwc, nchw, channels_last, channels_first, contiguous; found 'NHWD'; did you mean 'nhwc'?",
    ),
    ("layout", lambda: mixprec.convert(_model(), layout=None), "channels_last, channels_first, contiguous; found None"),
    ("fuse", lambda: mixprec.convert(_model(), fuse="yes"), "True or False; found 'yes'"),
    ("fuse", lambda: mixprec.convert(_model(), fuse=1), "True or False; found 1"),
    ("fuse", lambda: mixprec.convert(_model(), layout="nchw", fuse=True), "needs layout='nhwc'"),
    ("compute", lambda: mixprec.convert(_model(), layout="nchw", compute="bfloat16"), "needs layout='nhwc'"),
    ("strict", lambda: mixprec.convert(_model(), strict="very"), "True or False; found 'very'"),
    ("model", lambda: mixprec.revert([]), "chainer.Link; found list"),
    ("optimizer", lambda: mixprec.capture("o"), "MixedPrecisionOptimizer; found str"),
    ("optimizer", lambda: mixprec.capture(optimizers.SGD()), "MixedPrecisionOptimizer; found SGD"),
    ("lossfun", lambda: mixprec.capture(_optimizer(), "m"), "a function or None; found 'm'"),
    ("warmup", lambda: mixprec.capture(_optimizer(), warmup=1), "2 or more; found 1"),
    ("graphs", lambda: mixprec.capture(_optimizer(), graphs=0), "1 or more; found 0"),
    ("other_shapes", lambda: mixprec.capture(_optimizer(), other_shapes="none"), "capture, eager; found 'none'"),
    ("required", lambda: mixprec.capture(_optimizer(), required="no"), "True or False; found 'no'"),
    ("model", lambda: capture_evaluation(3), "chainer.Link; found int"),
    ("required", lambda: capture_evaluation(_model(), required=0), "found 0"),
    # MixedPrecisionOptimizer
    ("optimizer", lambda: mixprec.MixedPrecisionOptimizer("SGD"), "GradientMethod; found str"),
    ("optimizer", lambda: mixprec.MixedPrecisionOptimizer(_plain()), "found MixedPrecisionOptimizer"),
    ("loss_scale", lambda: _plain(loss_scale="big"), "'dynamic', a number, None or a loss scale object; found 'big'"),
    ("loss_scale", lambda: _plain(loss_scale=1000), "power of two from 2^-149 to 2^127; found 1000"),
    ("batched", lambda: _plain(batched="yes"), "True or False; found 'yes'"),
    ("batched", lambda: _plain(batched=None), "True or False; found None"),
    ("no_decay", lambda: _plain(no_decay="bias"), "found 'bias'"),
    ("zero_gradients", lambda: _plain(zero_gradients=1), "found 1"),
    ("link", lambda: _plain().setup("model"), "chainer.Link; found str"),
    ("param", lambda: _optimizer().master("/W"), "chainer.Parameter; found str"),
    ("hook", lambda: _plain().add_hook("decay"), "a function; found 'decay'"),
    ("name", lambda: _plain().add_hook(print, 3), "a string or None; found int"),
    ("timing", lambda: _plain().add_hook(print, timing="later"), "auto, pre, post; found 'later'"),
    ("loss_scale", lambda: _plain().set_loss_scale("x"), "loss_scale='x' here"),
    ("loss", lambda: _optimizer().scale_loss(3), "chainer.Variable; found int"),
    ("loss", lambda: _optimizer().scale_loss(np.float32(3)), "chainer.Variable; found float32"),
    ("loss", lambda: _optimizer().scale_loss(_loss([1.0, 2.0])), "one element"),
    ("loss", lambda: _optimizer(loss_scale=None).scale_loss(_loss(np.zeros((0,)))), "found shape (0,)"),
    ("loss", lambda: _optimizer().scale_loss(_loss(3)), "floating-point numbers; found int"),
    ("lossfun", lambda: _optimizer().update(3), "a function or None; found 3"),
    ("loss", lambda: _optimizer().update(lambda: 3.0), "chainer.Variable; found float"),
    ("loss", lambda: _optimizer().update(lambda: iter([3.0])), "chainer.Variable; found float"),
    ("serializer", lambda: _optimizer().serialize("file.npz"), "chainer.AbstractSerializer; found str"),
    # loss scales
    ("value", lambda: mixprec.StaticLossScale("8"), "power of two from 2^-149 to 2^127; found '8'"),
    ("device", lambda: mixprec.StaticLossScale(8).factor("@numpy"), "chainer.backend.Device; found str"),
    ("init", lambda: mixprec.DynamicLossScale(init="65536"), "power of two from 2^-149 to 2^127; found '65536'"),
    ("init", lambda: mixprec.DynamicLossScale(init=2**5000), "power of two"),
    ("growth", lambda: mixprec.DynamicLossScale(growth=1), "greater than 1"),
    ("backoff", lambda: mixprec.DynamicLossScale(backoff=2), "between 0 and 1"),
    ("interval", lambda: mixprec.DynamicLossScale(interval=0), "from 1 to 2147483647; found 0"),
    ("interval", lambda: mixprec.DynamicLossScale(interval=5.0), "whole number from 1 to 2147483647; found 5.0"),
    ("hysteresis", lambda: mixprec.DynamicLossScale(hysteresis=None), "found None"),
    ("hysteresis", lambda: mixprec.DynamicLossScale(hysteresis=2**31), "from 1 to 2147483647; found 2147483648"),
    ("patience", lambda: mixprec.DynamicLossScale(patience="50"), "found '50'"),
    ("floor", lambda: mixprec.DynamicLossScale(floor=0), "power of two from 2^-149 to 2^127; found 0"),
    ("cap", lambda: mixprec.DynamicLossScale(cap=1.0), "less than init"),
    ("overflow", lambda: mixprec.DynamicLossScale().adjust("yes"), "boolean array; found 'yes'"),
    ("device", lambda: mixprec.DynamicLossScale().factor(0), "found int"),
    ("serializer", lambda: mixprec.DynamicLossScale().serialize({}), "found dict"),
    ("serializer", lambda: NoLossScale().serialize(None), "found NoneType"),
    # LARS and LAMB
    ("lr", lambda: mixprec.LARS(lr="0.1"), "a finite number; found '0.1'"),
    ("momentum", lambda: mixprec.LARS(momentum=1.5), "from 0 to below 1; found 1.5"),
    ("weight_decay", lambda: mixprec.LARS(weight_decay=[1e-4]), "found [0.0001]"),
    ("trust_coefficient", lambda: mixprec.LARS(trust_coefficient=-1), "0 or more; found -1"),
    ("eps", lambda: mixprec.LARS(eps=True), "found True"),
    ("adapt", lambda: mixprec.LARS(adapt="no"), "True or False; found 'no'"),
    ("nesterov", lambda: mixprec.SGDW(nesterov=1.5), "True or False; found 1.5"),
    ("weight_decay", lambda: mixprec.SGDW(weight_decay="5e-4"), "found '5e-4'"),
    ("momentum", lambda: mixprec.ScheduleFreeSGD(momentum=1), "from 0 to below 1; found 1"),
    ("momentum", lambda: mixprec.ScheduleFreeSGD(momentum=0), "above 0; found 0"),
    ("lr", lambda: mixprec.ScheduleFreeSGD(lr=None), "found None"),
    ("lr", lambda: mixprec.LAMB(lr=float("inf")), "a finite number; found inf"),
    ("beta1", lambda: mixprec.LAMB(beta1=1), "from 0 to below 1; found 1"),
    ("beta2", lambda: mixprec.LAMB(beta2="0.9"), "found '0.9'"),
    ("eps", lambda: mixprec.LAMB(eps=-1e-6), "0 or more; found -1e-06"),
    ("weight_decay", lambda: mixprec.LAMB(weight_decay=np.ones(2)), "found ndarray"),
    ("adapt", lambda: mixprec.LAMB(adapt=1), "found 1"),
    # KFAC
    ("damping", lambda: mixprec.KFAC("0.1"), "a finite number; found '0.1'"),
    ("damping", lambda: mixprec.KFAC(0), "above 0; found 0"),
    ("damping", lambda: mixprec.KFAC(float("nan")), "a finite number; found nan"),
    ("decay", lambda: mixprec.KFAC(decay=1), "from 0 to below 1; found 1"),
    ("kl_clip", lambda: mixprec.KFAC(kl_clip=0.0), "above 0, or None; found 0.0"),
    ("kl_clip", lambda: mixprec.KFAC(kl_clip="1e-3"), "a finite number; found '1e-3'"),
    ("factor_every", lambda: mixprec.KFAC(factor_every=0), "1 or more; found 0"),
    ("inverse_every", lambda: mixprec.KFAC(inverse_every=True), "found True"),
    ("inverse_every", lambda: mixprec.KFAC(factor_every=3, inverse_every=4), "a multiple of factor_every; found 4"),
    ("largest", lambda: mixprec.KFAC(largest=None), "1 or more; found None"),
    ("preconditioner", lambda: _plain(preconditioner="kfac"), "a mixprec.KFAC or None; found str"),
    # functions
    ("x", lambda: F.relu([1.0]), "array or a variable; found [1.0]"),
    ("x", lambda: F.relu(None), "array or a variable; found None"),
    ("x", lambda: F.global_average_pooling_2d(3), "found 3"),
    ("x", lambda: F.convolution_2d(3, W), "found 3"),
    ("W", lambda: F.convolution_2d(X, [1]), "found [1]"),
    ("b", lambda: F.convolution_2d(X, W, 1.0), "found 1.0"),
    ("stride", lambda: F.convolution_2d(X, W, stride="2"), "found '2'"),
    ("pad", lambda: F.convolution_2d(X, W, pad=-1), "0 or more"),
    ("dilate", lambda: F.convolution_2d(X, W, dilate=(1, 1.5)), "found (1, 1.5)"),
    ("groups", lambda: F.convolution_2d(X, W, groups=True), "found True"),
    ("relu", lambda: F.convolution_2d(X, W, relu="yes"), "True or False; found 'yes'"),
    ("statistics", lambda: F.convolution_2d(X, W, statistics=1), "found 1"),
    ("outsize", lambda: F.deconvolution_2d(X, W, outsize="8"), "found '8'"),
    ("eps", lambda: _normalize(eps="small"), "0 or more; found 'small'"),
    ("eps", lambda: _normalize(eps=-1.0), "0 or more; found -1.0"),
    ("decay", lambda: _normalize(decay=None), "found None"),
    ("relu", lambda: _normalize(relu=0), "found 0"),
    ("sums", lambda: _normalize(sums=3), "found 3"),
    ("running_mean", lambda: _normalize(running_mean=0.0, running_var=ONES), "found 0.0"),
    ("gamma", lambda: F.batch_normalization(X, 1.0, ONES), "found 1.0"),
    ("add", lambda: _normalize(add=1), "found 1"),
    ("var", lambda: F.fixed_batch_normalization(X, ONES, ONES, ONES, 1.0), "found 1.0"),
    ("dtype", lambda: F.cast(X, "float64"), "float32, fp16, half, bf16, fp32, single; found 'float64'"),
    ("x", lambda: F.cast("x", "float16"), "found 'x'"),
    ("dtype", lambda: F.to_nhwc(X, int), "found the class int"),
    ("channels", lambda: F.to_nhwc(X, channels="8"), "1 or more; found '8'"),
    ("channels", lambda: F.to_nchw(X, channels=0), "1 or more; found 0"),
    ("xs", lambda: F.concat(X), "a list or tuple"),
    ("xs[1]", lambda: F.concat([X, 3]), "array or a variable; found 3"),
    ("ratio", lambda: F.dropout(X, "0.5"), "from 0 to below 1; found '0.5'"),
    ("ratio", lambda: F.dropout(X, 1), "from 0 to below 1; found 1"),
    ("ratio", lambda: F.stochastic_depth(X, 1), "from 0 to below 1; found 1"),
    ("serializer", lambda: F.serialize_dropout({}, []), "chainer.AbstractSerializer; found dict"),
    ("n_batch_axes", lambda: F.linear(X, W, n_batch_axes="1"), "found '1'"),
    ("x", lambda: F.linear([[1.0]], W), "found [[1.0]]"),
    ("n", lambda: F.local_response_normalization(X, n=2.5), "found 2.5"),
    ("alpha", lambda: F.local_response_normalization(X, alpha="1"), "a finite number; found '1'"),
    ("beta", lambda: F.local_response_normalization(X, beta=True), "found True"),
    ("ksize", lambda: F.max_pooling_2d(X, None), "found None"),
    ("cover_all", lambda: F.max_pooling_2d(X, 2, cover_all="all"), "True or False; found 'all'"),
    ("stride", lambda: F.average_pooling_2d(X, 2, 0), "1 or more"),
    ("t", lambda: F.softmax_cross_entropy(np.ones((2, 3), "f"), [0, 1]), "found [0, 1]"),
    ("normalize", lambda: F.softmax_cross_entropy(X[:, 0, 0], LABELS, normalize="no"), "found 'no'"),
    ("reduce", lambda: F.softmax_cross_entropy(X[:, 0, 0], LABELS, reduce="sum"), "mean, no; found 'sum'"),
    ("ignore_label", lambda: F.softmax_cross_entropy(X[:, 0, 0], LABELS, ignore_label=None), "found None"),
    ("smoothing", lambda: F.softmax_cross_entropy(X[:, 0, 0], LABELS, smoothing="0"), "below 1; found '0'"),
    ("class_weight", lambda: F.softmax_cross_entropy(X[:, 0, 0], LABELS, class_weight=3), "must be an array"),
    # links
    ("in_channels", lambda: L.Convolution2D("3", 4, 3), "1 or more; found '3'"),
    ("in_channels", lambda: L.Convolution2D(0, 4, 3), "1 or more; found 0"),
    ("out_channels", lambda: L.Convolution2D(3, None, 3), "1 or more; found None"),
    ("ksize", lambda: L.Convolution2D(3, 4, "3"), "found '3'"),
    ("stride", lambda: L.Convolution2D(3, 4, 3, stride=0), "1 or more"),
    ("pad", lambda: L.Convolution2D(3, 4, 3, pad="same"), "found 'same'"),
    ("nobias", lambda: L.Convolution2D(3, 4, 3, nobias="no"), "True or False; found 'no'"),
    (
        "initialW",
        lambda: L.Convolution2D(3, 4, 3, initialW="he"),
        "an initializer, an array, a number or None; found 'he'",
    ),
    ("initial_bias", lambda: L.Convolution2D(3, 4, 3, initial_bias=[1]), "found [1]"),
    ("dilate", lambda: L.Convolution2D(3, 4, 3, dilate=1.5), "found 1.5"),
    ("groups", lambda: L.Convolution2D(3, 4, 3, groups=None), "found None"),
    ("dtype", lambda: L.Convolution2D(3, 4, 3, dtype="float64"), "found 'float64'"),
    ("outsize", lambda: L.Deconvolution2D(3, 4, 3, outsize="x"), "found 'x'"),
    ("out_channels", lambda: L.Deconvolution2D(3, 2.5, 3), "found 2.5"),
    ("in_size", lambda: L.Linear("3", 4), "1 or more; found '3'"),
    ("out_size", lambda: L.Linear(0), "1 or more; found 0"),
    ("nobias", lambda: L.Linear(3, 4, nobias=None), "found None"),
    ("initialW", lambda: L.Linear(3, 4, initialW=np.float32), "found the class float32"),
    ("dtype", lambda: L.Linear(3, 4, dtype=5), "found 5"),
    ("size", lambda: L.BatchNormalization("3"), "1 or more; found '3'"),
    ("decay", lambda: L.BatchNormalization(3, decay="0.9"), "found '0.9'"),
    ("eps", lambda: L.BatchNormalization(3, eps=None), "0 or more; found None"),
    ("dtype", lambda: L.BatchNormalization(3, dtype="float16"), "found float16"),
    ("use_gamma", lambda: L.BatchNormalization(3, use_gamma="no"), "found 'no'"),
    ("initial_beta", lambda: L.BatchNormalization(3, initial_beta="zero"), "found 'zero'"),
    ("axis", lambda: L.BatchNormalization(3, axis="all"), "found 'all'"),
    ("x", lambda: L.Convolution2D(None, 4, 3)([1.0]), "array or a variable; found [1.0]"),
    ("x", lambda: L.Convolution2D(8, 4, 3)(3), "array or a variable; found 3"),
    ("relu", lambda: L.Convolution2D(8, 4, 3)(X, relu="yes"), "found 'yes'"),
    ("x", lambda: L.Deconvolution2D(None, 4, 3)("x"), "found 'x'"),
    ("x", lambda: L.Linear(None, 4)([1.0]), "found [1.0]"),
    ("n_batch_axes", lambda: L.Linear(None, 4)(X, n_batch_axes="1"), "found '1'"),
    ("x", lambda: L.BatchNormalization()(3), "found 3"),
    ("finetune", lambda: L.BatchNormalization(8)(X, finetune="yes"), "found 'yes'"),
    # extensions and updater
    ("optimizer", lambda: LossScaleLog(optimizers.SGD()), "MixedPrecisionOptimizer; found SGD"),
    ("optimizer", lambda: GradientHistogram("o"), "MixedPrecisionOptimizer; found 'o'"),
    ("filename", lambda: GradientHistogram(_plain(), 3), "a string; found int"),
    ("numbers", lambda: GradientHistogram(_plain(), numbers=3), "a string or None; found int"),
    ("keys", lambda: LogReport(keys="loss"), "a list of strings or None; found str"),
    ("trigger", lambda: LogReport(trigger=3), "found 3"),
    ("trigger", lambda: LogReport(trigger=(1, "hour")), "found (1, 'hour')"),
    ("postprocess", lambda: LogReport(postprocess=3), "found 3"),
    ("filename", lambda: LogReport(filename=3), "a string or None; found int"),
    ("iterator", lambda: CapturedUpdater([X], _optimizer()), "chainer.dataset.Iterator"),
    ("optimizer", lambda: CapturedUpdater(_iterator(), optimizers.SGD().setup(_model())), "found SGD"),
    ("accumulate", lambda: CapturedUpdater(_iterator(), _optimizer(), accumulate=0), "1 or more; found 0"),
    ("warmup", lambda: CapturedUpdater(_iterator(), _optimizer(), warmup=1.5), "found 1.5"),
]


def test_each_wrong_argument_is_named_in_one_line_with_what_was_found():
    problems = []
    for argument, call, words in WRONG:
        try:
            call()
            message = "is accepted"
        except (TypeError, ValueError) as error:
            message = str(error)
            if argument in message.partition("; found")[0] and words in message and "\n" not in message:
                continue
        except Exception as error:
            message = repr(error)
        problems.append(f"{argument} ({words}): {message}")
    assert not problems, "\n".join(problems)


DTYPES = [np.float16, np.dtype("float16"), "float16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16), "float32", "f4"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_numpy_takes_for_a_dtype_is_one(dtype):
    model = _model()
    mixprec.convert(model, compute=dtype)
    assert model.W.dtype == L.Linear(3, 2, dtype=dtype).W.dtype == F.cast(X, dtype).dtype == np.dtype(dtype)


def test_numbers_may_be_numpys():
    scale = mixprec.DynamicLossScale(
        init=np.float32(8), growth=np.int8(2), floor=np.float16(1), interval=np.int64(5), patience=np.uint8(7)
    )
    assert (scale.value, scale.growth, scale.floor, scale.interval, scale.patience) == (8.0, 2.0, 1.0, 5, 7)
    assert all(type(value) is int for value in (scale.interval, scale.patience))
    assert _plain(loss_scale=np.int64(8)).loss_scale == 8.0
    assert _plain(batched=np.bool_(False))._options["batched"] is False
    assert mixprec.LARS(lr=np.float64(0.5), adapt=np.True_).lr == 0.5
    mixprec.capture(_optimizer(), warmup=np.int64(3), graphs=np.int32(1))
    np.testing.assert_array_equal(
        F.max_pooling_2d(X, np.int64(2), cover_all=np.True_).array, F.max_pooling_2d(X, 2).array
    )
    L.Convolution2D(np.int64(3), np.int32(4), np.int8(3), groups=np.int64(1))
    assert F.local_response_normalization(X, np.int64(3), np.float32(2), ml_dtypes.bfloat16(0.5), 1).shape == X.shape


def test_fuse_follows_layout_unless_it_is_given():
    for layout, fuse, expected in (("nhwc", None, True), ("nchw", None, False), ("nhwc", False, False)):
        model = _model()
        mixprec.convert(model, layout=layout, fuse=fuse)
        policy = model.__dict__["_mixprec_conversion"].conversion.policy
        assert (policy.layout, policy.fuse) == (layout, expected)
        assert pickle.loads(pickle.dumps(policy)) == policy


class LongName:
    def __repr__(self):
        return "several\nlines " * 100


_ODD = {"lines": "\n" * 500, "object": LongName(), "dict": {"a": LongName()}, "list": [LongName()], "number": 10**4000}
_ODD |= {"longer number": -(10**5000), "list of a longer number": [10**5000], "escape": "\x1b[31m", "name": "x" * 10**6}


@pytest.mark.parametrize("value", _ODD.values(), ids=_ODD)
def test_what_was_found_is_short_and_in_one_line(value):
    found = arguments.found(value)
    assert len(found) < 200
    assert found.isprintable()
