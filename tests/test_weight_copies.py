"""Copies and averages of converted models: FP32 bits go along, small steps add up, optimizers keep what they had."""

import copy
import io
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers, training

import mixprec
import mixprec.links
from mixprec.export.chainer_graph import plain_copy
from tests.cases import first, pairs
from tests.comparison import assert_same
from tests.stand_ins import device_stand_in
from tests.stand_ins.device_stand_in import DeviceArray

X = np.random.RandomState(0).normal(size=(4, 3, 6, 6)).astype(np.float32)
IDS = np.array([0, 1, 2, 6], np.int32)
MODES = [("float16", "nhwc"), ("float16", "nchw"), ("bfloat16", "nhwc")]


def _pickled(model):
    return pickle.loads(pickle.dumps(model))


COPIES = {
    "deepcopy": copy.deepcopy,
    "copy": lambda model: model.copy("copy"),
    "pickle": _pickled,
    "a copy of a copy": lambda model: copy.deepcopy(_pickled(model)),
    "to_device": lambda model: copy.deepcopy(model).to_device("@numpy"),
}
copies = pytest.mark.parametrize(("name", "mode"), first(5, pairs([*COPIES], MODES)))


class Net(chainer.Chain):
    """A link of each kind that has weights in 16 bits, and functions of the user on weights."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.bn = L.BatchNormalization(8)
            self.up = L.Deconvolution2D(8, 8, 3, pad=1)
            self.body = chainer.Sequential(
                L.DilatedConvolution2D(8, 8, 3, pad=2, dilate=2), F.relu, L.DepthwiseConvolution2D(8, 1, 3, pad=1)
            )
            self.local = L.LocalConvolution2D(8, 8, (6, 6), (6, 6), 1, nobias=True)
            self.fc = L.Linear(8, 6)
            self.pair = L.Bilinear(6, 6, 5)
            self.embed = L.EmbedID(7, 5)
            self.lstm = L.StatelessLSTM(5, 4)
            self.line = L.ConvolutionND(1, 1, 2, 3, pad=1)

    def forward(self, x, ids):
        h = F.relu(self.bn(self.conv(x)))
        h = self.body(self.up(h + x[:, :1]))
        h = self.fc(F.average_pooling_2d(h, 6) + self.local(h))
        h = self.pair(h, h) + self.embed(ids)
        h = h + F.matmul(h, self.embed.W[:5]) * F.mean(self.fc.W * 2)
        _, h = self.lstm(None, None, h)
        return F.reshape(self.line(h[:, None, :]), (len(x), -1))


def _converted(compute="float16", layout="nhwc", steps=2):
    np.random.seed(0)
    model = Net()
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.Adam(), 64).setup(model)
    mixprec.convert(model, (X, IDS), compute=compute, layout=layout)
    for _ in range(steps):
        optimizer.update(lambda: F.sum(model(X, IDS) ** 2))
    assert optimizer.skipped == 0
    return model, optimizer


def _small(seed=0, compute="float16", inputs=3):
    """Returns a converted model with masters, after a step, and its optimizer."""
    np.random.seed(seed)
    model = chainer.Sequential(L.Linear(inputs, 4), F.relu, L.Linear(4, 2))
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.Adam(), 64).setup(model)
    mixprec.convert(model, compute=compute)
    if inputs:
        optimizer.update(_loss(model))
    return model, optimizer


def _loss(model):
    return lambda: F.sum(model(X[:, :, 0, 0]) ** 2)


def _file(link):
    file = io.BytesIO()
    chainer.serializers.save_npz(file, link)
    file.seek(0)
    return dict(np.load(file))


def _state(model, optimizer=None):
    """Returns arrays of parameters and, of an optimizer, of masters."""
    found = {name: param.array for name, param in model.namedparams()}
    if optimizer is not None:
        found |= {f"{name} master": optimizer.master(param).array for name, param in model.namedparams()}
    return found


def _gradients(model):
    found = {name: param.grad for name, param in model.namedparams() if param.grad is not None}
    return {name: gradient.astype(np.float32) for name, gradient in found.items()}


# --- a copy alone


@copies
def test_a_copy_is_float32_and_computes_as_its_source(name, mode):
    model, _ = _converted(*mode)
    twin = COPIES[name](model)
    assert {param.dtype for param in twin.params()} == {np.dtype(np.float32)}
    assert_same(_file(twin), _file(model))
    results = []
    for each in (model, twin):
        each.cleargrads()
        y = each(X, IDS)
        F.sum(y**2).backward()
        results.append(_gradients(each) | {"": y.array})
    assert_same(results[1], results[0])


@copies
def test_setup_and_convert_of_a_copy_start_from_the_masters(name, mode):
    model, optimizer = _converted(*mode)
    twin = COPIES[name](model)
    again = mixprec.MixedPrecisionOptimizer(optimizers.Adam(), 64).setup(twin)
    assert_same({k: v for k, v in _state(twin, again).items() if "master" in k},
                 {k: v for k, v in _state(model, optimizer).items() if "master" in k})  # fmt: skip
    mixprec.convert(twin, compute=mode[0], layout=mode[1])
    assert_same(_state(twin, again), _state(model, optimizer))
    plain = COPIES[name](model)
    mixprec.revert(plain)
    assert_same(_file(plain), _file(model))
    mixprec.convert(plain, compute=mode[0], layout=mode[1])
    assert_same(_state(plain), _state(model))


def _add(target, source, tau):
    target.array[...] += tau * (source - target.array)


def _assign(target, source, tau):
    target.data = (1 - tau) * target.data + tau * source


def _copydata(target, source, tau):
    target.copydata(chainer.Variable((1 - tau) * target.array + tau * source))


@pytest.mark.parametrize(
    ("update", "compute"), [(_add, "float16"), (_add, "bfloat16"), (_assign, "float16"), (_copydata, "float16")]
)
def test_a_target_network_goes_the_way_of_float32(update, compute):
    """Small steps: before, it stood still. The same loop of a plain model in FP32 is the reference."""
    ways, tau = [], 1e-3
    for convert in (False, True):
        model = L.Linear(8, 8, initialW=chainer.initializers.Uniform(1, rng=np.random.RandomState(0)))
        optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(0.0)).setup(model)
        if convert:
            mixprec.convert(model, compute=compute)
        target = copy.deepcopy(model)
        start = target.W.array.astype(np.float64)
        model.W.array[...] = model.W.array * 1.1
        for _ in range(2000):
            update(target.W, model.W.array, tau)
        ways.append((target.W.array - start) / (optimizer.master(model.W).array - start))
    np.testing.assert_allclose(ways[0], 1 - (1 - tau) ** 2000, rtol=0.001)
    np.testing.assert_allclose(ways[1], ways[0], rtol=0.01)


@pytest.mark.parametrize("copied", [copy.deepcopy, _pickled])
def test_a_teacher_that_is_called_follows_its_student(copied):
    """The average of the weights of all steps in float64 is the reference."""
    student, optimizer = _small()
    teacher = copied(student)
    expected = {name: param.array.astype(np.float64) for name, param in teacher.namedparams()}
    live = dict(student.namedparams())
    for _ in range(100):
        with chainer.no_backprop_mode():
            aim = teacher(X[:, :, 0, 0]).array
        optimizer.update(lambda aim=aim: F.mean_squared_error(student(X[:, :, 1, 1]), aim))
        for name, param in teacher.namedparams():
            param.array += 0.001 * (live[name].array - param.array)
            expected[name] += 0.001 * (live[name].array.astype(np.float64) - expected[name])
    for name, param in teacher.namedparams():
        np.testing.assert_allclose(param.array, expected[name], atol=1e-6)


def test_parameters_without_a_shape_become_float32_too():
    """As of a target network that is copied before the first call."""
    model, _ = _small(inputs=None)
    twins = copy.deepcopy(model), _pickled(model)
    for each in (model, *twins):
        np.random.seed(3)
        each(X)
    for twin in twins:
        assert twin[0].W.dtype == np.float32
        np.testing.assert_array_equal(twin[0].W.array, model[0].W.array.astype("f"))


def test_tied_parameters_stay_one():
    model = chainer.ChainList(L.Linear(4, 4), L.Linear(4, 4))
    model[1].W = model[0].W
    mixprec.convert(model)
    for twin in (copy.deepcopy(model), _pickled(model)):
        assert twin[0].W is twin[1].W


def test_a_sequential_that_is_copied_is_converted_as_a_whole():
    """It is a new ``Sequential``, and its links are copied one by one."""
    trunk = (L.Convolution2D(3, 8, 3, nobias=True), L.BatchNormalization(8), F.relu)
    model = chainer.Sequential(chainer.Sequential(*trunk), lambda h: h * 2, L.Convolution2D(8, 8, 3))
    mixprec.convert(model, X)

    def functions(network):
        with chainer.function_hooks.TimerHook() as hook, chainer.using_config("train", False):
            network(X)
        return [name for name, _ in hook.call_history if name != "Cast"]

    for mode in ("copy", "init", "share"):
        assert functions(model.copy(mode)) == functions(model)
    initial = model.copy("init")
    assert initial[2].W.dtype == np.float16  # there are no FP32 bits to be kept
    assert (initial[2].W.array != model[2].W.array).any()
    assert functions(model.repeat(1, "copy")) == functions(model)


def test_a_copy_that_is_trained_as_it_is_says_so(caplog):
    model, _ = _small()
    twin = copy.deepcopy(model)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(), 64).setup(twin)
    optimizer.update(_loss(twin))
    assert [record.getMessage() for record in caplog.records if "any copy of a converted model" in record.msg] == [
        "/0/W and 3 more parameters are in float32, as in any copy of a converted model, and cast to float16 in each "
        "call: to train the copy as its source, call mixprec.convert on it after setup(), with the same arguments"
    ]
    assert twin[0].W.dtype == np.float32


# --- copyparams and addgrads


SOURCES = pairs(["plain", "float16", "bfloat16", "copy"], ["float16", "bfloat16"], [3, None])[:5]


@pytest.mark.parametrize(("source", "compute", "inputs"), SOURCES)
def test_copyparams_takes_and_gives_float32_bits(source, compute, inputs):
    """Into a plain model, a copy, and masters, also of parameters that have no shape yet."""
    given = _small(1, "float16" if source in ("plain", "copy") else source)[0]
    if source == "plain":
        mixprec.revert(given)
    elif source == "copy":
        given = copy.deepcopy(given)
        given[0].W.array *= 1.0001
    model, optimizer = _small(2, compute, inputs)
    twin = copy.deepcopy(model)
    plain = chainer.Sequential(L.Linear(3, 4), F.relu, L.Linear(4, 2))
    for target in (model, twin, plain):
        target.copyparams(given)
        assert_same(_file(target), _file(given))
    assert model[0].W.dtype == compute
    np.testing.assert_array_equal(optimizer.master(model[0].W).array, _file(given)["0/W"])


@pytest.mark.parametrize("converts", [False, True])
def test_copyparams_of_parameters_without_a_shape_leaves_them_so(converts):
    """As of a target network before the first step, in both directions; plain Chainer does."""
    model, twin = (_small(inputs=None)[0] if converts else L.Linear(None, 2) for _ in range(2))
    for target, source in ((model, twin), (model, copy.deepcopy(model)), (copy.deepcopy(model), model)):
        target.copyparams(source)
    assert any(param.array is None for param in model.params())


def test_copyparams_without_masters_rounds():
    given, _ = _small(1)
    model = chainer.Sequential(L.Linear(3, 4), F.relu, L.Linear(4, 2))
    mixprec.convert(model)
    model.copyparams(given)
    assert_same(_state(model), _state(given))


def test_gradients_of_a_copy_are_added_to_those_of_its_source():
    model, _ = _small()
    twin = copy.deepcopy(model)
    for each in (model, twin):
        each.cleargrads()
        _loss(each)().backward()
    once = _gradients(model)
    for target, source in ((model, twin), (twin, model)):
        for layer in (0, 2):  # Chainer's Sequential cannot, with a function in it
            target[layer].addgrads(source[layer])
    assert (model[0].W.grad.dtype, twin[0].W.grad.dtype) == (np.float16, np.float32)
    for name, gradient in once.items():
        np.testing.assert_allclose(_gradients(model)[name], 2 * gradient, rtol=1e-3)
        np.testing.assert_allclose(_gradients(twin)[name], 3 * gradient, rtol=1e-3)


# --- with an optimizer, and others that keep 16 bits


WRAPPED = [(copy.deepcopy, False, MODES[0]), (_pickled, True, MODES[1]), (copy.deepcopy, True, MODES[2])]


@pytest.mark.parametrize(("copied", "turned", "mode"), WRAPPED)
def test_what_comes_with_a_wrapper_is_as_before(copied, turned, mode):
    model, optimizer = _converted(*mode)
    model.fc.W.array[0, 0] = 3  # not in its master yet
    found = copied((model, optimizer)[:: -1 if turned else 1])[:: -1 if turned else 1]
    assert_same(_state(found[0]), _state(model))
    for each in ((model, optimizer), found):
        each[1].update(lambda each=each: F.sum(each[0](X, IDS) ** 2))
    assert_same(_state(*found), _state(model, optimizer))
    assert_same(_gradients(found[0]), _gradients(model))


@pytest.mark.parametrize("wrapped", [True, False])
def test_what_comes_with_an_updater_is_as_before(wrapped):
    """An optimizer of Chainer's own with masters of its own, too."""
    model, optimizer = _small()
    if not wrapped:
        optimizer = optimizers.SGD(0.01)
        optimizer.use_fp32_update()
        optimizer.setup(model).update(_loss(model))
    updater = training.StandardUpdater(chainer.iterators.SerialIterator([X[0]], 1), optimizer)
    found = _pickled(updater).get_optimizer("main")
    assert_same(_state(found.target), _state(model))
    for each in (optimizer, found):
        each.update(_loss(each.target))
    assert_same(_state(found.target), _state(model))


