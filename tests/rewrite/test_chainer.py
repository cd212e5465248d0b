"""What Chainer's users do with a link keeps working with a converted one: names, files, copies, hooks, trainers."""

import collections
import copy
import pickle
import sys
import types

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import initializers, serializers
from chainer.utils import type_check

import mixprec
from mixprec import functions as mixprec_functions
from mixprec.base.dtypes import BFLOAT16
from mixprec.precision.conversion_state import state_of
from mixprec.rewrite.example import explain
from tests.comparison import assert_equal
from tests.rewrite.twins import assert_same, images, new, statistics, step

EPS16 = 2.0**-11
HALF = {"/conv/W", "/deconv/W", "/deconv/b", "/head/0/W", "/head/0/b", "/head/1/W", "/head/1/b"}
COMPUTE = pytest.mark.parametrize("compute", ["float16", "bfloat16", "float32"])


class Net(chainer.Chain):
    """One of each kind of link, a list of links, persistent values; uninitialized parameters if ``lazy``."""

    def __init__(self, lazy=False):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(None if lazy else 3, 6, 3, nobias=True)
            self.bn = L.BatchNormalization(None if lazy else 6, axis=(0, 2, 3))
            self.deconv = L.Deconvolution2D(None if lazy else 6, 4, 2, stride=2)
            self.norm = L.GroupNormalization(2, None if lazy else 4)
            self.head = chainer.Sequential(L.Linear(None if lazy else 4, 5), F.tanh, L.Linear(5, 3))
        self.add_persistent("steps", np.zeros((), np.int32))

    def forward(self, x):
        h = F.relu(self.bn(self.conv(x)))
        h = F.max_pooling_2d(self.norm(self.deconv(h)), 2)
        return self.head(F.average(h, axis=(2, 3)))


def net(lazy=False):
    np.random.seed(0)
    return Net(lazy)


def projection(m, x):
    """A residual block: both kinds of fusion."""
    x = m.stem(x)
    h = F.relu(m.bn1(m.conv1(x)))
    return F.relu(m.bn2(m.conv2(h)) + m.bn3(m.conv3(x)))


def converted(example=None, lazy=False, **how):
    model = net(lazy)
    mixprec.convert(model, example, **how)
    return model


def arrays(model):
    """Copies of all that is in a file of a model, as float32."""
    found = {name: param.array for name, param in model.namedparams()}
    for path, link in model.namedlinks():
        found |= {f"{path}/{name}": getattr(link, name) for name in sorted(link._persistent)}
    return {name: None if array is None else np.array(array, np.float32) for name, array in found.items()}


def is_krsc(param):
    """Whether filters of the shape (K, C, R, S) lie in memory as (K, R, S, C)."""
    return param.array.transpose(0, 2, 3, 1).flags.c_contiguous


def rounded(array, compute):
    return array.astype(compute if compute != "bfloat16" else BFLOAT16).astype(np.float32)


# Names.


@COMPUTE
def test_names_order_and_objects_of_parameters_and_links_stay(compute):
    model = net()
    params, links = list(model.namedparams()), list(model.namedlinks())
    shapes = [param.shape for _, param in params]
    mixprec.convert(model, images(0), compute=compute)
    for (name, param), (before, same) in zip(model.namedparams(), params, strict=True):
        assert name == before
        assert param is same
        assert param.dtype.name == (compute if name in HALF else "float32")
    assert all(
        name == before and link is same and type(link) is type(same)
        for (name, link), (before, same) in zip(model.namedlinks(), links, strict=True)
    )
    assert [param.shape for param in model.params()] == shapes
    assert model.count_params() == net().count_params()
    assert str(model) == str(net())
    assert repr(model.conv.W).startswith("variable W(")


# Files.


@COMPUTE
def test_files_are_those_of_the_plain_model(compute):
    plain, model = net(), converted(images(0), compute=compute)
    expected, found = (serializers.npz.serialize(each) for each in (plain, model))
    assert list(found) == list(expected)
    for key, array in expected.items():
        assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape), key
        wanted = rounded(array, compute) if f"/{key}" in HALF else array
        np.testing.assert_array_equal(found[key], wanted, err_msg=key)


