"""ChainerMN on NumPy 2: without MPI, its communicator replaced by the message it would deliver, and with MPI."""

import numpy as np
import pytest

from tests import mpi
from tests.cases import first
from tests.stand_ins import without_mpi


def test_parameters_are_unpacked_into_another_dtype():
    """Gradients of float16 and float32 that travelled as float32: np.array(copy=False) raises in NumPy 2."""
    code = """
        import chainer, numpy
        from chainermn.communicators import _memory_utility

        class Buffer:
            content = numpy.arange(6, dtype="float32")
            def to_device(self, array, size, offset, stream):
                array[...] = self.content[offset // 4 : (offset + size) // 4]

        params = [chainer.Parameter(numpy.zeros(3, dtype)) for dtype in ("float16", "float32")]
        for param in params:
            param.grad = numpy.zeros_like(param.array)
        _memory_utility.unpack_params(params, "grad", Buffer(), numpy.float32, False)
        print([(param.grad.dtype.name, param.grad.tolist()) for param in params])
    """
    expected = [("float16", [0.0, 1.0, 2.0]), ("float32", [3.0, 4.0, 5.0])]
    assert without_mpi.run(code) == [str(expected)]


@pytest.mark.parametrize(("setup_first", "compute"), first(0, [(True, "float16"), (False, "bfloat16")], 1))
def test_processes_that_begin_with_other_weights_have_the_same_masters(setup_first, compute):
    """The first update broadcasts the masters of the first process, of which its weights are rounded copies."""
    code = f"""
        import chainer, chainermn, mixprec, numpy as np
        import chainer.functions as F, chainer.links as L
        chainer.disable_experimental_feature_warning = True
        comm = chainermn.create_communicator("naive")
        np.random.seed(comm.rank)
        model = L.Classifier(chainer.Sequential(L.Linear(20, 30), F.relu, L.Linear(None, 4)))
        x, t = np.random.randn(8, 20).astype("f"), (np.arange(8) % 4).astype("i")
        optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(0.1), 8)
        optimizer = chainermn.create_multi_node_optimizer(optimizer, comm)
        if {setup_first}:
            optimizer.setup(model)
        mixprec.convert(model, compute="{compute}")
        if not {setup_first}:
            optimizer.setup(model)
        params = [param for _, param in sorted(model.namedparams())]
        for _ in range(10):
            optimizer.update(model, x, t)
        own = [np.asarray(array, "f") for p in params for array in (p.array, optimizer.master(p).array)]
        for first, second in zip(*comm.mpi_comm.allgather(own)):
            np.testing.assert_array_equal(first, second)
        if comm.rank == 0:
            print(optimizer.t)
    """
    assert mpi.run(2, code) == ["9"]


def test_slave_iterator_reads_the_size_of_the_dataset():
    """The master sends it as an array of one element, which int() refuses in NumPy 2.5; then the master waits."""
    from chainermn.iterators.multi_node_iterator import _MultiNodeIteratorSlave

    messages = [np.full(1, 7, "float32"), -np.ones(1, "float32")]

    class Communicator:
        def bcast(self, message, root):
            return messages.pop(0)

    iterator = _MultiNodeIteratorSlave(Communicator(), 0)
    assert iterator.dataset_size == 7
    assert type(iterator.dataset_size) is int
    assert iterator._order is None


def test_gradients_and_parameters_in_another_order_of_axes():
    """Filters of a converted model: their mean, and what the first process has, went into copies."""
    code = """
        import chainer, numpy
        from chainermn.communicators.naive_communicator import NaiveCommunicator

        class Peers:
            size = 2
            def Allreduce(self, of, into):
                into += 3 * into
            def Bcast(self, into):
                into += numpy.arange(into.size).reshape(into.shape)

        MPI.IN_PLACE = None
        communicator = NaiveCommunicator.__new__(NaiveCommunicator)
        communicator.mpi_comm = Peers()
        for dtype in ("float32", "float16"):
            strided = numpy.arange(6, dtype=dtype).reshape(3, 2).T
            link = chainer.Link()
            with link.init_scope():
                link.W = chainer.Parameter(strided.copy(order="K"))
            link.W.grad = strided.copy(order="K")
            array, grad = link.W.array, link.W.grad
            communicator.multi_node_mean_grad(link)
            communicator.bcast_data(link)
            assert link.W.array is array and link.W.grad is grad and not array.flags.c_contiguous
            print(grad.tolist(), array.tolist())
    """
    expected = [[0.0, 4.0, 8.0], [2.0, 6.0, 10.0]], [[0.0, 3.0, 6.0], [4.0, 7.0, 10.0]]
    assert without_mpi.run(code) == ["{} {}".format(*expected)] * 2


