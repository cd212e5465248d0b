"""ChainerMN on NumPy 2, without MPI: its communicator replaced by the message it would deliver."""

import numpy as np

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
