"""Each function that joins a graph is reported once, by Chainer's way to apply it and by mixprec's."""

import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec import functions
from mixprec.functions import watching
from tests.graph_nodes import nodes_behind

X = np.ones((2, 3, 4, 4), np.float32)


def _network():
    return chainer.Sequential(
        L.Convolution2D(3, 4, 3), L.BatchNormalization(4), F.relu, lambda h: h + 1, L.Linear(None, 2), F.sin
    )


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("compute", [None, "float32", "float16"])
def test_the_nodes_of_a_graph_are_reported_once_and_all(compute, hooked):
    model, found = _network(), []
    if compute is not None:
        mixprec.convert(model, X, compute=compute)
    with watching.watch(lambda node, results: found.append((node, results))):
        if hooked:
            with chainer.function_hooks.TimerHook():
                y = model(X)
        else:
            y = model(X)
    nodes = [node for node, _ in found]
    assert len(set(nodes)) == len(nodes)
    assert set(nodes) == set(nodes_behind(y))
    for node, results in found:
        assert all(result.creator_node is node for result in results)


def test_watchers_lie_in_one_another_and_belong_to_a_thread():
    calls = []
    with watching.watch(lambda node, results: calls.append(("outer", node.label))):
        with watching.watch(lambda node, results: calls.append(("inner", node.label))):
            F.sin(chainer.Variable(X))
            thread = threading.Thread(target=F.exp, args=[chainer.Variable(X)])
            thread.start()
            thread.join()
        with watching.watch_alone(lambda node, results: calls.append(("alone", node.label))):
            functions.relu(chainer.Variable(X))
        with watching.watch_alone():
            F.exp(chainer.Variable(X))
        F.cos(chainer.Variable(X))
    assert calls == [("outer", "sin"), ("inner", "sin"), ("alone", "relu"), ("outer", "cos")]
    F.sin(chainer.Variable(X))
    assert len(calls) == 4
    assert not watching.now.watchers


def test_an_error_of_a_watcher_is_the_callers():
    def refuse(node, results):
        raise ValueError(node.label)

    with pytest.raises(ValueError, match="sin"), watching.watch(refuse):
        F.sin(chainer.Variable(X))
    assert not watching.now.watchers
