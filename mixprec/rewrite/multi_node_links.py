"""ChainerMN's batch normalization over several processes: its link, and how its function nodes are recognized.

ChainerMN is not imported here: where an object is of its classes, it has been.
"""

import sys

import chainer
import numpy as np

from mixprec.backends.joint_batch import JointBatch, NcclJointBatch


def ranks_of(node, x, name):
    """Returns the processes whose batches a batch normalization takes as one.

    Args:
        node: its function node.
        x: its input.
        name: its name, for messages.

    Returns:
        :class:`~mixprec.backends.joint_batch.JointBatch`, or ``None`` if it is not one of ChainerMN, or if it sends
        arrays of CuPy by MPI.
    """
    selector = node._impl_selector
    if not _is_of(selector, "chainermn.functions.batch_normalization", "MultiNodeBNImplSelector"):
        return None
    if chainer.backend.get_array_module(x) is np:
        return JointBatch(selector.comm, name)
    return NcclJointBatch(selector.comm, name) if selector.communication_backend_name == "nccl" else None


def is_multi_node(link):
    """Whether a link is ``chainermn.links.MultiNodeBatchNormalization``."""
    return _is_of(link, "chainermn.links.batch_normalization", "MultiNodeBatchNormalization")


def _is_of(value, module, name):
    module = sys.modules.get(module)
    return module is not None and isinstance(value, getattr(module, name))
