"""Chainer's example of model parallelism, written anew: two processes, of which each has a half of the network.

The first process has no data of its own kind: its labels are an empty data set, and its loss a delegate variable.
"""

import pytest

from tests import mpi

PROGRAM = """
    import chainer.functions as F
    import chainer.links as L
    import chainermn.datasets

    way, loss_scale = {way!r}, {loss_scale}

    class First(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.l1, self.l2 = L.Linear(10, 20), L.Linear(20, 20)

        def forward(self, x):
            return F.relu(self.l2(F.relu(self.l1(x))))

    class Second(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.l3 = L.Linear(20, 3)

        def forward(self, h):
            return self.l3(h)

    class Network(chainermn.MultiNodeChainList):
        def __init__(self):
            super().__init__(comm=communicator)
            if rank == 0:
                self.add_link(First(), rank_in=None, rank_out=1)
            else:
                self.add_link(Second(), rank_in=0, rank_out=None)

    np.random.seed(rank)
    model = Network() if rank == 0 else L.Classifier(Network())
    optimizer = chainer.optimizers.Adam(0.01)
    if way != "plain":
        optimizer = mixprec.MixedPrecisionOptimizer(optimizer, **loss_scale)
    optimizer.setup(model)
    if way not in ("plain", "wrapped"):
        mixprec.convert(model, compute=way)

    x = np.random.RandomState(5).normal(size=(120, 10)).astype("float32")
    data = chainer.datasets.TupleDataset(x, x[:, :3].argmax(1).astype("int32"))
    iterator = chainermn.iterators.create_multi_node_iterator(
        chainer.iterators.SerialIterator(data, 40, shuffle=rank == 1), communicator, rank_master=1
    )
    if rank == 0:
        loss_of = lambda x, t: model(x)
    else:
        loss_of = model
    updater = chainer.training.updaters.StandardUpdater(iterator, optimizer, loss_func=loss_of)
    losses = []
    for _ in range(90):
        updater.update()
        if rank == 1:
            losses.append(float(model.loss.array))
    if rank == 1:
        say(np.mean(losses[:3]), np.mean(losses[-3:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "loss_scale"),
    [("plain", {}), ("wrapped", {}), ("bfloat16", {}), ("float16", {"loss_scale": None})],
)
def test_halves_of_a_network_train(way, loss_scale):
    first, last = map(float, mpi.run(2, mpi.COMMUNICATOR, PROGRAM.format(way=way, loss_scale=loss_scale))[-1].split())
    assert last < 0.5 * first
