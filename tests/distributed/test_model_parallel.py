"""Model parallelism of ChainerMN: a chain of processes has no loss scale, and over float16 all of them say so."""

import pytest

from tests import mpi

PROGRAM = """
    import logging
    import chainer.functions as F
    import chainer.links as L
    import chainermn.functions
    from chainer import optimizers
    from mixprec.base import announcements
    from mixprec.optimizer import UnscaledBackward

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.msg)
    logging.getLogger("mixprec").addHandler(handler)
    logging.getLogger("mixprec").propagate = False

    class First(chainermn.MultiNodeChainList):
        def __init__(self, comm):
            super().__init__(comm=comm)
            self.add_link(L.Linear(8, 8), rank_in=None, rank_out=1)

    class Last(chainermn.MultiNodeChainList):
        def __init__(self, comm):
            super().__init__(comm=comm)
            self.add_link(L.Linear(8, 3), rank_in=comm.rank - 1, rank_out=None)

    class Middle(chainermn.MultiNodeChainList):
        def __init__(self, comm):
            super().__init__(comm=comm)
            self.add_link(L.Linear(8, 8), rank_in=comm.rank - 1, rank_out=comm.rank + 1)

    random = np.random.RandomState(0)
    X, T = random.rand(3, 4, 8).astype("f"), np.arange(4, dtype="i") % 3

    def built(comm, wrap, compute=None):
        np.random.seed(comm.rank)
        last = comm.rank == comm.size - 1
        model = L.Classifier(Last(comm)) if last else First(comm) if comm.rank == 0 else Middle(comm)
        optimizer = wrap(optimizers.SGD(0.1)).setup(model)
        if compute is not None:
            mixprec.convert(model, compute=compute)
        return model, optimizer, (lambda x: (x, T)) if last else (lambda x: (x,)) if comm.rank == 0 else lambda x: ()

    def trained(comm, wrap, compute=None, by_hand=False, batches=X):
        model, optimizer, arguments = built(comm, wrap, compute)
        for x in batches:
            if not by_hand:
                optimizer.update(model, *arguments(x))
                continue
            loss = model(*arguments(x))
            model.cleargrads()
            getattr(optimizer, "scale_loss", lambda loss: loss)(loss).backward()
            optimizer.update()
        master = getattr(optimizer, "master", lambda param: param)
        return {name: master(param).array.copy() for name, param in model.namedparams()}

    def same(found, expected, rtol=0):
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=rtol, atol=rtol / 4, err_msg=name)

    def scaled(optimizer, **settings):
        return mixprec.MixedPrecisionOptimizer(optimizer, 1024.0, **settings)

    def unscaled(optimizer):
        return mixprec.MixedPrecisionOptimizer(optimizer, None)

    def chain(comm):
        plain = trained(comm, lambda optimizer: optimizer)
        for by_hand in (False, True):
            same(trained(comm, unscaled, by_hand=by_hand), plain)
            same(trained(comm, unscaled, "float16", by_hand), plain, 2e-2)
        for by_hand in (False, True):
            said.clear()
            if not by_hand:
                announcements._said.clear()
            same(trained(comm, scaled, by_hand=by_hand), plain)
            assert len([line for line in said if "model parallelism" in line]) == (not by_hand), said
        same(trained(comm, scaled, "bfloat16"), plain, 0.1)

    def refused(comm, which):
        comm = comm.split(0, comm.rank)  # another communicator, whose processes ask each other anew
        try:
            trained(comm, scaled, "float16" if comm.rank in which else None)
        except UnscaledBackward as error:
            message = str(error)
            assert f"rank {min(which)} goes through float16" in message, message
            assert "model parallelism" in message and "loss_scale=None" in message, message
            return
        raise AssertionError("no error")
"""


@pytest.mark.slow
def test_a_chain_of_two():
    """The core. Without a scale and with one, by update() and by hand; an error is one of all ranks."""
    code = """
        chain(communicator)
        refused(communicator, (0, 1))
        refused(communicator, (0,))
        refused(communicator, (1,))
        say("right")
    """
    assert mpi.run(2, mpi.COMMUNICATOR, PROGRAM, code) == ["right"] * 2


@pytest.mark.long
def test_a_chain_of_three_and_two_chains_with_gradients_averaged():
    """Dual parallelism: the mean over chains, by the wrapper's communicator and by ChainerMN's optimizer."""
    code = """
        chains, copies = communicator.split(rank // 2, rank), communicator.split(rank % 2, rank)
        plain = trained(chains, lambda optimizer: chainermn.create_multi_node_optimizer(optimizer, copies))
        same(trained(chains, lambda optimizer: scaled(optimizer, communicator=copies), batches=X[1:]), plain, 1e-6)
        same(trained(chains, lambda optimizer: chainermn.create_multi_node_optimizer(scaled(optimizer), copies)), plain)
        three = communicator.split(rank // 3, rank)
        if rank < 3:
            chain(three)
            refused(three, (1,))
        say("right")
    """
    assert mpi.run(4, mpi.COMMUNICATOR, PROGRAM, code) == ["right"] * 4
