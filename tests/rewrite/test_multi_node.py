"""Converted models on several processes: what ChainerMN does between them stays what it is."""

import pytest

from tests import mpi

_MODEL = """
    import chainer, chainermn, chainer.functions as F, chainer.links as L, numpy as np
    import mixprec
    from chainermn.links import MultiNodeBatchNormalization

    chainer.disable_experimental_feature_warning = True
    comm = chainermn.create_communicator("naive")
    # Each process has images of its own, and with them a mean and a variance of its own.
    images = np.random.RandomState(comm.rank).normal(3 * comm.rank, 1 + comm.rank, (4, 3, 8, 8)).astype(np.float32)
    labels = np.arange(4, dtype=np.int32)
    filters = np.linspace(-1, 1, 216, dtype="f").reshape(8, 3, 3, 3)

    class Net(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.conv = L.Convolution2D(3, 8, 3, nobias=True, initialW=filters)
                self.bn = MultiNodeBatchNormalization(8, comm)
                self.fc = L.Linear(None, 4, initialW=chainer.initializers.Constant(0.01))

        def forward(self, x):
            return self.fc(F.relu(self.bn(self.conv(x))))
"""


def test_multi_node_batch_normalization_of_a_converted_model_is_over_all_processes():
    """It became one over the batch of each process, in silence: the rule did not look whose implementation it was."""
    lines = mpi.run(
        2,
        _MODEL,
        """
        def trained(**options):
            model = L.Classifier(Net())
            optimizer = chainer.optimizers.MomentumSGD(0.1)
            if options:
                report = mixprec.convert(model, **options)
                optimizer = mixprec.MixedPrecisionOptimizer(optimizer, 8)
            optimizer = chainermn.create_multi_node_optimizer(optimizer, comm).setup(model)
            for _ in range(4):  # the first one only gives all processes the same parameters
                optimizer.update(model, images, labels)
            if options and comm.rank == 0:
                print(*report.unconverted, sep="\\n")
            bn = model.predictor.bn
            return {"mean": bn.avg_mean, "var": bn.avg_var} | {name: p.array for name, p in model.namedparams()}

        expected = trained()
        for layout in ("nhwc", "nchw"):
            found = trained(layout=layout, fuse=layout == "nhwc")
            for name, value in found.items():
                for other in comm.mpi_comm.allgather(value):
                    np.testing.assert_array_equal(other, value, err_msg=name)
                tolerance = 16 * 2.0**-11 * np.abs(expected[name]).max()
                np.testing.assert_allclose(value, expected[name], rtol=0, atol=tolerance, err_msg=name)
        """,
    )
    assert lines == sorted(
        2
        * [
            "/predictor/bn (BatchNormalization): it is computed by MultiNodeBNImplSelector, in float32",
            "/predictor/bn (MultiNodeBatchNormalization): not a link that mixprec knows",
        ]
    )


@pytest.mark.sweep
def test_what_a_converted_model_sends_to_other_processes_is_what_plain_chainer_sends():
    """Also through MultiNodeChainList, create_mnbn_model and pseudo_connect, in training and evaluation."""
    mpi.run(
        2,
        _MODEL,
        """
        import chainermn.functions as C

        class Part(chainer.Chain):
            def __init__(self, channels, function=lambda h: h, normalized=False):
                super().__init__()
                self.function, self.normalized = function, normalized
                with self.init_scope():
                    W = np.linspace(-0.1, 0.1, channels * 72, dtype="f").reshape(8, channels, 3, 3)
                    self.conv = L.Convolution2D(channels, 8, 3, nobias=True, initialW=W)
                    self.bn = L.BatchNormalization(8)

            def forward(self, x):
                h = self.conv(x)
                return self.function(F.relu(self.bn(h) if self.normalized else h))

        def ring():
            model = chainermn.MultiNodeChainList(comm)
            for number, (rank_in, rank_out) in enumerate([(None, 1), (1, None)] if comm.rank == 0 else [(0, 0)]):
                model.add_link(Part(3 if comm.rank == number == 0 else 8), rank_in, rank_out)
            return model

        def exchanging(function):
            return lambda: chainer.Sequential(Part(3, function), Part(8))

        def received(h):
            return C.send(h, comm, rank=1) if comm.rank == 0 else C.recv(comm, rank=0)

        def gathered(h):
            return F.concat(C.gather(comm, h), axis=0) if comm.rank == 0 else C.gather(comm, h)

        models = {
            "ring": ring,
            "statistics of all": lambda: chainermn.links.create_mnbn_model(Part(3, normalized=True), comm),
            "all gather": exchanging(lambda h: sum(C.allgather(comm, h))),
            "all to all": exchanging(lambda h: F.concat(C.alltoall(comm, [h, h * 2]), axis=0)),
            "broadcast": exchanging(lambda h: C.bcast(comm, h)),
            "scatter": exchanging(lambda h: C.scatter(comm, (h, h * 2))),
            "gather": lambda: Part(3, gathered),
            "send": lambda: Part(3, received),
        }

        def results(name, convert):
            model = models[name]()
            if convert:
                mixprec.convert(model)
            inputs = () if name == "ring" and comm.rank == 1 else (images,)
            for _ in range(2):
                model.cleargrads()
                y = model(*inputs)
                loss = F.sum(y * y) if y.array is not None and y.size else y
                loss.backward()
            with chainer.using_config("train", False), chainer.no_backprop_mode():
                evaluated = model(*inputs)
            return [y.array, evaluated.array, *(param.grad for _, param in sorted(model.namedparams()))]

        for name in models:
            for expected, found in zip(results(name, False), results(name, True), strict=True):
                if expected is not None and expected.size:
                    tolerance = 64 * 2.0**-11 * np.abs(expected).max()
                    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg=name)
        """,
    )
