"""When gradients are final: what the watcher is given is what the parameter has after a pass that is not watched."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from mixprec.distributed import readiness


class Network(chainer.Chain):
    """A layer used thrice, one inside of F.forget, one outside and inside, one of which nothing comes, one unused."""

    def __init__(self):
        super().__init__()
        random = np.random.RandomState(0)
        with self.init_scope():
            for name in ("thrice", "forgotten", "both", "once", "stopped", "unused"):
                setattr(self, name, L.Linear(4, 4, initialW=random.normal(size=(4, 4)).astype("f")))

    def forward(self, x):
        h = self.thrice(F.tanh(self.thrice(self.once(x))))
        h = F.forget(lambda x: self.forgotten(F.tanh(self.both(x))), h)
        h = h + F.cast(F.cast(self.stopped(h), "int32"), "float32")
        return F.sum(self.thrice(self.both(h)) ** 2)


@pytest.fixture(autouse=True)
def _installed():
    readiness.install()


def _run(model, passes=1, watcher=None, double=False):
    """Returns the gradients of several backward passes, the last one watched."""
    model.cleargrads()
    for number in range(passes):
        loss = model(np.full((2, 4), 0.1 * (number + 1), "f"))
        if watcher is None or number < passes - 1:
            loss.backward(enable_double_backprop=double)
        else:
            with readiness.watching(watcher):
                loss.backward(enable_double_backprop=double)
    return {name: None if param.grad is None else param.grad.copy() for name, param in model.namedparams()}


@pytest.mark.parametrize("passes", [1, 2])
def test_what_is_said_to_be_final_is(passes):
    model = Network()
    expected = _run(model, passes)
    names = {id(param): name for name, param in model.namedparams()}
    found = {}

    def watcher(param, gradient):
        assert names[id(param)] not in found
        found[names[id(param)]] = gradient.copy()

    after = _run(model, passes, watcher)
    for name, gradient in expected.items():
        np.testing.assert_array_equal(after[name], gradient)
    # Not those that only an inner pass reaches, nor that get no gradient from a function.
    inner = {"/forgotten/W", "/forgotten/b", "/stopped/W", "/stopped/b", "/unused/W", "/unused/b"}
    assert found.keys() == expected.keys() - inner
    for name, gradient in found.items():
        np.testing.assert_array_equal(gradient, expected[name])
    # The first layer is last; the shared one after its last use.
    assert [name for name in found if name.endswith("W")] == ["/both/W", "/thrice/W", "/once/W"]


def test_the_parameter_gets_what_the_watcher_returns():
    model = Network()
    mine = {}

    def watcher(param, gradient):
        mine[id(param)] = gradient * 2
        return mine[id(param)]

    _run(model, 1, watcher)
    assert len(mine) == 6
    for param in model.params():
        if id(param) in mine:
            assert param.grad is mine[id(param)]


def test_only_the_first_pass_of_the_block_is_watched():
    model, seen = Network(), []
    with readiness.watching(lambda param, gradient: seen.append(param)):
        model(np.ones((2, 4), "f")).backward()
        first = len(seen)
        model(np.ones((2, 4), "f")).backward()
    assert len(seen) == first == 6


@pytest.mark.parametrize("setting", ["debug", "double"])
def test_passes_that_look_at_gradients_are_not_watched(setting):
    model, seen = Network(), []
    with chainer.using_config("debug", setting == "debug"):
        if setting == "double":
            model.forward = lambda x: F.sum(model.once(x) ** 2)  # F.forget has none
        _run(model, 1, lambda param, gradient: seen.append(param), double=setting == "double")
    assert seen == []


def test_gradients_of_gradients_inside_of_a_step_are_not_counted():
    """A function of the user's whose backward calls chainer.grad on a graph of its own."""

    class Odd(chainer.FunctionNode):
        def forward(self, inputs):
            self.retain_inputs((0,))
            return (inputs[0] ** 2,)

        def backward(self, indexes, gradients):
            (x,) = self.get_retained_inputs()
            with chainer.force_backprop_mode():
                x = chainer.Parameter(x.array)
                (gradient,) = chainer.grad([x * x], [x], [gradients[0]])
            return (chainer.Variable(gradient.array),)

    param = chainer.Parameter(np.array([3.0], "f"))
    param.cleargrad()
    found = []
    with readiness.watching(lambda param, gradient: found.append(gradient.copy())):
        F.sum(Odd().apply((param,))[0] + param).backward()
    assert found == [np.array([7.0], "f")]


@pytest.mark.parametrize("wrong", [lambda g: F.reshape(g, (1,)), lambda g: F.cast(g, "float64")])
def test_wrong_gradients_are_left_for_chainer_to_refuse(wrong):
    class Wrong(chainer.FunctionNode):
        def forward(self, inputs):
            return (np.asarray(inputs[0].sum()),)

        def backward(self, indexes, gradients):
            return (wrong(gradients[0] * np.ones((), "f")),)

    param = chainer.Parameter(np.ones(3, "f"))
    param.cleargrad()
    with (
        readiness.watching(lambda param, gradient: np.zeros(3, "f")),
        pytest.raises((TypeError, ValueError), match="mismatch"),
    ):
        Wrong().apply((param,))[0].backward()


def test_one_thread_watches_for_itself():
    import threading

    model, seen = Network(), []
    with readiness.watching(lambda param, gradient: seen.append(param)):
        thread = threading.Thread(target=lambda: _run(model))
        thread.start()
        thread.join()
    assert seen == []