def test_uninitialized_parameters_that_come_with_a_wrapper_are_as_before():
    model, optimizer = _small(inputs=None)
    twin, _ = copy.deepcopy((model, optimizer))
    np.random.seed(3)
    twin(X)
    assert (twin[0].W.dtype, twin[0].W.grad) == (np.float16, None)


@pytest.mark.parametrize("given", [False, True])
def test_replicas_of_parallel_updater_keep_16_bits(given):
    model, optimizer = _small()
    devices = {"main": "@numpy", "second": "@numpy"}
    models = {"main": model, "second": copy.deepcopy(model)} if given else None
    iterator = chainer.iterators.SerialIterator([X[0]], 1)
    updater = training.updaters.ParallelUpdater(iterator, optimizer, models=models, devices=devices)
    assert updater._models["second"] is not model
    assert_same(_state(updater._models["second"]), _state(model))


def test_a_shared_copy_shares_arrays_in_16_bits():
    model, _ = _small()
    for found, param in zip(model.copy("share").params(), model.params(), strict=True):
        assert found.array is param.array
        assert param.dtype == np.float16


def test_export_of_a_copy_is_that_of_its_source():
    model, _ = _small()
    for each in (model, copy.deepcopy(model)):
        assert_same(_file(plain_copy(each)), _file(model))
    assert model[0].W.dtype == np.float16


