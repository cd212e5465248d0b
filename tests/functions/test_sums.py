"""Gradients that meet where a network branches, beside those that Chainer's own addition gives."""

import contextlib
import inspect
import subprocess
import sys

import chainer
import chainer.functions as CF
import numpy as np
import pytest
from chainer import _backprop_utils

from benchmarks.recording_device import null_device
from mixprec import functions as F
from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.device_log import recording
from mixprec.functions import node, sums
from mixprec.functions.batch_normalization import BatchNormalization
from mixprec.functions.node import Node
from mixprec.functions.sums import Sum
from mixprec.graph_capture.cuda_graphs import graphs_of
from tests.cases import pairs
from tests.functions.nhwc import DTYPES, channels_last, normal

IMAGES = (4, 3, 3, 8)
sums.install()


@pytest.fixture
def taken(monkeypatch):
    """The numbers of terms that nodes were given, one for each backward pass."""
    found = []
    terms_of = node.terms_of

    def noted(dy):
        terms = terms_of(dy)
        found.append(len(terms))
        return terms

    monkeypatch.setattr(node, "terms_of", noted)
    return found


@contextlib.contextmanager
def _one_by_one():
    """Inside of the block no node takes two terms: they are added before."""
    BatchNormalization.takes_two_terms = False
    try:
        yield
    finally:
        BatchNormalization.takes_two_terms = True


def _variables(dtype, shape=IMAGES):
    """x, gamma, beta and what is added."""
    of_channels = [normal(seed, shape[-1]) for seed in (1, 2)]
    return [*map(chainer.Variable, [normal(0, *shape, dtype=dtype), *of_channels, normal(3, *shape, dtype=dtype)])]


def _branching(x, gamma, beta, add=None, relu=False, consumers=2):
    """The sum of functions of one batch normalization."""
    y = F.batch_normalization(x, gamma, beta, add=add, relu=relu)
    parts = [y, F.relu(y), F.cast(F.cast(y, "float32"), x.dtype), F.dropout(y, 0.25)][:consumers]
    weighted = [CF.sum(F.cast(part, "float32") * normal(seed, *x.shape)) for seed, part in enumerate(parts)]
    return sum(weighted), y


def _gradients(dtype, *, with_add=True, shape=IMAGES, **options):
    F.reset_dropout()
    np.random.seed(0)
    variables = _variables(dtype, shape)
    loss, y = _branching(*variables[: 4 if with_add else 3], **options)
    loss.backward()
    return [variable.grad for variable in variables if variable.grad is not None], y


@pytest.mark.parametrize(
    ("dtype", "shape", "with_add", "relu"), pairs(DTYPES, [IMAGES, (6, 8)], [False, True], [False, True])
)
def test_two_terms_give_the_bits_of_their_sum(taken, dtype, shape, with_add, relu):
    found, _ = _gradients(dtype, shape=shape, with_add=with_add, relu=relu)
    assert taken.count(2) == 1
    taken.clear()
    with _one_by_one():
        expected, _ = _gradients(dtype, shape=shape, with_add=with_add, relu=relu)
    assert set(taken) == {1}
    assert len(found) == len(expected) == 3 + with_add
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("consumers", [1, 2, 3, 4])
def test_more_than_two_gradients_are_added_as_they_come(taken, consumers):
    """Each sum is rounded, from the one that came first on, as Chainer's are."""
    found, _ = _gradients(np.float16, consumers=consumers)
    assert taken.count(2) == (consumers > 1)
    with _one_by_one(), chainer.using_config("debug", True):  # then Chainer adds
        expected, _ = _gradients(np.float16, consumers=consumers)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


class _Hook(chainer.FunctionHook):
    name = "gradients"

    def __init__(self):
        self.seen = []

    def backward_preprocess(self, function, in_data, out_grad):
        if isinstance(function, BatchNormalization):
            self.seen += [array.copy() for array in out_grad]


@pytest.mark.parametrize("local", [False, True])
def test_a_hook_sees_the_sum(taken, local):
    expected, y = _gradients(np.float32)
    taken.clear()
    hook = _Hook()
    variables = _variables(np.float32)
    with contextlib.nullcontext() if local else hook:
        loss, y = _branching(*variables)
        if local:
            y.creator_node.add_hook(hook)
        loss.backward(retain_grad=True)
    assert set(taken) == {1}
    np.testing.assert_array_equal(hook.seen, [y.grad])
    for variable, gradient in zip(variables, expected, strict=True):
        np.testing.assert_array_equal(variable.grad, gradient)


@pytest.mark.parametrize("inner_alone", [False, True])
def test_gradients_of_inner_variables(inner_alone):
    variables = _variables(np.float32)

    def gradients():
        loss, y = _branching(*variables)
        return [CF.identity(each).array for each in chainer.grad([loss], [y, variables[0]][: 2 - inner_alone])]

    found = gradients()
    with _one_by_one():
        for one, other in zip(found, gradients(), strict=True):
            np.testing.assert_array_equal(one, other)