@COMPUTE
@pytest.mark.parametrize("lazy", [False, True], ids=["initialized", "lazy"])
def test_files_of_plain_models_load_into_converted_ones_and_back(compute, lazy, tmp_path):
    plain = net()
    plain(images(0))  # moves statistics
    plain.steps[...] = 7
    serializers.save_npz(tmp_path / "plain.npz", plain)
    model = converted(lazy=lazy, compute=compute)
    serializers.load_npz(tmp_path / "plain.npz", model)
    expected = {name: rounded(a, compute) if name in HALF else a for name, a in arrays(plain).items()}
    assert_equal(arrays(model), expected)
    assert all(param.dtype.name == (compute if name in HALF else "float32") for name, param in model.namedparams())
    with chainer.using_config("train", False):
        y = model(images(1)).array
    assert is_krsc(model.conv.W)
    assert is_krsc(model.deconv.W)

    serializers.save_npz(tmp_path / "converted.npz", model)
    back = net(lazy)
    serializers.load_npz(tmp_path / "converted.npz", back)
    assert_equal(arrays(back), expected)
    assert {param.dtype.name for param in back.params()} == {"float32"}
    with chainer.using_config("train", False):
        bound = {"float16": 12 * EPS16, "bfloat16": 96 * EPS16, "float32": 2e-6}[compute]
        assert np.linalg.norm(back(images(1)).array - y) <= bound * np.linalg.norm(y)


# Copies.


