"""The fused operations of converted models: chains of functions that one node computes, each declared once.

An entry of :data:`FUSIONS` is a pattern. :mod:`mixprec.rewrite.deferred` follows it from a batch normalization on, and
computes the chain with its last function, by the node of the normalization. That node also computes the gradients. All
of a chain is computed in float32 and rounded once, where its functions alone round one after the other.
"""

from typing import NamedTuple

RELU = "ReLU"
ADD_RELU = "add + ReLU"


class Fusion(NamedTuple):
    """One fused operation.

    Attributes:
        name: of it, in reports.
        chain: the functions that follow a batch normalization, by the names of their classes; the node has the operand
            of each as an argument.
        by_batch: whether only a batch normalization by the statistics of the batch has a kernel for it.
    """

    name: str
    chain: tuple[str, ...]
    by_batch: bool = False


FUSIONS = (
    Fusion(RELU, ("ReLU",)),
    Fusion(ADD_RELU, ("Add", "ReLU")),
    Fusion(ADD_RELU, ("StochasticDepth", "Add", "ReLU"), by_batch=True),
)
