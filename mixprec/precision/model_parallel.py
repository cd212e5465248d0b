"""Losses whose graph continues in other processes: ChainerMN's ``send`` and ``recv``, and ``MultiNodeChainList``.

Gradients are sent there without a loss scale. So no process of such a chain scales its loss. The processes that have a
loss scale check together, once, whether the chain contains float16, which would need one.
"""

import sys
import time

import chainer
import numpy as np

from mixprec.base.announcements import announce
from mixprec.precision.grad_scales import UnscaledBackward
from mixprec.precision.pass_scales import reached

ENDS = "chainermn.functions.point_to_point_communication"  # the module of the functions that is_part_of_chain looks for
_AGREED = "_mixprec_model_parallel"  # attribute of a communicator whose processes have checked
_LIMIT = 600  # seconds to wait for other processes, which may still be in their forward pass


def is_part_of_chain(loss, has_scale):
    """Returns whether the graph of a loss continues in other processes; never without the module :data:`ENDS`.

    Args:
        loss: variable; one of shape (0,) stands for a loss that other processes compute.
        has_scale: whether this process would scale it.

    Raises:
        UnscaledBackward: the graph of one process contains float16; raised in all processes that have a loss scale.
        RuntimeError: not all processes of the communicator have called this.
    """
    if not isinstance(loss, chainer.Variable):
        return False
    module = sys.modules[ENDS]
    functions, _ = reached([loss.node])
    adapted = [each.function for each in functions if isinstance(each, chainer.function.FunctionAdapter)]
    ends = [each for each in adapted if isinstance(each, (module.Send, module.Recv))]
    communicators = {id(end.comm): end.comm for end in ends}.values()
    if has_scale and communicators:
        for communicator in communicators:
            if not hasattr(communicator, _AGREED):
                _ask(communicator, loss.dtype == np.float16 or any(map(_takes_float16, functions)))
                setattr(communicator, _AGREED, True)
        announce("model parallelism: the loss is not scaled, as chainermn's send and recv carry no loss scale")
    return bool(communicators)


def _takes_float16(function):
    return any(x.dtype == np.float16 and x.requires_grad for x in function.inputs)


def _ask(communicator, in_float16):
    mpi = communicator.mpi_comm
    of_ranks = np.zeros(mpi.size, np.int32)
    request = mpi.Iallgather(np.array([in_float16], np.int32), of_ranks)
    end = time.monotonic() + _LIMIT
    while not request.Test():
        if time.monotonic() > end:
            raise RuntimeError(
                f"model parallelism: not all {mpi.size} processes of the communicator have a loss scale: give each of "
                "them a MixedPrecisionOptimizer, all with loss_scale=None or none with it"
            )
        time.sleep(1e-4)
    if of_ranks.any():
        raise UnscaledBackward(
            f"model parallelism: the graph of rank {np.argmax(of_ranks)} goes through float16, and chainermn's send "
            "and recv carry no loss scale: on all ranks use MixedPrecisionOptimizer(..., loss_scale=None), or "
            'mixprec.convert(model, compute="bfloat16"), which needs none'
        )
