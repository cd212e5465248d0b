"""ChainerMN on NumPy 2, around a loss scale, and with arrays that do not lie in the order of their axes."""

import functools

from mixprec.compat import hooks
from mixprec.compat.rebind import Overlay, rebound


@hooks.after_import("chainermn.communicators._memory_utility")
def unpack_into_another_dtype(module):
    """Without it ``unpack_params`` fails when gradients travel in another dtype: ``np.array(copy=False)`` raises."""
    backend = module.chainer.backend

    def get_array_module(*args):
        xp = backend.get_array_module(*args)
        return Overlay(xp, array=lambda v, copy, dtype: xp.asarray(v, dtype=dtype))

    chainer = Overlay(module.chainer, backend=Overlay(backend, get_array_module=get_array_module))
    module.unpack_params = rebound(module.unpack_params, chainer=chainer)


@hooks.after_import("chainermn.iterators.multi_node_iterator")
def size_of_the_dataset(module):
    """Without it every rank but the master fails in ``int()`` of a 1-element array, and the master waits for it."""
    cls = module._MultiNodeIteratorSlave
    cls.__init__ = rebound(cls.__init__, int=lambda size: int(size.item()))


@hooks.after_import("chainermn.optimizers")
def gradients_of_the_last_step(module):
    """Without it ``double_buffering`` divides the gradients of one step by the dynamic loss scale of the next."""
    original = module.create_multi_node_optimizer

    @functools.wraps(original)
    def create_multi_node_optimizer(actual_optimizer, communicator, double_buffering=False, zero_fill=True):
        if double_buffering and getattr(actual_optimizer, "scales_dynamically", False):
            raise ValueError(
                "double_buffering updates with the gradients of the step before, which a dynamic loss scale does not "
                "fit: use MixedPrecisionOptimizer(optimizer, loss_scale=<a power of two>), or no double_buffering"
            )
        return original(actual_optimizer, communicator, double_buffering, zero_fill)

    module.create_multi_node_optimizer = create_multi_node_optimizer


@hooks.after_import("chainermn.communicators.mpi_communicator_base")
def arrays_in_another_order(module):
    """Without it the mean of a gradient that is not C-contiguous goes into a copy, as does what is broadcast.

    Filters of converted models are not, nor are their gradients: each process would train for itself.
    """
    cls = module.MpiCommunicatorBase
    original = cls._multi_node_mean

    @functools.wraps(original)
    def _multi_node_mean(self, sendbuf, recvbuf):
        dense = module.chainer.backend.get_array_module(recvbuf).ascontiguousarray(recvbuf)
        original(self, sendbuf, dense)
        if dense is not recvbuf:
            recvbuf[...] = dense

    cls._multi_node_mean = _multi_node_mean
    cls.bcast_data = _of_contiguous_arrays(cls.bcast_data)


@hooks.after_import("chainermn.communicators.pure_nccl_communicator")
def memory_that_is_broadcast(module):
    """Without it processes in which a parameter has its axes in different orders in memory get each other's wrongly."""
    cls = module.PureNcclCommunicator
    cls.bcast_data = _of_contiguous_arrays(cls.bcast_data)


def _of_contiguous_arrays(bcast_data):
    @functools.wraps(bcast_data)
    def run(self, model):
        initialized = [param for param in model.params() if param.array is not None]
        strided = [(param, param.array) for param in initialized if not param.array.flags.c_contiguous]
        for param, array in strided:
            param.array = param.xp.ascontiguousarray(array)
        bcast_data(self, model)
        for param, array in strided:
            array[...] = param.array
            param.array = array

    return run
