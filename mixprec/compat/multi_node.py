"""ChainerMN on NumPy 2, with a loss scale, and with arrays in 16 bits or not in the order of their axes."""

from collections.abc import Iterator

import numpy as np

from mixprec.compat.hooks import after_import, around
from mixprec.compat.rebind import Overlay, overlaid, rebound


@after_import("chainermn.communicators._memory_utility:unpack_params")
def unpack_into_another_dtype(unpack_params):
    """Without it ``unpack_params`` fails when gradients travel in another dtype: ``np.array(copy=False)`` raises."""
    backend = unpack_params.__globals__["chainer"].backend

    def get_array_module(*args):
        xp = backend.get_array_module(*args)
        return Overlay(xp, array=lambda v, copy, dtype: xp.asarray(v, dtype=dtype))

    return overlaid(unpack_params, "chainer", backend=Overlay(backend, get_array_module=get_array_module))


@after_import("chainermn.iterators.multi_node_iterator:_MultiNodeIteratorSlave.__init__")
def size_of_the_dataset(init):
    """Without it every rank but the master fails in ``int()`` of a 1-element array, and the master waits for it."""
    return rebound(init, int=lambda size: int(size.item()))


@around("chainermn.optimizers:create_multi_node_optimizer")
def one_mean_of_this_step(original, actual_optimizer, communicator, double_buffering=False, zero_fill=True):
    """Without it ``double_buffering`` and a second communicator around MixedPrecisionOptimizer go wrong in silence.

    A step of double buffering uses the gradients of the previous step, but not its loss scale and running statistics.
    """
    if getattr(actual_optimizer, "communicator", None) is not None:
        kind = type(actual_optimizer).__name__
        raise ValueError(f"{kind} has a communicator and averages gradients: leave out create_multi_node_optimizer")
    if double_buffering and hasattr(actual_optimizer, "_multi_node_step"):
        raise ValueError(
            "double_buffering updates with the gradients of the previous step, which a loss scale and skipped steps "
            "do not fit: use MixedPrecisionOptimizer(optimizer, communicator=communicator), which sums gradients "
            "during the backward pass"
        )
    return original(actual_optimizer, communicator, double_buffering, zero_fill)


@around("chainermn.optimizers:{_MultiNodeOptimizer,_DoubleBufferingOptimizer}.update")
def passes_of_a_step(update, self, lossfun=None, *args, **kwds):
    """Without it a loss function that is a generator fails, and gradients filled with zeros have no loss scale.

    A parameter that only another process has a gradient for would be updated by 65,536 times its mean.
    """
    step = getattr(self.actual_optimizer, "_multi_node_step", None)
    if step is None:
        update(self, None if lossfun is None else _one_loss_of(lossfun), *args, **kwds)
    else:
        with step(lossfun, args, kwds, zero_fill=self.zero_fill):
            update(self, None, *args, **kwds)


@around("chainermn.links.batch_normalization:MultiNodeBatchNormalization.__call__")
def hooks_of_links(original, self, *args, **kwargs):
    """Without it link hooks never run: a step that ``MixedPrecisionOptimizer`` skips moves statistics, to NaN perhaps.

    The link has a ``__call__`` of its own in place of :class:`chainer.Link`'s, which calls the hooks.
    """
    import chainer  # is complete by now

    hooks = {**chainer._get_link_hooks(), **self.local_link_hooks}.values()
    before = chainer.link_hook._ForwardPreprocessCallbackArgs(self, "forward", args, kwargs)
    for hook in hooks:
        hook.forward_preprocess(before)
    result = original(self, *args, **kwargs)
    after = chainer.link_hook._ForwardPostprocessCallbackArgs(self, "forward", args, kwargs, result)
    for hook in hooks:
        hook.forward_postprocess(after)
    return result


