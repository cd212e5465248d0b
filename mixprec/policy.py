"""Which dtype each kind of array has in a mixed-precision run."""

import dataclasses

COMPUTE_DTYPES = ("float16", "bfloat16", "float32")


LAYOUTS = ("nhwc", "nchw")


@dataclasses.dataclass(frozen=True)
class Policy:
    """The dtypes of one converted model (Micikevicius et al. 2018, "Mixed Precision Training").

    Losses, batch-norm parameters, running statistics and master weights are always float32; only what a Tensor core
    multiplies has a choice.

    Attributes:
        compute: dtype name of activations, of convolution and linear weights, and of their gradients.
        layout: ``"nhwc"`` for functions of mixprec on images in that memory order, ``"nchw"`` for Chainer's own.
        fuse: whether batch normalizations are computed together with the addition and the ReLU after them.
    """

    compute: str = "float16"
    layout: str = "nhwc"
    fuse: bool = True

    def __post_init__(self):
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}; found {self.layout!r}")
        if self.layout == "nchw" and self.fuse:
            raise ValueError("fuse=True needs layout='nhwc', as Chainer's own functions cannot be fused; found 'nchw'")
        if self.layout == "nchw" and self.compute == "bfloat16":
            raise ValueError(
                "compute='bfloat16' needs layout='nhwc', as Chainer's own functions refuse it; found 'nchw'"
            )
        if self.compute not in COMPUTE_DTYPES:
            raise ValueError(f"compute must be one of {', '.join(COMPUTE_DTYPES)}; found {self.compute!r}")