# In two and three processes


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.long)])
def test_no_mean_of_finite_gradients_overflows(processes):
    """Each is the mean in float64, rounded once: large ones, subnormal ones, and all in between."""
    code = """
        random = np.random.RandomState(0)
        numbers = random.normal(size=(communicator.size, 1000)) * 2.0 ** random.randint(-24, 14, 1000)
        numbers[:, 0], numbers[:, 1], numbers[:, 2] = 60000, 65504, 2.0**-24
        for dtype in (np.float16, ml_dtypes.bfloat16):
            gradients = numbers.astype(dtype)
            expected = gradients.astype(np.float64).mean(0).astype(np.float32).astype(dtype)
            link = chainer.Link()
            with link.init_scope():
                link.W = chainer.Parameter(np.zeros(1000, dtype))
                link.W.grad = gradients[rank].copy()
            communicator.multi_node_mean_grad(link)
            assert (link.W.grad == expected).all(), np.flatnonzero(link.W.grad != expected)

            link.add_persistent("mean", gradients[rank].copy())
            chainermn.extensions.AllreducePersistent(link, communicator)()
            assert (link.mean == expected).all()

            received = np.empty(1000, dtype)
            communicator._multi_node_mean(gradients[rank], received)
            assert (received == expected).all()

            link.W.array[...] = gradients[rank]
            array = link.W.array
            communicator.bcast_data(link)
            assert link.W.array is array
            assert (array == gradients[0]).all()
        say("right")
    """
    assert mpi.run(processes, mpi.COMMUNICATOR, code) == ["right"] * processes


@pytest.mark.slow
def test_what_processes_send_each_other():
    """An inf of one is one of all; arrays of an odd number of float16 are not halves of something larger."""
    code = """
        link = chainer.Link()
        with link.init_scope():
            link.W = chainer.Parameter(np.zeros(3, np.float16))
        link.W.grad = np.array([1, np.inf, np.nan] if rank else [1, 1, 1], np.float16)
        communicator.multi_node_mean_grad(link)
        np.testing.assert_array_equal(link.W.grad, [1, np.inf, np.nan])

        x = np.arange(3).astype("float16") + rank
        both = [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]
        def got(arrays):
            assert all(array.dtype == x.dtype for array in arrays)
            return [array.tolist() for array in arrays]
        assert got(communicator.allgather(x)) == both
        assert got(communicator.alltoall((x, x))) == both
        gathered = communicator.gather(x)
        assert rank or got(gathered) == both
        assert got([communicator.scatter((x, x + 1) if rank == 0 else None)]) == both[rank:][:1]
        assert got([communicator.bcast(x if rank == 0 else None)]) == both[:1]
        assert got([communicator.allreduce(x)]) == [[1.0, 3.0, 5.0]]

        class Model(chainer.Link):
            def forward(self, x):
                chainer.report({"loss": x.astype("float16").sum()}, self)
        data = [np.float32(50000 + 4 * rank)] * 3
        iterator = chainer.iterators.SerialIterator(data, 1, repeat=False, shuffle=False)
        evaluator = chainer.training.extensions.Evaluator(iterator, Model())
        say(float(chainermn.create_multi_node_evaluator(evaluator, communicator)()["main/loss"]))
    """
    mean = np.float32([np.float16(50000), np.float16(50004)]).mean()
    assert mpi.run(2, mpi.COMMUNICATOR, code) == [str(float(mean))] * 2


