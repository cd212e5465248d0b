"""ChainerMN on NumPy 2, and around a loss scale."""

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
