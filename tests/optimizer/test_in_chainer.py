"""Promise 11: the wrapper in the places where Chainer wants an optimizer: updaters, trainer, schedules, ChainerMN."""

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers, training
from chainer.training import extensions

import mixprec
from tests.stand_ins import without_mpi

X = np.random.RandomState(0).normal(size=(32, 4)).astype(np.float32)
T = np.arange(32, dtype=np.int32) % 3


def _optimizer(loss_scale="dynamic", compute="float16"):
    model = L.Classifier(L.Linear(4, 3, initialW=np.linspace(-1, 1, 12, dtype="f").reshape(3, 4)))
    mixprec.convert(model, compute=compute)
    return mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(lr=0.1), loss_scale).setup(model)


def _iterator():
    return chainer.iterators.SerialIterator(chainer.datasets.TupleDataset(X, T), 8, shuffle=False)


def _weights(optimizer):
    return optimizer.master(optimizer.target.predictor.W).array


def _reference():
    optimizer = _optimizer()
    for batch in range(4):
        optimizer.update(optimizer.target, X[8 * batch : 8 * batch + 8], T[8 * batch : 8 * batch + 8])
    return _weights(optimizer)


@pytest.mark.parametrize("keywords", [{}, {"loss_func": True}, {"device": "@numpy"}])
def test_standard_updater_and_trainer(keywords, tmp_path):
    """Works: with its own loss function, too, with a device, extensions, epochs and a log."""
    optimizer = _optimizer()
    if "loss_func" in keywords:
        keywords = {"loss_func": lambda x, t: optimizer.target(x, t)}
    updater = training.StandardUpdater(_iterator(), optimizer, **keywords)
    trainer = training.Trainer(updater, (1, "epoch"), out=str(tmp_path))
    trainer.extend(extensions.LogReport())
    trainer.extend(extensions.observe_lr())
    trainer.extend(extensions.ExponentialShift("lr", 0.5), trigger=(1, "epoch"))
    trainer.extend(extensions.FailOnNonNumber())
    trainer.run()
    np.testing.assert_array_equal(_weights(optimizer), _reference())
    assert (optimizer.t + optimizer.skipped, optimizer.epoch, optimizer.lr) == (4, 1, 0.05)
    assert trainer.get_extension("LogReport").log[0]["lr"] == 0.1


def test_standard_updater_may_repeat_the_static_scale_and_nothing_else():
    """``StandardUpdater(loss_scale=...)`` sets the scale of the optimizer: here it is the wrapper's."""
    training.StandardUpdater(_iterator(), _optimizer(1024), loss_scale=1024)
    for loss_scale in ("dynamic", 8, None):
        with pytest.raises(ValueError, match=r"loss_scale=1024 here, but .*: leave it out here"):
            training.StandardUpdater(_iterator(), _optimizer(loss_scale), loss_scale=1024)


def test_it_passes_for_the_wrapped_optimizer():
    """Hyperparameters, hooks, epochs and schedules reach through."""
    optimizer = _optimizer()
    shift = extensions.ExponentialShift("lr", 0.5, init=0.4, optimizer=optimizer)
    shift.initialize(None)
    assert optimizer.lr == pytest.approx(0.4)
    optimizer.momentum = 0.5
    assert optimizer.target.predictor.W.update_rule.hyperparam.momentum == 0.5
    optimizer.new_epoch()
    assert optimizer.epoch == 1
    optimizer.add_hook(optimizer_hooks.WeightDecay(0.1))
    optimizer.remove_hook("WeightDecay")
    optimizer.t = 7
    assert optimizer.t == 7


def test_code_that_passes_the_loss_scale_to_backward_itself():
    """As ChainerMN's optimizer does, and optimizers in its manner."""
    optimizer, reference = _optimizer(), _optimizer()
    optimizer.target.cleargrads()
    optimizer.target(X, T).backward(loss_scale=optimizer._loss_scale)
    optimizer.update()
    reference.update(reference.target, X, T)
    np.testing.assert_array_equal(_weights(optimizer), _weights(reference))


MULTI_NODE = """
    import chainer, chainermn, mixprec, numpy as np
    import chainer.links as L

    np.seterr(over="ignore", invalid="ignore")

    class Communicator:  # of a world of one
        def bcast_data(self, model):
            print("broadcast")
        def multi_node_mean_grad(self, model, zero_fill):
            print("all-reduce")
            for param in model.params():
                if zero_fill and param.array is not None and param.grad is None:
                    param.grad = np.zeros_like(param.array)

    def network():
        initial = np.eye(2, dtype="f")
        links = chainer.ChainList(L.Linear(2, 2, initialW=initial), L.Linear(2, 2, initialW=initial))
        links.forward = lambda x: links[0](x)  # the other link has no gradient, and ChainerMN gives it zeros
        model = L.Classifier(links)
        mixprec.convert(model)
        return model

    def optimizer(loss_scale="dynamic"):
        return mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(), loss_scale)

    def batch(value):
        return np.full((4, 2), value, np.float32), np.zeros(4, np.int32)
"""


