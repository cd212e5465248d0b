"""What function nodes retain, and nodes that compute again."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

from mixprec import functions
from mixprec.activation_memory import retained
from mixprec.functions import reset_dropout


def _normalized(running=None):
    x = F.identity(chainer.Variable(np.random.RandomState(0).normal(size=(2, 4, 4, 3)).astype(np.float16)))
    gamma, beta = (chainer.Variable(np.full(3, value, np.float32)) for value in (2.0, 1.0))
    mean, variance = (None, None) if running is None else running
    y = functions.batch_normalization(x, gamma, beta, running_mean=mean, running_var=variance, add=x, relu=True)
    return y, y.creator_node


def test_all_places_are_found():
    """The input, and in a named tuple the statistics and the mask of the ReLU; taken away they are put back."""
    y, node = _normalized()
    places = list(retained.references_of(node))
    names = {(place.name, array.size) for place, array in places}
    assert ("_data", 96) in names
    saved = [(place, array) for place, array in places if place.name == "_saved"]
    assert len(saved) == sum(isinstance(each, np.ndarray) for each in node._saved) > 1
    kind, before = type(node._saved), node._saved
    for place, array in saved:
        assert place.get() is array
        place.put(None)
        assert place.get() is None
    for place, array in saved:
        place.put(array)
    assert type(node._saved) is kind
    assert all(now is was for now, was in zip(node._saved, before, strict=True))
    del node, y
    assert places[0][0].owner is None
    places[0][0].put(None)


def test_batch_normalization_again():
    """The same result, and running statistics stay."""
    running = np.zeros(3, np.float32), np.ones(3, np.float32)
    y, node = _normalized(running)
    moved = [array.copy() for array in running]
    inputs = tuple([x.data if x.data is not None else x.get_variable().array for x in node.inputs])
    (again,) = retained.again(node).forward(inputs)
    np.testing.assert_array_equal(again, y.array)
    np.testing.assert_array_equal(running, moved)


def test_dropout_again():
    """The same zeros, and the next dropout has those that it would have had."""
    x = chainer.Variable(np.ones((8, 8), np.float32))

    def drawn(repeats):
        np.random.seed(0)
        reset_dropout()
        y = functions.dropout(x)
        if repeats:
            (again,) = retained.again(y.creator_node).forward((x.array,))
            np.testing.assert_array_equal(again, y.array)
        return functions.dropout(x).array

    np.testing.assert_array_equal(drawn(True), drawn(False))


@pytest.mark.parametrize(
    "function", [F.relu, F.tanh, lambda x: F.concat([x, x]), lambda x: x + 1, lambda x: F.max_pooling_2d(x, 2)]
)
def test_functions_of_chainer_again(function):
    x = chainer.Variable(np.random.RandomState(0).normal(size=(2, 3, 4, 4)).astype(np.float32))
    y = function(x)
    (again,) = retained.again(y.creator_node).forward(tuple(x.array for _ in y.creator_node.inputs))
    np.testing.assert_array_equal(again, y.array)


def test_what_is_random_is_not_computed_again():
    x = chainer.Variable(np.ones((4, 4), np.float32))
    assert retained.again(F.dropout(x).creator_node) is None
    assert retained.again(F.gaussian(x, x).creator_node) is None