COPIES = {
    "share": lambda model: model.copy(),
    "copy": lambda model: model.copy("copy"),
    "deepcopy": copy.deepcopy,
    "copy.copy": copy.copy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


@COMPUTE
@pytest.mark.parametrize("how", COPIES)
def test_copies_are_converted_as_well(how, compute):
    model = converted(images(0), compute=compute)
    expected = model(images(1)).array
    before = arrays(model)
    model.cleargrads()
    twin = COPIES[how](model)
    np.testing.assert_array_equal(twin(images(1)).array, expected)
    assert twin.conv.W.dtype.name == (compute if how in ("share", "copy.copy") else "float32")
    assert (twin.conv.W.array is model.conv.W.array) == (how in ("share", "copy.copy"))
    assert is_krsc(twin.conv.W)
    assert is_krsc(model.conv.W)
    F.sum(twin(images(1))).backward()
    if how != "copy.copy":
        assert model.conv.W.grad is None
    twin.conv.W.array[...] = 0
    assert (abs(model.conv.W.array).max() == 0) == (how in ("share", "copy.copy"))
    if how not in ("share", "copy.copy"):  # which share running statistics, too
        assert_equal(arrays(model), before)
    mixprec.revert(twin)
    assert state_of(model) is not None


def test_a_shared_copy_from_before_the_conversion_follows():
    model = net()
    twin = model.copy()
    mixprec.convert(model, images(0))
    mixprec.convert(twin, images(0))
    assert twin.conv.W.array is model.conv.W.array
    np.testing.assert_array_equal(twin(images(1)).array, model(images(1)).array)


@COMPUTE
def test_copy_init_draws_new_values_in_the_dtype(compute):
    model = converted(images(0), compute=compute)
    np.random.seed(5)
    twin = model.copy("init")
    expected = net()
    np.random.seed(5)
    expected = expected.copy("init")
    for (name, param), (_, plain) in zip(twin.namedparams(), expected.namedparams(), strict=True):
        np.testing.assert_array_equal(
            np.float32(param.array), rounded(plain.array, compute) if name in HALF else plain.array, err_msg=name
        )
        assert param.dtype.name == (compute if name in HALF else "float32")
    assert not np.array_equal(np.float32(twin.conv.W.array), np.float32(model.conv.W.array))
    assert twin(images(1)).dtype == np.float32
    assert is_krsc(twin.conv.W)


@COMPUTE
def test_copyparams_in_both_directions(compute):
    model, plain = converted(images(0), compute=compute), net()
    for param in plain.params():
        param.array += 0.25
    plain.bn.avg_mean += 3
    array = model.conv.W.array
    model.copyparams(plain)
    assert_equal(arrays(model), {n: rounded(a, compute) if n in HALF else a for n, a in arrays(plain).items()})
    assert model.conv.W.array is array
    assert is_krsc(model.conv.W)
    plain.copyparams(model)
    assert_equal(arrays(plain), arrays(model))
    assert {param.dtype.name for param in plain.params()} == {"float32"}
    lazy = converted(lazy=True, compute=compute)
    lazy.copyparams(model)
    assert_equal(arrays(lazy), arrays(model))
    assert lazy.conv.W.dtype.name == compute


# Gradients.


@COMPUTE
def test_cleargrads_zerograds_and_addgrads(compute):
    model = new(projection)  # Chainer's addgrads fails for a Sequential with functions in it
    mixprec.convert(model, images(0), compute=compute)

    def backward():
        F.sum(model(images(1)) ** 2).backward()
        return {name: np.float32(param.grad) for name, param in model.namedparams()}

    model.cleargrads()
    assert all(param.grad is None for param in model.params())
    once = backward()
    assert all(param.grad.dtype == param.dtype for param in model.params())
    model.addgrads(model.copy("copy"))
    for name, param in model.namedparams():
        np.testing.assert_array_equal(np.float32(param.grad), 2 * once[name], err_msg=name)
        assert param.grad.dtype == param.dtype
    with pytest.warns(DeprecationWarning, match="zerograd"):
        model.zerograds()
    assert all(param.grad.dtype == param.dtype and not np.float32(param.grad).any() for param in model.params())
    assert_equal(backward(), once)  # added to zeros
    again = backward()
    for name, gradient in once.items():
        np.testing.assert_array_equal(again[name], 2 * gradient, err_msg=name)


def test_chainer_grad_of_a_model():
    found = []
    for model in (net(), converted(compute="float32")):
        for call in range(3):
            x = chainer.Variable(images(call))
            y = model(x)
            gradients = chainer.grad([y], [x, model.conv.W, model.bn.gamma], [chainer.Variable(np.ones_like(y.array))])
            found.append({str(number): g.array for number, g in enumerate(gradients)})
            assert x.grad is None
            assert gradients[0].dtype == np.float32
    for call in range(3):
        assert_same(found[3 + call], found[call], rtol=1e-4)


def test_the_gradient_of_a_result_is_where_chainer_puts_it():
    """Of a batch of images, one row at a time, with a gradient that the user sets."""
    found = []
    for model in (new(lambda m, x: m.conv1(m.stem(x))), new(lambda m, x: m.conv1(m.stem(x)))):
        if found:
            mixprec.convert(model, images(0), compute="float32")
        x = chainer.Variable(images(1))
        model.cleargrads()
        y = model(x)
        y.grad = images(3, y.shape)
        y.backward(retain_grad=True)
        found.append({"x": x.grad, "y": y.grad, "W": model.stem.W.grad})
    assert_same(found[1], found[0])


# Models that change.


def _sequential():
    np.random.seed(0)
    return chainer.Sequential(
        *(L.Convolution2D(3, 4, 3, pad=1, nobias=True), L.BatchNormalization(4), F.relu),
        *(L.Convolution2D(4, 4, 3, pad=1, nobias=True), L.BatchNormalization(4), F.relu, L.Linear(None, 5)),
    )


def _insert(model):
    model.insert(1, L.Convolution2D(4, 4, 1, nobias=True))
    model.insert(3, F.tanh)


def _delete(model):
    del model[4]
    del model[2]


def _replace(model):
    model[2] = F.leaky_relu
    model[3] = L.Convolution2D(4, 4, 1, nobias=True)


EDITS = {
    "insert": _insert,
    "delete": _delete,
    "replace": _replace,
    "remove_by_layer_type": lambda model: model.remove_by_layer_type("BatchNormalization"),
}


@pytest.mark.parametrize("again", [False, True], ids=["left alone", "converted again"])
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_sequential_that_is_edited_after_its_conversion(edit, again):
    found = []
    for convert in (False, True):
        model = _sequential()
        if convert:
            mixprec.convert(model, compute="float32")
        steps = [step(model, images(call)) for call in range(2)]
        np.random.seed(1)
        edit(model)
        if convert and again:
            mixprec.convert(model, compute="float32")
        steps += [step(model, images(call)) for call in range(3)]
        found.append(steps)
    for steps, expected in zip(found[1], found[0], strict=True):
        assert_same(steps, expected, rtol=5e-5)


@COMPUTE
def test_a_link_that_is_added_later(compute):
    """Functions are replaced in it as well; its weights are cast in every call until convert is called again."""

    class Grows(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.first = L.Convolution2D(3, 4, 3)

        def forward(self, x):
            h = F.relu(self.first(x))
            return self.second(h) if hasattr(self, "second") else h

    np.random.seed(0)
    model = Grows()
    mixprec.convert(model, images(0), compute=compute)
    model(images(1))
    model.add_link("second", L.Convolution2D(4, 2, 3))
    y = model(images(1))
    assert y.dtype == model.second.W.dtype == np.float32
    report = mixprec.convert(model, images(0), compute=compute)
    assert model.second.W.dtype.name == compute
    assert [link.name for link in report.links] == ["/first", "/second"]
    np.testing.assert_array_equal(model(images(1)).array, y.array)
    assert y.creator is not None


def test_a_parameter_that_is_added_later_and_one_that_is_taken_away():
    model = converted(images(0))
    with model.init_scope():
        model.extra = chainer.Parameter(initializers.Zero(), (3,))
    del model.bn.beta
    model.bn.beta = None
    mixprec.convert(model, images(0))
    assert model.extra.dtype == np.float32
    mixprec.revert(model)
    assert {param.dtype.name for param in model.params()} == {"float32"}


# Again, otherwise, and in parts.


def _same_arrays(model, expected):
    return all(param.array is array for param, array in zip(model.params(), expected, strict=True))


@COMPUTE
@pytest.mark.parametrize("example", [None, images(0)], ids=["no example", "example"])
def test_converting_twice_changes_nothing(compute, example):
    model = converted(example, compute=compute)
    expected = [param.array for param in model.params()]
    texts = str(mixprec.convert(model, example, compute=compute)), str(mixprec.convert(model, example, compute=compute))
    assert texts[0] == texts[1]
    assert _same_arrays(model, expected)
    y = model(images(1)).array
    mixprec.convert(model, example, compute=compute)
    np.testing.assert_array_equal(model(images(1)).array, y)


CHAIN = [
    {"compute": "float32"},
    {"compute": "float16", "fuse": False},
    {"compute": "bfloat16"},
    {"compute": "float32", "layout": "nchw", "fuse": False},
    {"compute": "float16", "layout": "nchw", "fuse": False},
    {"compute": "float16"},
]


def test_converting_otherwise_is_as_if_it_had_been_the_first_time():
    model, plain = net(), net()
    with chainer.using_config("train", False):
        expected = plain(images(1)).array
        for how in CHAIN:
            report = mixprec.convert(model, images(0), **how)
            assert (report.compute, report.layout) == (how["compute"], how.get("layout", "nhwc"))
            for name, param in model.namedparams():
                assert param.dtype.name == (how["compute"] if name in HALF else "float32"), (how, name)
            assert is_krsc(model.conv.W) == (report.layout == "nhwc")
            y = model(images(1)).array
            # bfloat16 has rounded the weights for good, as here nobody has their masters
            assert np.linalg.norm(y - expected) <= 100 * EPS16 * np.linalg.norm(expected), how
    mixprec.revert(model)
    assert {param.dtype.name for param in model.params()} == {"float32"}
    assert not is_krsc(model.conv.W)
    for (name, param), (_, same) in zip(model.namedparams(), plain.namedparams(), strict=True):
        assert type(param.initializer) is type(same.initializer), name


def test_a_part_that_is_converted_otherwise_than_the_rest():
    model, plain = converted(compute="float16"), net()
    mixprec.convert(model.head, compute="float32")
    assert model.head[0].W.dtype == np.float32
    seen = []
    model.head[1] = lambda h: (seen.append(h.dtype), F.tanh(h))[1]
    for call in range(3):
        found, expected = model(images(call)), plain(images(call))
        np.testing.assert_allclose(found.array, expected.array, atol=12 * EPS16 * abs(expected.array).max())
    assert set(seen) == {np.dtype(np.float32)}


def test_a_part_that_is_reverted():
    model, plain = converted(images(0)), net()
    mixprec.revert(model.head)
    assert model.head[0].W.dtype == np.float32
    assert state_of(model.head) is None
    assert model.conv.W.dtype == np.float16
    y = model(images(1)).array
    assert np.linalg.norm(y - plain(images(1)).array) <= 24 * EPS16 * np.linalg.norm(y)


# Revert.


def _attributes(model):
    return {
        name: {key: value for key, value in link.__dict__.items() if not isinstance(value, np.ndarray)}
        for name, link in model.namedlinks()
    }


@pytest.mark.parametrize("example", [None, images(0)], ids=["no example", "example"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("lazy", [False, True], ids=["initialized", "lazy"])
def test_revert_gives_the_plain_model_back(example, layout, lazy):
    model, plain = net(lazy), net(lazy)
    initializers_before = {name: param.initializer for name, param in model.namedparams()}
    attributes = _attributes(model)
    np.random.seed(1)
    mixprec.convert(model, example, compute="float32", layout=layout, fuse=layout == "nhwc")
    np.random.seed(1)
    mixprec.revert(model)
    if not lazy:
        assert _attributes(model) == attributes
    assert {name: param.initializer for name, param in model.namedparams()} == initializers_before
    if lazy and example is not None:
        np.random.seed(1)
        plain(example)
        plain = _fresh_statistics(plain)
    for call in range(2):
        np.random.seed(2)
        expected = step(plain, images(call))
        np.random.seed(2)
        found = step(model, images(call))
        assert_equal(found, expected)
    for param in model.params():
        assert param.dtype == np.float32
        assert param.array.flags.c_contiguous
    assert type(model(images(0)).creator).__module__.startswith("chainer.")


def _fresh_statistics(model):
    model.bn.avg_mean[...] = 0
    model.bn.avg_var[...] = 1
    return model


def _penalty(model):
    """Gradients of a gradient penalty."""
    x = chainer.Variable(images(1))
    model.cleargrads()
    (gradient,) = chainer.grad([F.sum(F.sigmoid(model(x)))], [x], enable_double_backprop=True)
    F.sum(gradient**2).backward()
    return {name: param.grad for name, param in model.namedparams() if param.grad is not None} | {"x": x.grad}


def test_a_reverted_model_has_double_backprop():
    model = new(projection)
    mixprec.convert(model, images(0), compute="float32")
    with pytest.raises(RuntimeError, match=r"needs mixprec.convert.*has no double backprop"):
        _penalty(model)
    mixprec.revert(model)
    assert_equal(_penalty(model), _penalty(new(projection)))


def test_revert_without_masters_keeps_what_was_rounded_and_with_masters_gives_their_bits():
    plain = net()
    without, with_masters = converted(), converted()
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(0.05), 128).setup(with_masters)
    for call in range(3):
        optimizer.update(lambda x: F.mean(with_masters(x) ** 2), images(call))
    masters = {name: optimizer.master(param).array.copy() for name, param in with_masters.namedparams()}
    assert any((masters[name] != rounded(masters[name], "float16")).any() for name in HALF)
    mixprec.revert(with_masters)
    assert_equal({name: param.array for name, param in with_masters.namedparams()}, masters)
    optimizer.update(lambda x: F.mean(with_masters(x) ** 2), images(3))  # goes on, in float32
    assert optimizer.skipped == 0
    assert all(optimizer.master(param).array is param.array for param in with_masters.params())
    mixprec.revert(without)
    for (name, param), (_, before) in zip(without.namedparams(), plain.namedparams(), strict=True):
        expected = rounded(before.array, "float16") if name in HALF else before.array
        np.testing.assert_array_equal(param.array, expected, strict=True)


@pytest.mark.parametrize("dtype", ["float16", "mixed16"])
@pytest.mark.parametrize("lazy", [False, True], ids=["initialized", "lazy"])
def test_a_model_that_was_in_float16_before(dtype, lazy):
    """Statistics of a batch normalization in float16 become float32, and float16 again."""
    with chainer.using_config("dtype", getattr(chainer, dtype, np.float16)):
        model = net(lazy)
        before = _dtypes(model)
        mixprec.convert(model, compute="float32")
        y = model(images(0))
        assert y.dtype == np.float32
        assert set(_dtypes(model).values()) == {"float32", "int32"}
        mixprec.revert(model)
        if not lazy:
            assert _dtypes(model) == before
        plain = net(lazy)
        plain(images(0).astype(np.float16))
        assert _dtypes(model) == _dtypes(plain)


def _dtypes(model):
    found = {name: None if param.array is None else param.dtype.name for name, param in model.namedparams()}
    for path, link in model.namedlinks():
        values = {name: getattr(link, name) for name in link._persistent}
        found |= {f"{path}/{name}": value.dtype.name for name, value in values.items() if isinstance(value, np.ndarray)}
    return found


def test_reverting_what_was_not_converted_does_nothing():
    model = net()
    expected = [param.array for param in model.params()]
    mixprec.revert(model)
    assert _same_arrays(model, expected)
    with pytest.raises(TypeError, match=r"^model must be a chainer\.Link; found function$"):
        mixprec.revert(lambda x: x)


# Optimizers.


def test_converting_between_steps_keeps_masters_and_states():
    model = net()
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(0.05), 128).setup(model)
    for call, how in enumerate(CHAIN + [{"compute": "float16"}]):
        before = {name: optimizer.master(param).array.copy() for name, param in model.namedparams()}
        velocity = {name: param.update_rule.state for name, param in model.namedparams()}
        mixprec.convert(model, **how)
        for name, param in model.namedparams():
            master = optimizer.master(param).array
            assert master.dtype == np.float32
            # To float32 and back again loses nothing; to another 16-bit dtype rounds.
            if how["compute"] == "float32" or (call and CHAIN[call - 1]["compute"] == how["compute"]):
                np.testing.assert_array_equal(master, before[name], err_msg=f"{how} {name}")
            assert param.update_rule.state is velocity[name]
        optimizer.update(lambda x: F.mean(model(x) ** 2), images(call))
        assert optimizer.skipped == 0
    assert optimizer.t == len(CHAIN) + 1


def test_plain_chainers_optimizer_trains_a_converted_float32_model():
    found = []
    for convert in (False, True):
        model = net()
        optimizer = chainer.optimizers.Adam(1e-3).setup(model)
        if convert:
            mixprec.convert(model, images(0), compute="float32")
        for call in range(3):
            optimizer.update(lambda x, model=model: F.mean(model(x) ** 2), images(call))
        found.append({name: param.array for name, param in model.namedparams()})
    assert_same(found[1], found[0], rtol=5e-3)  # Adam divides by gradients, also by small ones


# Strictness and bad input.


class Unknown(chainer.Link):
    """A link with parameters of its own."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.W = chainer.Parameter(1.0, (3,))

    def forward(self, x):
        return x * self.W[:, None, None]


class Doubled(chainer.FunctionNode):
    """A function that is not Chainer's."""

    def forward(self, inputs):
        return (inputs[0] * 2,)

    def backward(self, indexes, grads):
        return (grads[0] * 2,)


def doubled(m, x):
    return m.conv1(Doubled().apply((m.stem(x),))[0])


def _refused(model, error, match, **how):
    """convert raises, in one line, and leaves the model as it was."""
    params = [(param, param.array, param.initializer) for param in model.params()]
    attributes = _attributes(model)
    with pytest.raises(error, match=match) as caught:
        mixprec.convert(model, **how)
    assert _attributes(model) == attributes
    for param, array, initializer in params:
        assert param.array is array
        assert param.initializer is initializer
    return caught.value


STRICT = "convert(strict=True): not converted: "


def test_strict_refuses_what_is_not_known():
    model = chainer.Sequential(Unknown(), L.Convolution2D(3, 2, 1))
    error = _refused(model, ValueError, None, strict=True)
    assert str(error) == f"{STRICT}/0 (Unknown): not a link that mixprec knows"
    function = "/ (Doubled): not a function of Chainer: computes in NCHW and float32"
    assert str(_refused(new(doubled), ValueError, None, strict=True, example=images(0))) == STRICT + function
    model = new(doubled)
    mixprec.convert(model, strict=True)
    with pytest.raises(ValueError, match="not a function of Chainer") as caught:
        model(images(0))
    assert str(caught.value) == STRICT + function
    assert mixprec.convert(new(doubled), images(0)).unconverted == [function]
    assert not mixprec.convert(new(projection), images(0), strict=True).unconverted


BAD = {
    "dtype name": (
        {"compute": "float64"},
        "compute must be one of float16, bfloat16, float32, fp16, half, bf16, fp32, single; found 'float64'; "
        "did you mean 'float16'?",
    ),
    "dtype": (
        {"compute": np.float64},
        "compute must be one of float16, bfloat16, float32, fp16, half, bf16, fp32, single; found the class float64",
    ),
    "layout": (
        {"layout": "channel_first"},
        "layout must be one of nhwc, nchw, channels_last, channels_first, contiguous; found 'channel_first'; did you "
        "mean 'channels_first'?",
    ),
    "fused nchw": (
        {"layout": "nchw", "fuse": True},
        "fuse=True needs layout='nhwc', as Chainer's own functions cannot be fused; found 'nchw'",
    ),
    "bfloat16 nchw": (
        {"layout": "nchw", "fuse": False, "compute": "bfloat16"},
        "compute='bfloat16' needs layout='nhwc', as Chainer's own functions refuse it; found 'nchw'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    how, message = BAD[name]
    assert str(_refused(net(), ValueError, None, **how)) == message
    assert "\n" not in message


@pytest.mark.parametrize(("model", "found"), [(3, "int"), (None, "NoneType"), ([], "list")])
def test_a_model_that_is_no_link(model, found):
    with pytest.raises(TypeError, match=rf"^model must be a chainer\.Link; found {found}$"):
        mixprec.convert(model)


REFUSED = AttributeError, TypeError, ValueError, type_check.InvalidType  # of Chainer, or of the functions of mixprec


def _assert_noted(error, note):
    if sys.version_info >= (3, 11):  # before, exceptions have no notes, and it is logged
        assert error.__notes__ == [note]


@pytest.mark.parametrize("lazy", [False, True], ids=["initialized", "lazy"])
def test_an_example_of_the_wrong_shape(lazy):
    model = net(lazy)
    if lazy:
        model.head[0] = L.Linear(7, 5)  # after some parameters have been initialized
        shape, why = (2, 3, 8, 8), "/head/0 takes 7 features, and was given 4"
    else:
        shape, why = (2, 5, 6, 6), "/conv takes 3 channels, and was given 5"
    error = _refused(model, Exception, None, example=images(0, shape))
    _assert_noted(error, f"while mixprec.convert called Net on example {shape} float32: {why}")
    if not lazy:  # Chainer's own words
        assert "in_types[0].shape[1] == in_types[1].shape[1]" in str(error)
    error = _refused(net(), Exception, None, example=(images(0), images(0)))
    assert isinstance(error, TypeError)
    _assert_noted(error, "while mixprec.convert called Net on example (3, 3, 6, 6) float32, (3, 3, 6, 6) float32")
    error = _refused(net(), TypeError, "unexpected keyword argument 'y'", example={"y": images(0)})
    _assert_noted(error, "while mixprec.convert called Net on example (3, 3, 6, 6) float32")


REFUSED_EXAMPLES = [
    (lambda: L.Convolution2D(3, 4, 3), np.zeros((2, 8, 8, 3), "f"), "takes 3 channels, and was given 8: is it (N, H"),
    (lambda: L.Convolution2D(4, 4, 3, groups=2), np.zeros((2, 2, 8, 8), "f"), "takes 4 channels, and was given 2"),
    (lambda: L.Deconvolution2D(3, 4, 3), np.zeros((2, 4, 8, 8), "f"), "takes 3 channels, and was given 4"),
    (
        lambda: L.Convolution2D(3, 4, 3),
        np.zeros((2, 3, 8, 8), "uint8"),
        "takes floating-point numbers, and was given uint8",
    ),
    (lambda: L.Convolution2D(3, 4, 3), np.zeros((3, 8, 8), "f"), "takes arrays of 4 axes, (N, C, ...), and was giv"),
    (lambda: L.Linear(4, 2), np.zeros((2, 3), "f"), "takes 4 features, and was given 3"),
    (lambda: L.Linear(4, 2), [np.zeros(4, "f")], "takes one array, and was given a list: numpy.stack joins "),
]


@pytest.mark.parametrize(("link", "example", "why"), REFUSED_EXAMPLES)
def test_an_example_that_a_link_refuses(link, example, why):
    model = chainer.Sequential(link())
    error = _refused(model, Exception, None, example=example)
    assert sys.version_info < (3, 11) or f": /0 {why}" in error.__notes__[0]
    mixprec.convert(model)
    with pytest.raises(REFUSED) as caught:
        model(example)
    assert sys.version_info < (3, 11) or caught.value.__notes__[0].startswith(f"/0 {why}")


def test_before_python_3_11_the_reason_is_logged(monkeypatch, caplog):
    monkeypatch.setattr("mixprec.base.announcements._said", set())
    explain(types.SimpleNamespace(), "/0 takes 3 channels")
    assert [record.getMessage() for record in caplog.records] == ["/0 takes 3 channels"]


BAD_STEPS = {
    "numbers": ([[0.0, 1.0]], np.zeros(1, "i"), "takes one array, and was given a list: numpy.array(x, numpy.float32)"),
    "bytes": (np.zeros((1, 2), "uint8"), np.zeros(1, "i"), "given uint8: x.astype(numpy.float32) converts"),
    "shares": (
        np.zeros((1, 2), "f"),
        np.zeros((1, 3), "f"),
        "accuracy takes labels that are signed integers, and was ",
    ),
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_the_first_step_says_what_is_wrong_with_a_batch(name):
    x, t, why = BAD_STEPS[name]
    model = L.Classifier(chainer.Sequential(L.Linear(2, 3)))
    mixprec.convert(model)
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(model)
    with pytest.raises(REFUSED) as caught:
        optimizer.update(model, x, t)
    assert sys.version_info < (3, 11) or why in caught.value.__notes__[0]


@pytest.mark.parametrize(("example", "make"), [([[1.0, 2.0]], "array"), ((2, 4), "zeros")])
def test_an_example_of_numbers_is_no_array(example, make):
    found = rf"a (list|tuple) of numbers: did you mean numpy.{make}\(example, numpy.float32\)\?$"
    _refused(
        chainer.Sequential(L.Linear(4, 2)), TypeError, f"^example must be an array; found {found}", example=example
    )


def test_an_example_of_a_classifier_may_be_a_tuple_of_its_images():
    assert mixprec.convert(L.Classifier(L.Linear(4, 2)), (np.zeros((2, 4), "f"),))


@pytest.mark.parametrize(("layout", "meant"), [("channels_last", "nhwc"), ("contiguous", "nchw")])
def test_other_names_of_arguments(layout, meant):
    report = mixprec.convert(L.Linear(40, 20), compute="fp16", layout=layout)
    assert (report.compute, report.layout) == ("float16", meant)
    assert "parameter memory:     3.3 kB before, 1.6 kB after\n" in str(report)


def test_a_forward_that_raises():
    def function(m, x):
        m.notes.append(m.stem(x))
        raise KeyError("mine")

    model = new(function)
    error = _refused(model, KeyError, "mine", example=images(0))
    _assert_noted(error, "while mixprec.convert called Parts on example (3, 3, 6, 6) float32")
    assert not statistics(model)["/bn1/N"]


# Examples.


def _dropping(m, x):
    h = F.relu(m.bn1(m.conv1(m.stem(F.dropout(x, 0.5)))))
    return m.conv2(h + np.random.normal(size=h.shape).astype(h.dtype))


def test_an_example_leaves_no_trace():
    def function(m, x):
        m.new_attribute = F.sum(x)
        m.count = getattr(m, "count", 0) + 1
        m.notes.append(m.count)
        m.seen["last"] = x
        m.kinds.add(type(x))
        return _dropping(m, x)

    found = []
    for example in (None, images(0)):
        model = new(function)
        model.seen, model.kinds, model.count = {}, set(), 5
        model.bn1.avg_mean[...] = 3
        mixprec_functions.reset_dropout()
        np.random.seed(7)
        attributes = _attributes(model)
        contents = copy.copy(model.notes), copy.copy(model.seen), copy.copy(model.kinds)
        state = np.random.get_state()[1].copy()
        before = statistics(model)
        before = {name: np.array(value) for name, value in before.items()}
        mixprec.convert(model, example)
        np.testing.assert_array_equal(np.random.get_state()[1], state)
        assert_equal(statistics(model), before)
        after = _attributes(model)
        for name, values in after.items():
            assert type(values.pop("_mixprec_conversion")).__name__ == "LinkState"
            assert values == attributes[name]
        assert (model.notes, model.seen, model.kinds) == contents
        assert not hasattr(model, "new_attribute")
        # Chainer begins with NaN, and a dtype that changes with nothing
        assert all(param.grad is None or np.isnan(param.grad).all() for param in model.params())
        found.append([model(images(call)).array for call in range(3)])
    for with_example, without in zip(*found, strict=True):
        assert np.linalg.norm(with_example - without) <= 4 * EPS16 * np.linalg.norm(without)


@COMPUTE
@pytest.mark.parametrize("example", [None, images(0)], ids=["no example", "example"])
def test_lazily_initialized_models(compute, example):
    plain, model = net(lazy=True), net(lazy=True)
    np.random.seed(3)
    report = mixprec.convert(model, example, compute=compute)
    np.random.seed(3)
    plain(images(0))
    _fresh_statistics(plain)
    if example is None:
        assert model.conv.W.array is model.head[0].W.array is None
        assert model.bn.avg_mean is None
        np.random.seed(3)
        model(images(0))
        _fresh_statistics(model)
    expected = {name: rounded(a, compute) if name in HALF else a for name, a in arrays(plain).items()}
    assert_equal(arrays(model), expected)
    assert {link.after for link in report.links} == {compute, "float32"}
    mixprec.revert(model)
    assert_equal(arrays(model), expected)


def test_two_lazy_models_in_a_row_get_different_weights():
    """An example that initializes a model takes its random numbers for good."""
    np.random.seed(0)
    models = [Net(lazy=True), Net(lazy=True)]
    for model in models:
        mixprec.convert(model, images(0))
    assert not np.array_equal(models[0].conv.W.array, models[1].conv.W.array)


EXAMPLES = {
    "array": images(0),
    "variable": chainer.Variable(images(0)),
    "tuple": (images(0),),
    "dict": {"x": images(0)},
    "float16": images(0).astype(np.float16),
}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_examples_of_each_kind(example):
    report = mixprec.convert(net(), example)
    assert report.traced
    assert report.fused["ReLU"] == 1


def test_an_example_for_a_classifier_goes_to_its_predictor():
    model = L.Classifier(net())
    report = mixprec.convert(model, images(0))
    assert report.traced
    assert not hasattr(model, "loss") or model.loss is None
    t = np.zeros(3, np.int32)
    assert mixprec.convert(model, (images(0), t)).traced
    assert model(images(1), t).dtype == np.float32


def test_an_example_is_called_in_training_mode_whatever_is_configured():
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        report = mixprec.convert(net(), images(0))
        assert not chainer.config.train
    assert report.traced


# layout="nchw".


def test_nchw_leaves_filters_and_images_in_the_order_of_their_axes():
    model = new(lambda m, x: F.relu(m.bn1(m.conv1(m.stem(x)))))
    report = mixprec.convert(model, images(0), layout="nchw", fuse=False)
    assert model.stem.W.array.flags.c_contiguous
    assert report.conversions == []


def test_named_results_keep_their_class():
    named = collections.namedtuple("named", "h number")

    def function(m, x):
        h = m.stem(x)
        return [named(h, 3), collections.OrderedDict(b=h, a=(h, None)), {"h": [h]}, collections.defaultdict(list, h=h)]

    model = new(function)
    mixprec.convert(model)
    pair, ordered, plain, default = model(images(0))
    assert (type(pair), pair.h.dtype, pair.number) == (named, np.float32, 3)
    assert (type(ordered), list(ordered)) == (collections.OrderedDict, ["b", "a"])
    assert ordered["b"].dtype == ordered["a"][0].dtype == plain["h"][0].dtype == default["h"].dtype == np.float32
    assert type(default) is collections.defaultdict
    assert default["new"] == []


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_a_seed_repeats_dropout(layout):
    """In NHWC with ``reset_dropout``; in NCHW the zeros are those of the plain model."""

    def masks():
        np.random.seed(3)
        mixprec_functions.reset_dropout()
        return model(np.ones((4, 8), "f")).array == 0

    model = chainer.Sequential(L.Linear(8, 8, initialW=np.eye(8)), F.dropout)
    plain = masks()
    mixprec.convert(model, layout=layout)
    found = masks()
    np.testing.assert_array_equal(masks(), found)
    if layout == "nchw":
        np.testing.assert_array_equal(found, plain)