def test_other_dtypes_and_shapes_are_left_to_chainer():
    x = chainer.Variable(np.arange(6.0).reshape(2, 3))
    (CF.sum(x * x) + CF.sum(x * 2) + CF.sum(CF.broadcast_to(CF.sum(x), (5,)))).backward()
    np.testing.assert_array_equal(x.grad, 2 * x.array + 2 + 5)
    assert x.grad.dtype == np.float64


def test_a_process_without_nodes_of_mixprec_adds_as_chainer_does():
    program = """
import chainer.functions as CF
import numpy as np
from chainer import _backprop_utils
from mixprec import functions as F

assert _backprop_utils._reduce.__module__ == _backprop_utils.GradTable.__module__ == "chainer._backprop_utils"
F.relu(np.ones(2, np.float32))
assert _backprop_utils._reduce.__module__ == _backprop_utils.GradTable.__module__ == "mixprec.functions.sums"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_it_can_still_be_differentiated_twice():
    x = chainer.Variable(np.array([2.0, 3.0], np.float32))
    (gradient,) = chainer.grad([x**3 + x**2], [x], enable_double_backprop=True)
    (second,) = chainer.grad([gradient], [x])
    np.testing.assert_allclose(second.array, 6 * x.array + 2)


# --- the variable that nobody has computed


def _sum():
    terms = [chainer.Variable(normal(seed, *IMAGES, dtype=np.float16)) for seed in (0, 1)]
    return Sum(*terms), [term.array for term in terms]


LOOKS = {
    "array": lambda x: x.array,
    "data": lambda x: x.data,
    "addition": lambda x: (x + 0).array,
    "function": lambda x: CF.identity(x).array,
    "raw array after it was taken": lambda x: x.take() and x.raw_array,
}


@pytest.mark.parametrize("name", LOOKS)
def test_whoever_looks_gets_the_sum(name):
    variable, arrays = _sum()
    if "function" in name or "addition" in name:
        variable.take()  # before, only Chainer's backward pass has it
    np.testing.assert_array_equal(LOOKS[name](variable), PRIMITIVES.add(*arrays))
    assert type(variable) is chainer.Variable
    assert variable.node.get_variable() is variable


def test_shapes_and_the_like_are_those_of_the_sum():
    for look in (lambda x: x.shape, lambda x: x.dtype, lambda x: x.xp, lambda x: len(x), lambda x: x.requires_grad):
        variable, arrays = _sum()
        assert look(variable) == look(chainer.Variable(arrays[0], requires_grad=False))
    with pytest.raises(AttributeError, match="'Sum' object has no attribute 'nothing'"):
        _ = _sum()[0].nothing


def test_which_nodes_take_two_terms():
    """Those whose gradients have an argument for the second one."""

    def below(cls):
        return {cls}.union(*map(below, cls.__subclasses__()))

    taking = {cls for cls in below(Node) if "plus" in inspect.signature(cls.gradients).parameters}
    assert {cls for cls in below(Node) if cls.takes_two_terms} == taking
    assert BatchNormalization in taking


# --- how they lie in memory


def _launched(function):
    with recording() as notes:
        result = function()
    return result, [note.primitive or note.name for note in notes if note.kind in ("kernel", "cudnn", "array")]


def _on_device(shape, nhwc):
    array_on_device = null_device.array(np.ones(shape, np.float16))
    if not nhwc:
        return array_on_device
    n, c, h, w = shape
    return null_device.array(np.ones((n, h, w, c), np.float16)).transpose(0, 3, 1, 2)


FLAT = [
    ((2, 8, 3, 3), (True, True), ["add"], True),
    ((2, 8, 3, 3), (False, False), ["add"], False),
    ((2, 8, 3, 3), (True, False), ["to_nhwc", "add"], True),
    ((2, 8, 3, 3), (False, True), ["to_nhwc", "add"], True),
    ((2, 8, 1, 1), (True, False), ["add"], True),
    ((1, 8, 1, 3), (True, True), ["add"], True),
]


@pytest.mark.parametrize(("shape", "orders", "launches", "is_nhwc"), FLAT)
def test_a_sum_is_one_flat_launch(shape, orders, launches, is_nhwc):
    null_device.install()
    terms = [chainer.Variable(_on_device(shape, nhwc), requires_grad=False) for nhwc in orders]
    with chainer.using_config("enable_backprop", False):
        result, found = _launched(lambda: _backprop_utils._reduce(terms))
    assert found == launches
    assert result.shape == shape
    dense = result.array.transpose(0, 2, 3, 1) if is_nhwc else result.array
    assert dense.flags.c_contiguous


def test_gradients_of_filters_accumulate_in_the_order_of_the_filters():
    null_device.install()
    W = chainer.Parameter(channels_last(normal(1, 16, 8, 3, 3)).view(null_device.Array))
    W.cleargrad()
    x = null_device.array(normal(0, 2, 5, 5, 8))
    with graphs_of(x).on_stream():
        for _ in range(3):
            loss = CF.sum(F.convolution_2d(x, W))
            _, found = _launched(loss.backward)
            assert W.grad.strides == W.array.strides
    assert found.count("add") == 1
    assert not {"copy", "to_nhwc"} & set(found)
