"""The fused operations of converted models: chains of functions that one node computes, each declared once.

An entry of :data:`FUSIONS` is a pattern. :mod:`mixprec.rewrite.deferred` follows it from a batch normalization on, and
computes the chain with its last function, by one node. That node also computes the gradients. All up to a ReLU is
computed in float32 and rounded once, where its functions alone round one after the other; a second batch normalization
and a pooling give the same bits as they do alone.
"""

from typing import NamedTuple

RELU = "ReLU"
ADD_RELU = "add + ReLU"
DUAL = "add of two + ReLU"
POOLED = "ReLU + max pooling"


class Fusion(NamedTuple):
    """One fused operation.

    Attributes:
        name: of it, in reports.
        chain: the functions that follow a batch normalization, by the names of their classes; the node has the operand
            of each as an argument.
        by_batch: whether only a batch normalization by the statistics of the batch has a kernel for it.
        by_process: whether only one has a kernel whose batch is in this process alone.
        of_two: whether what is added is a batch normalization, too, which is computed in the same pass.
    """

    name: str
    chain: tuple[str, ...]
    by_batch: bool = False
    by_process: bool = False
    of_two: bool = False


FUSIONS = (
    Fusion(RELU, ("ReLU",)),
    Fusion(POOLED, ("ReLU", "MaxPoolingND"), by_batch=True, by_process=True),
    Fusion(ADD_RELU, ("Add", "ReLU")),
    Fusion(DUAL, ("Add", "ReLU"), by_batch=True, by_process=True, of_two=True),
    Fusion(ADD_RELU, ("StochasticDepth", "Add", "ReLU"), by_batch=True),
)
NAMES = tuple(dict.fromkeys(fusion.name for fusion in FUSIONS))
