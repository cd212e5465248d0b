"""Converted models on several processes: what ChainerMN does between them stays what it is."""

import pytest

from tests import mpi

_MODEL = """
    import functools, itertools, chainer, chainermn, chainer.functions as F, chainer.links as L, numpy as np
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
                print(options["layout"], *report.unconverted)
                print(*(f"{each.name} {each.why}, {each.fused}" for each in report.links if "bn" in each.name))
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
    assert lines == [
        "/predictor/bn statistics over 2 processes, ",
        "/predictor/bn statistics over 2 processes, ReLU",
        "nchw /predictor/bn (BatchNormalization): it is computed by MultiNodeBNImplSelector, in float32",
        "nhwc",
    ]


_ONE_PROCESS = """
    square = np.random.RandomState(0).normal(0, 0.1, (8, 8, 3, 3)).astype("f")

    class Residual(chainer.Chain):
        def __init__(self, normalization):
            super().__init__()
            with self.init_scope():
                self.conv1 = L.Convolution2D(3, 8, 3, nobias=True, initialW=filters)
                self.conv2 = L.Convolution2D(8, 8, 3, pad=1, nobias=True, initialW=square)
                self.conv3 = L.Convolution2D(8, 8, 1, nobias=True, initialW=square[:, :, :1, :1])
                self.bn1, self.bn2, self.bn3 = (normalization(8) for _ in range(3))
                self.fc = L.Linear(72, 4, initialW=chainer.initializers.Constant(0.01))

        def forward(self, x):
            h = F.max_pooling_2d(F.relu(self.bn1(self.conv1(x))), 3, 2)
            h = F.relu(self.bn2(self.conv2(h)) + self.bn3(self.conv3(h)))
            return self.fc(F.relu(self.bn2(self.conv2(h)) + h))

    def trained(normalization, x, t, average):
        model = L.Classifier(Residual(normalization))
        report = mixprec.convert(model, x[:2], compute="float32")
        expected = {"ReLU": 1, "add + ReLU": 2, "": 1} if normalization is of_ranks else {
            "ReLU + max pooling": 1, "add of two + ReLU": 2, "add + ReLU": 1
        }
        assert {name: count for name, count in report.fused.items() if count} == expected
        why = "it is added to another batch normalization, and statistics are over several processes"
        assert (why in str(report)) == (normalization is of_ranks) and not report.unconverted
        optimizer = chainer.optimizers.MomentumSGD(0.01).setup(model)
        for _ in range(20):
            model.cleargrads()
            model(x, t).backward()
            average(model)
            optimizer.update()
        return {name: p.array for name, p in model.namedparams()} | {
            f"{name} {key}": getattr(link, key) for name, link in model.namedlinks() for key in link._persistent
        }

    everything, targets = (np.concatenate(comm.mpi_comm.allgather(each)) for each in (images, labels))
    one_process = functools.partial(L.BatchNormalization, initial_avg_var=0)  # as ChainerMN's
    of_ranks = functools.partial(MultiNodeBatchNormalization, comm=comm)
    expected = trained(one_process, everything, targets, lambda model: None)
    found = trained(of_ranks, images, labels, comm.multi_node_mean_grad)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        bound = 1e-6 * max(1, np.abs(expected[name]).max())
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=bound, err_msg=name)
"""


@pytest.mark.slow
def test_ranks_are_one_process_with_all_images():
    """In FP32, 20 steps of a network with all fusions: parameters and running statistics, to 1e-6.

    Two batch normalizations in one pass, and one with its max pooling, have the batch of one process.
    """
    mpi.run(2, _MODEL, _ONE_PROCESS)


@pytest.mark.slow
def test_one_process_may_look_at_what_it_likes():
    """Neither the example of one process nor a result that it looks at makes it wait for the others."""
    lines = mpi.run(
        2,
        _MODEL,
        """
        class Printing(Net):
            def forward(self, x):
                h = self.bn(self.conv(x))
                y = F.relu(h + self.conv(x)) if shortcut else F.relu(h)  # the shortcut is gone by the look
                total = F.sum(y)
                if comm.rank == 0 and chainer.config.train and look:
                    print(h.shape, bool(h.array.min() < 0))  # a second computation, as it was fused
                return self.fc(y) + 0 * total

        for layout, shortcut in itertools.product(("nhwc", "nchw"), (False, True)):
            look = False
            model = L.Classifier(Printing())
            mixprec.convert(model, *[images] * (comm.rank == 0), layout=layout)
            look, gradients = True, []
            for _ in range(3):
                model.cleargrads()
                model(images, labels).backward()
                gradients.append(model.predictor.bn.gamma.grad.copy())
            for array in (*gradients, model.predictor.bn.avg_mean, model.predictor.bn.avg_var):
                for other in comm.mpi_comm.allgather(array):
                    np.testing.assert_array_equal(other, array)
            np.testing.assert_allclose(gradients[2], gradients[0], rtol=1e-3)
        """,
    )
    assert lines == 12 * ["(4, 8, 6, 6) True"]


@pytest.mark.slow
def test_processes_that_do_not_fuse_the_same_meet_in_the_order_of_the_model():
    """They would put together statistics of two branches; gradients in two orders are an error."""
    lines = mpi.run(
        2,
        _MODEL,
        """
        square = np.random.RandomState(0).normal(0, 0.1, (8, 8, 3, 3)).astype("f")

        class Branches(Net):
            def __init__(self, join):
                super().__init__()
                self.join = join
                with self.init_scope():
                    self.conv1, self.conv2 = (L.Convolution2D(8, 8, 3, nobias=True, initialW=square) for _ in "12")
                    self.bn1, self.bn2 = (MultiNodeBatchNormalization(8, comm) for _ in "12")

            def forward(self, x):
                h = F.relu(self.bn(self.conv(x)))
                return self.fc(self.join(self.bn1(self.conv1(h)), self.bn2(self.conv2(h * h))))

        class Hook(chainer.FunctionHook):
            name = "Hook"

        def joined(one, two):
            return F.relu(one + two)

        def used_twice(one, two):  # the example shows that this cannot be fused
            return F.relu(one) + F.relu(two) + F.tanh(two)

        def trained(model):
            for _ in range(3):
                model.cleargrads()
                model(images, labels).backward()
            values = {name: param.grad for name, param in model.namedparams()}
            return values | {name: link.avg_mean for name, link in model.namedlinks() if "bn" in name}

        for join in (joined, used_twice):
            expected = trained(L.Classifier(Branches(join)))
            model = L.Classifier(Branches(join))
            mixprec.convert(model, *[images] * (comm.rank == 0), compute="float32")
            for name, value in trained(model).items():
                bound = 1e-4 * max(1e-2, np.abs(expected[name]).max())
                np.testing.assert_allclose(value, expected[name], rtol=0, atol=bound, err_msg=name)

        model = L.Classifier(Branches(joined))
        mixprec.convert(model)
        with Hook() if comm.rank == 0 else chainer.using_config("debug", False):
            loss = model(images, labels)
        for link in (model.predictor.bn1, model.predictor.bn2):
            for other in comm.mpi_comm.allgather(link.avg_mean):
                np.testing.assert_array_equal(other, link.avg_mean)
        try:
            loss.backward()
        except RuntimeError as error:
            print(str(error).split(": ")[1].split(". ")[0])
        """,
    )
    places = (f"process {rank} at the gradient of /predictor/bn{place} (8,)" for rank, place in enumerate((2, 1)))
    assert lines == 2 * [", ".join(places)]


@pytest.mark.slow
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
