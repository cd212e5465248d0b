"""Config sections about how is computed: precision, loss scale, optimizer, cuDNN, CUDA graphs."""

from dataclasses import dataclass

from mixprec.bounds import INT32, LARGEST_DECAY, LARGEST_RATE, MANY, MIB, SEVERAL
from mixprec.config.declaration import RATE, between, key, power_of_two
from mixprec.policy import COMPUTE_DTYPES

# Not AdaDelta, which has no learning rate, and not AdamW, whose weight decay is none of lr and weight_decay here: no
# schedule moves it.
_OPTIMIZERS = (
    *("SGD", "MomentumSGD", "CorrectedMomentumSGD", "NesterovAG", "Adam", "AMSGrad", "AdaBound", "AMSBound"),
    *("AdaGrad", "RMSprop", "RMSpropGraves", "SMORMS3", "MSVAG", "LARS", "LAMB"),
)
MOMENTUM_OPTIMIZERS = ("MomentumSGD", "CorrectedMomentumSGD", "NesterovAG", "RMSpropGraves", "LARS")


@dataclass(frozen=True, kw_only=True)
class Precision:
    """In which format the network computes."""

    compute: str = key(
        "Activations and weights in the forward and backward pass. Master weights, optimizer state, statistics and "
        "the loss are float32 in any case.",
        "float16",
        choices=COMPUTE_DTYPES,
        aliases=("dtype",),
    )


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """The factor that keeps small gradients from vanishing in float16."""

    mode: str = key(
        "dynamic adapts the scale to the overflows; static keeps it at init; none is a scale of 1.",
        "dynamic",
        choices=("dynamic", "static", "none"),
    )
    init: float = key(
        "First scale, or the scale itself in static mode.",
        65536.0,
        limit=power_of_two(),
        aliases=("scale", "value", "init_scale"),
    )
    growth: float = key(
        "Factor after interval clean steps in a row.",
        2.0,
        limit=power_of_two("from 2 to 2^126", low=2.0),
        aliases=("growth_factor",),
    )
    backoff: float = key(
        "Factor on an overflow.",
        0.5,
        limit=power_of_two("from 2^-126 to 0.5", high=0.5),
        aliases=("backoff_factor",),
    )
    interval: int = key(
        "Number of steps without an overflow, in a row, before the scale grows.",
        2000,
        limit=between(1, INT32),
        aliases=("growth_interval",),
    )
    floor: float | None = key(
        "The scale never falls below it; null switches that off.",
        2.0**-14,
        limit=power_of_two(),
        aliases=("min",),
    )
    cap: float | None = key(
        "The scale never rises above it; null switches that off.", 2.0**24, limit=power_of_two(), aliases=("max",)
    )
    hysteresis: int = key(
        "Number of overflows, since the scale last grew, from which on it backs off.", 1, limit=between(1, INT32)
    )
    patience: int = key(
        "Number of overflows in a row after which training stops with an error.", 50, limit=between(1, INT32)
    )


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How the weights are updated."""

    name: str = key(
        "Optimizer of chainer.optimizers; LARS and LAMB are of mixprec.",
        "CorrectedMomentumSGD",
        choices=_OPTIMIZERS,
        aliases=("type", "kind"),
    )
    lr: float = key(
        "Learning rate at its peak; alpha of Adam and its variants.",
        limit=RATE,
        aliases=("learning_rate", "alpha"),
    )
    lr_images: int | None = key(
        "Number of images in a step that lr and schedule.end_lr are for; with another number they are scaled in "
        "proportion (Goyal et al. 2017). null takes them as they are.",
        None,
        limit=between(1, INT32),
        aliases=("base_batch_size", "lr_batch_size"),
    )
    momentum: float | None = key(
        f"Only for {', '.join(MOMENTUM_OPTIMIZERS)}; null means 0.9 for those.",
        None,
        limit=between(0, LARGEST_DECAY),
    )
    trust_coefficient: float | None = key(
        "Only for LARS: length of a step in that of the parameter, before lr; null means 0.001.",
        None,
        limit=RATE,
        aliases=("eta",),
    )
    weight_decay: float = key(
        "Factor of the L2 penalty; in LARS and LAMB that of their own formula.",
        0.0,
        limit=between(0, LARGEST_RATE),
        aliases=("decay", "l2"),
    )
    decay_norm_and_bias: bool = key(
        "Weight decay, and the trust ratio of LARS and LAMB, also on parameters of at most one dimension: biases, "
        "scales and shifts of normalizations.",
        False,
    )


@dataclass(frozen=True, kw_only=True)
class Update:
    """How the optimizer goes through the parameters."""

    batched: bool = key(
        "All parameters are updated together, on a GPU by two launches; off: Chainer's own loop over them.",
        True,
        aliases=("fused",),
    )


@dataclass(frozen=True, kw_only=True)
class Cudnn:
    """Convolutions and batch normalizations by cuDNN on a GPU; on a CPU these keys have no effect."""

    autotune: str = key(
        "How the engine for a layer is chosen: off takes the first that cuDNN proposes, heuristic asks it to look more "
        "closely, measure times many on the first batch and keeps the fastest on disk, in the user's cache folder.",
        "measure",
        choices=("off", "heuristic", "measure"),
    )
    workspace_mib: int = key(
        "Temporary memory that an engine may need at most, in MiB.",
        512,
        limit=between(0, MIB),
        aliases=("workspace", "max_workspace_size"),
    )
    deterministic: bool = key(
        "Only engines that give the same bits each time.", False, aliases=("cudnn_deterministic",)
    )
    tf32: bool = key(
        "Convolutions with precision.compute float32 may round their inputs to 10 bits, as Tensor cores want.",
        False,
        aliases=("allow_tf32",),
    )


@dataclass(frozen=True, kw_only=True)
class Capture:
    """The whole training step as one CUDA graph; on a CPU steps are eager, and mode required is an error."""

    mode: str = key(
        "off: every step is eager. auto: steps are captured; if that cannot be, a warning says why and the run goes on "
        "eagerly. required: it stops with an error then.",
        "off",
        choices=("off", "auto", "required"),
        switch=("off", "auto"),
    )
    warmup: int = key(
        "Number of steps that run eagerly, and are watched, before a step of their shapes is captured.",
        3,
        limit=between(2, MANY),
        aliases=("warmup_steps", "warmup_iterations"),
    )
    graphs: int = key(
        "Number of graphs that are kept at most, one for each combination of shapes; the one that was used least "
        "recently goes.",
        4,
        limit=between(1, SEVERAL),
        aliases=("max_graphs", "cache_size"),
    )
    other_shapes: str = key(
        "What other shapes than the first get, such as those of a smaller last batch: graphs of their own, or eager "
        "steps.",
        "capture",
        choices=("capture", "eager"),
        aliases=("dynamic", "dynamic_shapes"),
    )
    evaluation: bool = key("Graphs for the evaluation, too.", True, aliases=("validation", "evaluate"))
    second_stream: bool = key(
        "Gradients of convolution filters are computed on a second stream, beside the rest of the backward pass.",
        False,
        aliases=("side_stream", "streams"),
    )
