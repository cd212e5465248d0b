"""Converted models on several processes: what ChainerMN does between them stays what it is."""

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
