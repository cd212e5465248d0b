"""The dtype of each kind of array in a mixed-precision run."""

import dataclasses

from mixprec.base import arguments
from mixprec.base.vocabulary import LAYOUT_SYNONYMS, LAYOUTS


@dataclasses.dataclass(frozen=True)
class Policy:
    """The dtypes of one converted model (Micikevicius et al. 2018, "Mixed Precision Training").

    Losses, batch-norm parameters, running statistics and master weights are always float32; only the operands of Tensor
    cores have a configurable dtype.

    Attributes:
        compute: dtype of activations, of convolution and linear weights, and of their gradients: a name, a synonym in
            :mod:`mixprec.base.vocabulary`, or anything that NumPy accepts as a dtype; stored as the name.
        layout: ``"nhwc"`` for mixprec's functions on images in that memory order, ``"nchw"`` for Chainer's own
            functions; or a synonym in :mod:`mixprec.base.vocabulary`, stored as one of these two.
        fuse: whether to fuse batch normalizations with the addition and the ReLU after them; requires the layout
            ``"nhwc"``. ``None`` fuses exactly if the layout is ``"nhwc"``.
        conv_statistics: whether a device may compute the sums of a batch normalization inside the preceding
            convolution, where that is faster by rule or by measurement; requires ``"nhwc"``. ``None`` takes the value
            of ``fuse``.

    Raises:
        TypeError: ``fuse`` or ``conv_statistics`` is not a bool.
        ValueError: an attribute has an invalid value, or they contradict each other.
    """

    compute: str = "float16"
    layout: str = "nhwc"
    fuse: bool | None = None
    conv_statistics: bool | None = None

    def __post_init__(self):
        layout = arguments.choice("layout", self.layout, LAYOUTS, LAYOUT_SYNONYMS)
        object.__setattr__(self, "layout", layout)
        nhwc = self.layout == "nhwc"
        compute = arguments.storage_dtype("compute", self.compute)
        object.__setattr__(self, "compute", compute.name)
        for name in ("fuse", "conv_statistics"):
            value, default = getattr(self, name), nhwc if name == "fuse" else self.fuse
            object.__setattr__(self, name, default if value is None else arguments.flag(name, value))
            if getattr(self, name) and not nhwc:
                raise ValueError(
                    f"{name}=True needs layout='nhwc', as Chainer's own functions cannot be fused; found 'nchw'"
                )
        if self.compute == "bfloat16" and not nhwc:
            raise ValueError(
                "compute='bfloat16' needs layout='nhwc', as Chainer's own functions refuse it; found 'nchw'"
            )
