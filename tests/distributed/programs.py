"""What processes under mpiexec run: parts of programs, for ``tests/mpi.py``."""

SETTING = """
    import sys
    import warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import chainermn
    warnings.filterwarnings("ignore", category=FutureWarning)  # chainermn is experimental, says Chainer
    import time
    import chainer
    import chainer.functions as F
    import chainer.links as L
    import numpy as np
    import mixprec
    from chainer import optimizer_hooks, optimizers
    from mixprec.optimizer.counted_losses import CountedLosses
    from tests.stand_ins.update_pair import RULES, new_optimizer
    from mixprec.distributed import buckets
    buckets.MOST = 256  # bytes, so that there are many
    communicator = chainermn.create_communicator("naive")
    rank, size = communicator.rank, communicator.size
    random = np.random.RandomState(0)
    B = 4  # images of a rank
    images = random.normal(size=(20, B * size, 2, 6, 6)).astype("f"), random.randint(0, 5, (20, B * size)).astype("i")
    own = slice(rank * B, rank * B + B)

    def say(*what):
        sys.stdout.write(" ".join(map(str, what)) + chr(10))  # at once: all processes write to the same pipe

    class Network(chainer.Chain):
        def __init__(self, seed, norm=False):
            super().__init__()
            np.random.seed(seed)
            with self.init_scope():
                self.first, self.second = L.Convolution2D(2, 8, 3, pad=1), L.Convolution2D(8, 8, 3, pad=1)
                self.norm = L.BatchNormalization(8) if norm else F.identity
                self.out, self.extra = L.Linear(8, 5), L.Linear(8, 8)
            self.uses_extra = False

        def forward(self, x):
            h = F.relu(self.norm(self.first(x)))
            h = F.mean(F.relu(self.second(self.second(h))), axis=(2, 3))
            return self.out(self.extra(h) if self.uses_extra else h)

    def built(make, rule, compute=None, seed=0, **settings):
        model = L.Classifier(Network(seed, settings.pop("norm", False)))
        optimizer = make(rule, **settings).setup(model)
        if compute is not None:
            mixprec.convert(model, images[0][0, :B], compute=compute)
        return model, optimizer

    def averaged(rule, loss_scale=64.0, **settings):
        return mixprec.MixedPrecisionOptimizer(rule, loss_scale, communicator=communicator, **settings)

    def alone(rule, loss_scale=64.0, **settings):
        return mixprec.MixedPrecisionOptimizer(rule, loss_scale, **settings)

    def masters(model, optimizer):
        return {name: optimizer.master(param).array for name, param in sorted(model.namedparams())}

    def assert_same_everywhere(model, optimizer):
        mine = [array.tobytes() for array in masters(model, optimizer).values()]
        mine += [param.array.tobytes() for _, param in sorted(model.namedparams())]
        mine += [optimizer.loss_scale, optimizer.skipped, optimizer.t]
        for other in communicator.mpi_comm.allgather(mine):
            assert other == mine
"""

CORE = """
    def one_process_with_all_images():
        model, optimizer = built(averaged, optimizers.MomentumSGD(0.1), seed=rank)
        whole, other = built(alone, optimizers.MomentumSGD(0.1))
        for x, t in zip(*images):
            optimizer.update(model, x[own], t[own])
            other.update(whole, x, t)
        expected = masters(whole, other)
        for name, array in masters(model, optimizer).items():
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6, err_msg=name)
        assert_same_everywhere(model, optimizer)
        assert optimizer.t == 20

    def bit_for_bit_the_naive_communicator():
        make = lambda rule, **settings: chainermn.create_multi_node_optimizer(alone(rule, **settings), communicator)
        model, optimizer = built(averaged, optimizers.Adam(0.01), loss_scale=1.0)
        naive, other = built(make, optimizers.Adam(0.01), loss_scale=1.0)
        other.update(naive, images[0][0][own], images[1][0][own])  # broadcasts, and no more
        for x, t in zip(*images):
            optimizer.update(model, x[own], t[own])
            other.update(naive, x[own], t[own])
        expected = masters(naive, other)
        for name, array in masters(model, optimizer).items():
            np.testing.assert_array_equal(array, expected[name], err_msg=name)

    def overflows_on_single_ranks(compute, steps, **settings):
        scale = mixprec.DynamicLossScale(init=2.0**10, interval=7)
        rule = optimizers.MomentumSGD(0.05)
        model, optimizer = built(averaged, rule, compute, seed=rank, loss_scale=scale, norm=True, **settings)
        planted = np.random.RandomState(1).randint(0, 9 * size, steps)  # by whom
        for step in range(steps):
            x, t = images[0][step % 20][own].copy(), images[1][step % 20][own]
            if planted[step] == rank:
                x[0, 0, 0, 0] = np.inf if step % 2 else np.nan
            optimizer.update(model, x, t)
            if step % 50 == 0:
                assert_same_everywhere(model, optimizer)
        assert_same_everywhere(model, optimizer)
        assert optimizer.skipped >= (planted < size).sum() > 0
        assert optimizer.t > steps // 2

    def a_search_for_the_first_scale():  # because of one rank, in the second step: the loss of the first is infinite
        model, optimizer = built(
            averaged, optimizers.SGD(1e-6), "float16", loss_scale=mixprec.DynamicLossScale(search=True), norm=True
        )
        for step in range(4):
            gain = np.float32([np.inf, 2e3, 1, 1][step] if rank == size - 1 else 1)
            optimizer.update(lambda x, t: model(x, t) * gain, images[0][step][own], images[1][step][own])
            assert (optimizer.skipped, optimizer.t) == (1, step)
            assert_same_everywhere(model, optimizer)
        assert np.log2(optimizer.loss_scale) in (5, 7, 9, 11, 13)

    def parameters_that_some_ranks_do_not_use():
        model, optimizer = built(averaged, optimizers.Adam(0.01), "float16")
        for step, (x, t) in enumerate(zip(*images)):
            model.predictor.uses_extra = rank == step // 5 if step < 10 else step < 15
            gradient = model.predictor.extra.W.grad
            optimizer.update(model, x[own], t[own])
            used = step < 5 * min(size, 2) or 10 <= step < 15
            assert (model.predictor.extra.W.grad is not None) == used, step
        assert_same_everywhere(model, optimizer)

    def sent_during_the_pass():  # which waits, in its middle, for the sum of the gradients of the last layer
        model, optimizer = built(averaged, optimizers.SGD(0.1))
        traffic, arrived = optimizer._ranks._exchange, []

        class Waits(chainer.FunctionNode):
            def forward(self, inputs):
                return inputs

            def backward(self, indexes, gradients):
                while arrived and not (traffic.started and traffic._sums[0].done):
                    time.sleep(1e-3)
                    traffic._start_packed()
                arrived.append(traffic.started)
                return gradients

        model.predictor.norm = lambda x: Waits().apply((x,))[0]
        for step in range(3):
            optimizer.update(model, images[0][step][own], images[1][step][own])
        assert arrived[0] == 0 and arrived[1] > 1 and arrived[2] > 1, arrived
"""
