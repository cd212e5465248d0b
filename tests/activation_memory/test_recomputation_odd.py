"""``mixprec.recompute``: errors, settings and reports; what a second call must not leave behind."""

import sys
import threading
import types

import chainer
import chainer.functions as F
import numpy as np
import pytest

import mixprec
from mixprec.activation_memory import cupy_draws, graph_edge, recomputed
from mixprec.export import chainer_graph
from mixprec.functions import dropout, watching
from mixprec.precision.conversion_state import active
from models import resnet
from tests.activation_memory.recomputed_programs import Net, assert_same, residual_blocks


@pytest.mark.parametrize("when", ["in the first call", "in the second call", "in its backward pass"])
def test_an_error_leaves_nothing_behind(when):
    class Fails(chainer.FunctionNode):
        def forward(self, inputs):
            return (inputs[0] * 1,)

        def backward(self, indexes, gradients):
            if when == "in its backward pass":
                raise ZeroDivisionError
            return gradients

    model = Net(residual_blocks, mixprec.recompute)
    mixprec.convert(model)

    def forward(x):
        np.random.rand()
        model.state = x
        again = chainer.config.in_recomputing
        if when == ("in the second call" if again else "in the first call"):
            raise ZeroDivisionError
        return Fails().apply((net_forward(dropout(x)),))[0]

    block = mixprec.recompute(model.block)
    net_forward, block.forward = block.forward, forward
    x = np.ones((2, 3, 8, 8), np.float32)
    if when == "in the first call":
        with pytest.raises(ZeroDivisionError):
            model(x)
    else:
        loss = F.mean(model(x))
        drawn, state = np.random.get_state()[2], model.state
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        assert np.random.get_state()[2] == drawn
        assert model.state is state
    config = chainer.config
    assert (active.scope, watching.now.watchers) == (None, ())
    assert (config.enable_backprop, config.in_recomputing, config._will_recompute) == (True, False, False)
    assert all(param.node.creator_node is None for param in model.params())
    block.forward = net_forward
    model.cleargrads()
    F.mean(model(x)).backward()


def test_another_result_the_second_time_is_an_error():
    function = mixprec.recompute(lambda x: (x * 2, x * 3) if chainer.config.in_recomputing else (x * 2,))
    (y,) = function(chainer.Variable(np.ones(3, np.float32)))
    with pytest.raises(RuntimeError, match="the repeated call returned other variables than the first call"):
        F.sum(y).backward()


def test_settings_of_the_first_call_are_those_of_the_second():
    x = chainer.Variable(np.ones((4, 3), np.float32))
    with chainer.using_config("train", False), chainer.using_config("mine", 3):
        y = mixprec.recompute(lambda x: F.dropout(x) * chainer.config.mine)(x)
    F.sum(y).backward()
    assert_same([x.grad], [np.full((4, 3), 3, np.float32)])


def test_reports_are_made_once():
    def function(x):
        chainer.report({"calls": 1.0 + len(reported)})
        return x * 2

    reporter, reported = chainer.Reporter(), {}
    with reporter.scope(reported):
        y = mixprec.recompute(function)(chainer.Variable(np.ones(3, np.float32)))
        F.sum(y).backward()
    assert reported == {"calls": 1.0}


def test_a_function_that_cannot_be_repeated_is_refused(monkeypatch):
    monkeypatch.setattr(recomputed, "_is_on_host", lambda variables: False)
    x = chainer.Variable(np.ones((2, 3), np.float32))
    with pytest.raises(RuntimeError, match=r"^mixprec.recompute\(gaussian\): Gaussian draws random numbers from CuPy"):
        mixprec.recompute(F.gaussian)(x, x)
    mixprec.recompute(dropout)(x, 0.5)  # this one can


def test_random_numbers_of_cupy_are_refused_in_the_second_call(monkeypatch):
    """There is no CuPy here: this is a module that looks like its generator, and a class like the one for its RNNs."""
    modules = {name: types.ModuleType(name) for name in ("cupy", "cupy.random", "cupy.random._generator", "cupy.cudnn")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    generator = modules["cupy.random._generator"]
    generator.get_random_state = lambda: 3
    states = type("DropoutStates", (), {"set_dropout_ratio": lambda self, dropout_ratio: dropout_ratio})
    modules["cupy.cudnn"].DropoutStates = states
    x = chainer.Variable(np.ones(3, np.float32))
    with cupy_draws.random_state.applied(), cupy_draws.ratio_of_rnn.applied():
        for draw in (lambda: generator.get_random_state(), lambda: states().set_dropout_ratio(0.5)):
            y = mixprec.recompute(lambda x, draw=draw: (draw(), x * 2)[1])(x)
            with pytest.raises(RuntimeError, match=r"^recompute\(<lambda>\): it draws random numbers from CuPy"):
                F.sum(y).backward()
        F.sum(mixprec.recompute(lambda x: x * 2 + states().set_dropout_ratio(0.0))(x)).backward()
        assert generator.get_random_state() == 3


def test_two_threads_over_one_model_do_not_see_each_others_edges():
    """The first one waits inside of its pass, until the second one has come to its own."""
    shut, inside, came = graph_edge.shut, [], threading.Event()
    node = chainer.Parameter(np.ones(3, np.float32)).node

    def second():
        came.set()
        with shut([node]):
            inside.append("second")

    thread = threading.Thread(target=second)
    with shut([node]) as (edge,):
        with shut([]):  # the same thread may be in several
            thread.start()
        came.wait()
        assert inside == []
        assert node.creator_node is edge
        inside.append("first")
    thread.join()
    assert inside == ["first", "second"]
    assert node.creator_node is None


def test_an_exported_model_has_no_recomputed_parts():
    pytest.importorskip("onnx")
    x, found = np.ones((1, 3, 64, 64), np.float32), []
    model = resnet.resnet10_small()
    for _ in range(2):
        graph, _ = chainer_graph.trace(chainer_graph.plain_copy(model), [x])
        found.append([node.op_type for node in graph.graph.node])
        mixprec.recompute(model.layer1)
    assert found[1] == found[0]
