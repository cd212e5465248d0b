"""Which dtype each kind of array has in a mixed-precision run."""

import dataclasses

COMPUTE_DTYPES = ("float16", "bfloat16", "float32")


@dataclasses.dataclass(frozen=True)
class Policy:
    """The dtypes of one converted model (Micikevicius et al. 2018, "Mixed Precision Training").

    Losses, batch-norm parameters, running statistics and master weights are always float32; only what a Tensor core
    multiplies has a choice.

    Attributes:
        compute: dtype name of activations, of convolution and linear weights, and of their gradients.
    """

    compute: str = "float16"

    def __post_init__(self):
        if self.compute not in COMPUTE_DTYPES:
            raise ValueError(f"compute must be one of {', '.join(COMPUTE_DTYPES)}; found {self.compute!r}")