def test_create_multi_node_optimizer_around_the_wrapper():
    """Works: the scaled gradients are summed over the nodes, and every node checks the same sum."""
    lines = without_mpi.run(
        MULTI_NODE,
        """
        inner, alone = optimizer(), optimizer()
        outer = chainermn.create_multi_node_optimizer(inner, Communicator()).setup(network())
        alone.setup(network())
        outer.update(outer.target, *batch(5.0))  # the first call only broadcasts the weights
        for value in (1.0, np.inf, 2.0):
            outer.update(outer.target, *batch(value))
            alone.update(alone.target, *batch(value))
        print(outer.t, outer.skipped, outer.loss_scale == alone.loss_scale, outer.lr)
        for found, expected in zip(outer.target.params(), alone.target.params()):
            np.testing.assert_array_equal(inner.master(found).array, alone.master(expected).array)
        """,
    )
    assert lines == ["broadcast", "all-reduce", "all-reduce", "all-reduce", "2 1 True 0.01"]


def test_other_orders_of_chainermns_optimizer_and_the_wrapper_are_refused():
    """Each says what to do: double buffering hands gradients on a step late, a skipped step's statistics too."""
    lines = without_mpi.run(
        MULTI_NODE,
        """
        def refused(make):
            try:
                make()
            except (TypeError, ValueError) as error:
                print(error)

        def around(inner, **settings):
            return chainermn.create_multi_node_optimizer(inner, Communicator(), **settings)

        sgd = chainer.optimizers.SGD()
        refused(lambda: mixprec.MixedPrecisionOptimizer(around(sgd)))
        for loss_scale in ("dynamic", None):
            refused(lambda: around(optimizer(loss_scale), double_buffering=True))
        refused(lambda: around(sgd, double_buffering=True))
        refused(lambda: around(around(optimizer())))
        refused(lambda: mixprec.capture(around(optimizer()).setup(network())))
        """,
    )
    inside, *buffered, chainers, twice, captured = lines
    assert inside.endswith("create_multi_node_optimizer(MixedPrecisionOptimizer(optimizer), communicator)")
    assert len(buffered) == 2
    for line in buffered:
        assert line.startswith("double_buffering updates with the gradients of the previous step")
        assert "use MixedPrecisionOptimizer(optimizer, communicator=communicator)" in line
    assert chainers.startswith("This communicator does not support double buffering")
    assert twice == (
        "_MultiNodeOptimizer has a communicator and averages gradients: leave out create_multi_node_optimizer"
    )
    assert captured.endswith(
        "give the communicator to MixedPrecisionOptimizer, in place of create_multi_node_optimizer"
    )


def _extended(optimizer, model, folder):
    """Runs a trainer; returns what extensions of Chainer have seen of the gradients, one row an iteration."""
    updater = training.StandardUpdater(_iterator(), optimizer)
    trainer = training.Trainer(updater, (1, "epoch"), out=str(folder))
    plot = extensions.VariableStatisticsPlot(model, report_data=False, trigger=(100, "epoch"))
    trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
    trainer.extend(extensions.ParameterStatistics(model, trigger=(1, "iteration")), trigger=(1, "iteration"))
    trainer.extend(plot, trigger=(1, "iteration"))
    trainer.run()
    log = trainer.get_extension("LogReport").log
    names = sorted(name for name in log[0] if "/grad/" in name)
    return [[entry[name] for name in names] for entry in log], plot._samples.get_data()[1]


@pytest.mark.parametrize(("compute", "tolerance"), [("float32", 0), ("float16", 2**-9), ("bfloat16", 2**-5)])
def test_extensions_that_look_at_gradients_see_them_unscaled(tmp_path, compute, tolerance):
    """In float32, whatever the loss scale; a test of plain Chainer in FP32 has the same numbers."""
    optimizer = _optimizer(2.0**12, compute)
    found = _extended(optimizer, optimizer.target, tmp_path)
    assert abs(optimizer.target.predictor.W.grad).max() > 100  # the gradients stay as they are
    plain = _optimizer(compute="float32").target
    expected = _extended(optimizers.MomentumSGD(lr=0.1).setup(plain), plain, tmp_path)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance / 4)
