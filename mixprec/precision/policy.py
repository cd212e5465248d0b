"""The dtype of each kind of array in a mixed-precision run."""

import dataclasses

COMPUTE_DTYPES = ("float16", "bfloat16", "float32")
# PyTorch's and NVIDIA's names, in configs and in Python.
DTYPE_SYNONYMS = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32"}

LAYOUTS = ("nhwc", "nchw")
LAYOUT_SYNONYMS = {"channels_last": "nhwc", "contiguous": "nchw"}


def meant(value, synonyms):
    """Replaces a synonym, in upper or lower case, by its meaning; returns any other value unchanged."""
    return synonyms.get(value.lower(), value) if isinstance(value, str) else value


@dataclasses.dataclass(frozen=True)
class Policy:
    """The dtypes of one converted model (Micikevicius et al. 2018, "Mixed Precision Training").

    Losses, batch-norm parameters, running statistics and master weights are always float32; only the operands of Tensor
    cores have a configurable dtype.

    Attributes:
        compute: dtype of activations, of convolution and linear weights, and of their gradients: a name, one of
            :data:`DTYPE_SYNONYMS`, or anything that NumPy accepts as a dtype; stored as the name.
        layout: ``"nhwc"`` for mixprec's functions on images in that memory order, ``"nchw"`` for Chainer's own
            functions; or one of :data:`LAYOUT_SYNONYMS`, stored as one of these two.
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
        from mixprec.base import arguments  # configs read the names above, and must not import NumPy

        layout = arguments.choice("layout", self.layout, (*LAYOUTS, *LAYOUT_SYNONYMS))
        object.__setattr__(self, "layout", meant(layout, LAYOUT_SYNONYMS))
        nhwc = self.layout == "nhwc"
        compute = arguments.storage_dtype("compute", meant(self.compute, DTYPE_SYNONYMS))
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
