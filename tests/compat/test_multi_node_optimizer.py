"""``create_multi_node_optimizer`` around the wrapper does what ChainerMN documents, in two processes."""

import pytest

from tests import mpi

_TWO_BRANCHES = """
    import chainer.functions as F
    import chainer.links as L

    class TwoBranches(chainer.Chain):
        def __init__(self, dtype, bn=False):
            super().__init__()
            with self.init_scope():
                self.stem = L.Linear(4, 4, initialW=np.linspace(-1, 1, 16, dtype="f").reshape(4, 4))
                self.even = L.Linear(4, 2, initialW=np.linspace(-1, 1, 8, dtype="f").reshape(2, 4))
                self.odd = L.Linear(4, 2, initialW=np.linspace(1, -1, 8, dtype="f").reshape(2, 4))
            if dtype is not None:
                mixprec.convert(self, compute=dtype)

        def forward(self, x, branch):
            return F.mean(F.cast(getattr(self, branch)(F.tanh(self.stem(x))), "float32") ** 2)

    x = np.random.RandomState(0).normal(size=(2, 8, 4)).astype("f")

    def built(dtype, scale="dynamic", rule=chainer.optimizers.MomentumSGD):
        model = TwoBranches(dtype)
        optimizer = rule(0.1)
        if dtype is not None:
            optimizer = mixprec.MixedPrecisionOptimizer(optimizer, scale)
        optimizer = chainermn.create_multi_node_optimizer(optimizer, communicator)
        assert optimizer.setup(model) is optimizer
        return model, optimizer

    def weights(model, optimizer):
        found = {name: getattr(optimizer, "master", lambda p: p)(p).array.copy() for name, p in model.namedparams()}
        for each in communicator.mpi_comm.allgather(found):
            assert all((each[name] == found[name]).all() for name in found), "processes differ"
        return found
"""


BRANCHES = [("float16", False, 2e-3), pytest.param("bfloat16", True, 2e-2, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("dtype", "own_loop", "tolerance"), BRANCHES)
def test_a_branch_that_one_process_uses(dtype, own_loop, tolerance):
    """Its gradient is zeros on the other one, as plain Chainer's is: they have the loss scale as well."""
    code = f"""
        (model, optimizer), (plain, others) = built({dtype!r}, mixprec.DynamicLossScale(init=2**10)), built(None)
        for step in range(4):
            branch = ["even", "odd"][(rank + step) % 2]
            others.update(plain, x[rank], branch)
            if {own_loop}:
                model.cleargrads()
                optimizer.scale_loss(model(x[rank], branch)).backward()
                optimizer.update()
            else:
                optimizer.update(model, x[rank], branch)
        assert (optimizer.t, optimizer.skipped) == (3, 0)
        found, expected = weights(model, optimizer), weights(plain, others)
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=0, atol={tolerance}, err_msg=name)
        say("right")
    """
    assert mpi.run(2, mpi.COMMUNICATOR, _TWO_BRANCHES, code) == ["right"] * 2


@pytest.mark.slow
def test_it_is_the_optimizer_that_it_is_around():
    """Attributes, hooks, epochs and files reach through both; the first update sends weights, and that is all."""
    code = """
        import io
        (model, optimizer), (plain, others) = built("float32", 8), built(None)
        for each in (optimizer, others):
            each.lr = 0.2
            each.add_hook(chainer.optimizer_hooks.WeightDecay(0.01))
            each.add_hook(chainer.optimizer_hooks.GradientClipping(0.05))
            each.new_epoch()
        assert optimizer.actual_optimizer.lr == optimizer.lr == 0.2 and optimizer.epoch == 1
        assert optimizer.communicator is communicator and optimizer.target is model
        own = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD(), communicator=communicator)
        try:
            chainermn.create_multi_node_optimizer(own, communicator)
        except ValueError as error:
            assert str(error).startswith("MixedPrecisionOptimizer has a communicator and averages gradients")
        else:
            raise AssertionError("gradients are averaged twice")
        model.stem.W.array += rank  # which the first update takes back
        for step in range(5):
            optimizer.update(model, x[rank], "even")
            others.update(plain, x[rank], "even")
            assert optimizer.t == others.t == step
        for name, array in weights(plain, others).items():
            np.testing.assert_allclose(weights(model, optimizer)[name], array, rtol=1e-6, atol=1e-7, err_msg=name)
        assert optimizer.loss_scale == 8 and optimizer.skipped == 0

        files = io.BytesIO(), io.BytesIO()
        for file, each in zip(files, (model, optimizer)):
            chainer.serializers.save_npz(file, each)
            file.seek(0)
        again, resumed = built("float32", 8)
        for file, each in zip(files, (again, resumed)):
            chainer.serializers.load_npz(file, each)
        assert resumed.t == 4
        resumed.lr = 0.2
        resumed.add_hook(chainer.optimizer_hooks.WeightDecay(0.01))
        resumed.add_hook(chainer.optimizer_hooks.GradientClipping(0.05))
        resumed.update(again, x[rank], "even")  # sends weights
        resumed.update(again, x[rank], "even")
        optimizer.update(model, x[rank], "even")
        for name, array in weights(model, optimizer).items():
            np.testing.assert_array_equal(weights(again, resumed)[name], array)
        say("right")
    """
    assert mpi.run(2, mpi.COMMUNICATOR, _TWO_BRANCHES, code) == ["right"] * 2


@pytest.mark.slow
def test_an_overflow_in_the_second_update_takes_back_its_own_statistics():
    """Not those of the first one, which sends weights, and moves running statistics as in plain Chainer."""
    code = """
        model = chainer.Sequential(L.Linear(4, 4, initialW=np.eye(4, dtype="f")), L.BatchNormalization(4))
        mixprec.convert(model)
        optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD(0.1))
        optimizer = chainermn.create_multi_node_optimizer(optimizer, communicator).setup(model)
        lossfun = lambda x: F.mean(F.cast(model(x), "float32") ** 2)
        optimizer.update(lossfun, x[rank])
        before = model[1].avg_mean.copy()
        assert before.any()
        optimizer.update(lossfun, x[rank] * (np.inf if rank == 1 else 1))
        assert (optimizer.skipped, optimizer.last_step_skipped, optimizer.t) == (1, True, 0)
        np.testing.assert_array_equal(model[1].avg_mean, before)
        say("right")
    """
    assert mpi.run(2, mpi.COMMUNICATOR, _TWO_BRANCHES, code) == ["right"] * 2