_TRAINING = """
    import chainer.functions as F
    import chainer.links as L
    from chainermn.links import MultiNodeBatchNormalization
    from mixprec.training.accumulation import Accumulated
    from mixprec.training.updater import TimedUpdater

    random = np.random.RandomState(3)
    images = random.normal(size=(3, 4, 6, 8)).astype("f"), random.randint(0, 5, (3, 4, 6)).astype("i")

    def built(compute, wrap=lambda optimizer: optimizer, norm=False, scale=2.0**10):
        np.random.seed(0)
        middle = (L.BatchNormalization(16), MultiNodeBatchNormalization(16, communicator)) if norm else ()
        model = L.Classifier(chainer.Sequential(L.Linear(8, 16), *middle, F.tanh, L.Linear(16, 5)))
        mixprec.convert(model, compute=compute)
        rule = chainer.optimizers.MomentumSGD(0.5)
        return model, wrap(mixprec.MixedPrecisionOptimizer(rule, scale)).setup(model)

    def several(optimizer):
        return chainermn.create_multi_node_optimizer(optimizer, communicator)

    def masters(optimizer, model):
        return {name: optimizer.master(param).array for name, param in model.namedparams()}
"""


@pytest.mark.slow
def test_accumulated_steps_of_two_processes_are_those_of_one_with_all_images():
    """Four batches of six images: two for each process. There is one message for each parameter and step."""
    code = """
        model, optimizer = built("float32", several)
        messages = []
        mean = communicator.multi_node_mean_grad
        communicator.multi_node_mean_grad = lambda *args: (messages.append(len(calls)), mean(*args))
        calls = []
        def lossfun(x, t):
            calls.append(None)
            return model(x, t)
        optimizer.update(Accumulated(lossfun), [(images[0][0, 0], images[1][0, 0])])  # broadcasts, and no more
        calls.clear()
        for x, t in zip(*images):
            optimizer.update(Accumulated(lossfun), [(x[place], t[place]) for place in (rank, rank + 2)])
        assert messages == [2, 4, 6]
        assert optimizer.t == 3

        alone, other = built("float32")
        for x, t in zip(*images):
            other.update(alone, x.reshape(24, 8), t.reshape(24))
        found, expected = masters(optimizer, model), masters(other, alone)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-6)
            assert not np.array_equal(array, np.float32(0))
        say("right")
    """
    assert mpi.run(2, mpi.COMMUNICATOR, _TRAINING, code) == ["right"] * 2


@pytest.mark.slow
def test_an_overflow_in_a_batch_of_one_process_skips_the_step_on_all():
    """Masters and running statistics are then what they were before; the scale backs off everywhere."""
    code = """
        model, optimizer = built("float16", several, norm=True, scale=mixprec.DynamicLossScale(init=2.0**8))
        x, t = images[0][0], images[1][0]
        for _ in range(3):
            optimizer.update(Accumulated(model), [(x[0], t[0]), (x[1], t[1])])
        keys = "avg_mean", "avg_var"
        def state():
            norms = {f"{each} {key}": getattr(model.predictor[each], key) for each in (1, 2) for key in keys}
            arrays = {**masters(optimizer, model), **norms}
            return {name: array.tobytes() for name, array in arrays.items()}
        before = state()
        poisoned = x[1].copy()
        poisoned[0, 0] = np.inf if rank == 1 else 0
        optimizer.update(Accumulated(model), [(x[0], t[0]), (poisoned, t[1])])
        assert optimizer.last_step_skipped
        assert [name for name, value in state().items() if value != before[name]] == []
        say(optimizer.loss_scale)
    """
    assert mpi.run(2, mpi.COMMUNICATOR, _TRAINING, code) == ["128.0"] * 2


@pytest.mark.slow
def test_a_plain_optimizer_takes_several_losses_under_chainermn():
    code = """
        model = L.Linear(8, 5)
        optimizer = several(chainer.optimizers.SGD()).setup(model)
        x = images[0][0, 0]
        for _ in range(2):
            optimizer.update(lambda: (F.sum(model(x)) for _ in range(3)))
        expected = np.broadcast_to(3 * x.sum(0), (5, 8))
        np.testing.assert_allclose(model.W.grad, expected, rtol=1e-5)
        say("right")
    """
    assert mpi.run(2, mpi.COMMUNICATOR, _TRAINING, code) == ["right"] * 2
