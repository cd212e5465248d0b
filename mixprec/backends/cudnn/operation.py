"""Operations of cuDNN as plain values: the keys of the plan cache."""

from dataclasses import dataclass, field
from typing import NamedTuple


class Tensor(NamedTuple):
    """An input or output of an operation.

    Attributes:
        name: name in the graph and for callers.
        shape: in the order of memory, which is dense: (N, H, W, C), (K, R, S, C) or (C,); or (N, C, ...), (K, C, ...)
            with any number of spatial axes.
        dtype: ``"float16"``, ``"bfloat16"``, ``"float32"`` or ``"boolean"``.
        layout: ``"NHWC"`` or ``"NCHW"``, also of filters: whether channels are the last axis or the second.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str = "NHWC"

    def __str__(self):
        layout = "" if self.layout == "NHWC" else f"{self.layout} "
        return f"{self.name} {self.dtype} {layout}{'x'.join(map(str, self.shape))}"


@dataclass(frozen=True)
class Operation:
    """One graph of cuDNN.

    ======================  =============================================  =========================================
    kind                    inputs                                         outputs
    ======================  =============================================  =========================================
    ``conv_fprop``          x, w [, b]                                     y [, sum, square_sum]
    ``conv_dgrad``          dy, w                                          dx
    ``conv_wgrad``          x, dy                                          dw
    ``batch_norm``          x, gamma, beta, running_mean, running_var      y, mean, invstd, next_mean, next_var
                            [, add]                                        [, mask]
    ``batch_norm_backward`` dy, x, gamma, mean, invstd [, beta | mask]     dx, dgamma, dbeta [, dadd]
    ======================  =============================================  =========================================

    Tensors in brackets are optional, and determine the graph: ``sum`` and ``square_sum`` are the sums of each
    channel of y, ``add`` an addition before the ReLU, ``beta`` the recomputation of a ReLU without an addition,
    ``mask`` (boolean, shape of x) where the ReLU after an addition was open, ``dadd`` the gradient after that mask.

    A boolean takes a bit, the lowest one of a byte first: seen with 9.19 on an H100. Since 9.25 cuDNN has another type
    for booleans that take a byte, ``CUDNN_DATA_BYTE_BOOLEAN``.
    Some have no engine: ``tests/stand_ins/fake_cudnn_limits.py`` lists what cuDNN 9.19 and 9.28 refuse.

    Attributes:
        kind: one of the table.
        inputs: :class:`Tensor` of each.
        outputs: :class:`Tensor` of each.
        attributes: ``stride``, ``pad``, ``dilation``, ``groups`` of convolutions; ``relu`` of ``conv_fprop`` and
            ``batch_norm``; ``eps`` and ``momentum`` (1 - decay) of ``batch_norm``. Sorted pairs of name and value.
    """

    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attributes: tuple[tuple[str, object], ...] = field(default=())

    @property
    def tensors(self):
        """Inputs, then outputs; their positions are their numbers in the graph."""
        return self.inputs + self.outputs

    @property
    def has(self):
        """The names of inputs and outputs, as a set."""
        return frozenset(tensor.name for tensor in self.tensors)

    def attribute(self, name):
        """Returns the value of an attribute."""
        return dict(self.attributes)[name]

    def __str__(self):
        tensors = ", ".join(map(str, self.tensors))
        attributes = ", ".join(f"{name}={value}" for name, value in self.attributes)
        return f"{self.kind}({tensors}; {attributes})"