@pytest.mark.parametrize("links", [L, mixprec.links])
def test_float16_that_the_user_has_chosen(links):
    """It stays so, and computes as before; its master goes along. Without masters nothing is different at all."""
    with chainer.using_config("dtype", np.float16):
        model = links.Linear(3, 4)
    assert model.W.__reduce__()[0].__module__ == "chainer.variable"
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(0.01), 1).setup(model)
    optimizer.update(lambda: F.sum(model(X[:, :, 0, 0].astype(np.float16))))
    for twin in (copy.deepcopy(model), _pickled(model)):
        assert_same(_state(twin), _state(model))
        assert_same(_file(twin), _file(model))
        twin.W.array[0, 0] = 3
        expected = _file(model)["W"]
        expected[0, 0] = 3
        np.testing.assert_array_equal(_file(twin)["W"], expected)
        chainer.serializers.NpzDeserializer(_file(model)).load(twin)
        again = mixprec.MixedPrecisionOptimizer(optimizers.SGD(), 1).setup(twin)
        assert_same(_state(twin, again), _state(model, optimizer))


def test_nothing_is_read_from_a_device():
    model = chainer.Sequential(L.Linear(3, 4), F.relu, L.Linear(4, 2))
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(), 64).setup(device_stand_in.send(model))
    mixprec.convert(model)
    optimizer.master(model[0].W)
    DeviceArray.reads = 0
    twin = copy.deepcopy(model)
    twin.copyparams(model)
    model.copyparams(twin)
    assert DeviceArray.reads == 0
    assert all(isinstance(param.array, DeviceArray) for param in twin.params())