@around("chainermn.communicators.mpi_communicator_base:MpiCommunicatorBase._multi_node_mean")
def means_of_gradients(original, self, sendbuf, recvbuf):
    """Without it the mean of 60000 and 60000 in float16 is inf, and means of non-contiguous arrays go into a copy.

    ChainerMN sums in float32, but rounds the sum to float16 before it divides; a dynamic loss scale settles log2(N)
    steps lower then. Here the sum is divided in float32, and rounded once: no mean is inf unless a gradient is, and no
    bit of small gradients is lost, as it would be if float16 were divided before the sum. The messages are the same.
    MPI does not know bfloat16 either. Filters of converted models are not C-contiguous: each process would train
    separately.
    """
    mean = _sendable(recvbuf)
    original(self, None if sendbuf is None else _sendable(sendbuf), mean)
    if mean is not recvbuf:
        recvbuf[...] = mean.reshape(recvbuf.shape)


@after_import("chainermn.communicators.mpi_communicator_base:_dtype_mpi_type")
def size_of_float16(types):
    """Without it ``allgather``, ``gather`` and similar functions send float16 arrays as if elements had 4 bytes.

    The arrays of other processes are then zeros, or the process ends.
    """
    from mpi4py import MPI

    return {**types, np.dtype(np.float16): MPI._typedict["h"]}


@around("chainermn.communicators.mpi_communicator_base:MpiCommunicatorBase.allreduce")
def sums_of_float16(allreduce, self, x):
    """Without it ``allreduce`` of float16 arrays on a GPU adds pairs of numbers."""
    if getattr(x, "dtype", None) != np.float16:
        return allreduce(self, x)
    with np.errstate(over="ignore"):  # a sum beyond 65,504 is inf
        return allreduce(self, x.astype(np.float32)).astype(np.float16)


@around("chainermn.extensions.observation_aggregator:ObservationAggregator.compute_summary")
def variables_that_are_observed(compute_summary, self, trainer):
    """Without it ObservationAggregator and MultiNodeEarlyStoppingTrigger fail: a loss goes to a device of ChainerX.

    Means of 16-bit values are computed in float32.
    """
    import chainer  # is complete by now

    value = trainer.observation.get(self.original_key)
    if isinstance(value, chainer.Variable):
        array = chainer.get_device("@numpy").send(value.array)
        trainer.observation[self.original_key] = array.astype(np.float32) if _has_16_bits(array) else array
    return compute_summary(self, trainer)


def _sendable(array):
    """Returns an array that is C-contiguous, and float32 instead of 16 bits; the same array if it is so already."""
    if _has_16_bits(array):
        array = array.astype(np.float32)
    return array if array.flags.c_contiguous else array.copy(order="C")


def _has_16_bits(array):
    return array.dtype.name in ("float16", "bfloat16")


def send_in_place_of_parameters(exact):
    """Makes broadcasts of a model send the exact values of its parameters.

    Args:
        exact: function from a parameter to its exact value, a float32 array, or ``None`` if it has no other value.
    """
    global _exact
    _exact = exact


def _exact(param):
    return None


@around(
    "chainermn.communicators.mpi_communicator_base:MpiCommunicatorBase.bcast_data",
    "chainermn.communicators.pure_nccl_communicator:PureNcclCommunicator.bcast_data",
)
def memory_that_is_broadcast(bcast_data, self, model):
    """Without it processes whose parameters differ in their memory order receive wrong values.

    16-bit parameters are sent in float32.
    """
    others = []  # parameters, their arrays, and the originals of these arrays
    for param in model.params():
        if param.array is not None:
            exact = _exact(param) if _has_16_bits(param.array) else None
            sent = _sendable(param.array if exact is None else exact)
            if sent is not param.array:
                others.append((param, param.array, exact))
                param.array = sent
    bcast_data(self, model)
    for param, array, exact in others:
        if exact is not None and exact is not param.array:
            exact[...] = param.array
        with np.errstate(over="ignore"):
            array[...] = param.array
        param.array = array


def _one_loss_of(lossfun):
    def run(*args, **kwds):
        losses = lossfun(*args, **kwds)
        return _Losses(losses) if isinstance(losses, Iterator) else losses

    return run


class _Losses:
    """An iterator of losses as a single loss: ``backward`` of each runs before the next one is requested."""

    def __init__(self, losses):
        self._losses = losses

    def backward(self, loss_scale=None):
        for loss in self._losses:
            loss.backward(loss_scale=loss_scale)
            del loss  # to free memory for the next one
