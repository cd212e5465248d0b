"""Config sections about arithmetic: precision, loss scale, optimizer, cuDNN, CUDA graphs."""

from dataclasses import dataclass

from mixprec.base.bounds import DAY, INT32, LARGEST_DECAY, LARGEST_RATE, MIB, SEVERAL
from mixprec.base.declaration import RATE, Pairs, between, key, power_of_two
from mixprec.base.optimizer_names import DECOUPLED, OPTIMIZERS, OWN, WITH_KEY
from mixprec.precision.policy import COMPUTE_DTYPES, DTYPE_SYNONYMS

_OWN, _DECOUPLED = ", ".join(OWN), ", ".join(DECOUPLED)
_WITH = {key: ", ".join(names) for key, names in WITH_KEY.items()}


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The number formats of the network and of what processes exchange."""

    compute: str = key(
        "Activations and weights in the forward and backward pass. Master weights, optimizer state, statistics and "
        "the loss are float32 in any case.",
        "float16",
        choices=COMPUTE_DTYPES,
        synonyms=DTYPE_SYNONYMS,
        aliases=("dtype",),
    )
    allreduce: str | None = key(
        "Gradients in float16 and bfloat16 are added over processes in it; null is their own dtype on GPUs, float32 on "
        "CPUs.",
        None,
        choices=COMPUTE_DTYPES,
        synonyms=DTYPE_SYNONYMS,
        aliases=("allreduce_dtype",),
    )
    keep_float32: tuple[str, ...] = key(
        "Patterns for names of links of the network that stay in float32, with all below them; * stands for slashes, "
        "too.",
        (),
    )


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """The factor that keeps small gradients from vanishing in float16."""

    mode: str = key(
        "dynamic adapts the scale to the overflows; static keeps it at init_scale; none is a scale of 1.",
        "dynamic",
        choices=("dynamic", "static", "none"),
    )
    init_scale: float = key(
        "First scale, or the scale itself in static mode.",
        65536.0,
        limit=power_of_two(),
        aliases=("scale", "value", "init"),
    )
    growth_factor: float = key(
        "The scale is multiplied by it after growth_interval steps in a row without an overflow.",
        2.0,
        limit=power_of_two("from 2 to 2^126", low=2.0),
    )
    backoff_factor: float = key(
        "The scale is multiplied by it on an overflow.",
        0.5,
        limit=power_of_two("from 2^-126 to 0.5", high=0.5),
    )
    growth_interval: int = key(
        "Number of steps without an overflow, in a row, before the scale grows.",
        2000,
        limit=between(1, INT32),
    )
    min_scale: float | None = key(
        "The scale never falls below it; null switches that off.",
        2.0**-14,
        limit=power_of_two(),
        aliases=("min", "min_loss_scale", "floor"),
    )
    max_scale: float | None = key(
        "The scale never rises above it; null switches that off.",
        2.0**24,
        limit=power_of_two(),
        aliases=("max", "max_loss_scale", "cap"),
    )
    hysteresis: int = key(
        "Number of overflows, since the scale last grew, from which on it backs off.", 1, limit=between(1, INT32)
    )
    patience: int = key(
        "Number of overflows in a row, in any mode, after which training stops with an error.",
        50,
        limit=between(1, INT32),
    )
    search: bool = key(
        "In dynamic mode, until gradients are finite for the first time, an overflow runs the backward pass again at a "
        "quarter of the scale, at most 8 times in a step, and the step is not lost.",
        False,
    )


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How the weights are updated."""

    name: str = key(
        f"Optimizer of chainer.optimizers; {_OWN} are of mixprec.",
        "CorrectedMomentumSGD",
        choices=OPTIMIZERS,
        aliases=("type", "kind"),
    )
    lr: float = key(
        "Learning rate at its peak; alpha of Adam and its variants, eta of AdamW.",
        limit=RATE,
        aliases=("learning_rate", "alpha"),
    )
    base_batch_size: int | None = key(
        "Number of images in a step that lr and schedule.end_lr are for; with another number they are scaled in "
        "proportion (Goyal et al. 2017). null takes them as they are.",
        None,
        limit=between(1, INT32),
        aliases=("lr_batch_size", "lr_images"),
    )
    momentum: float | None = key(
        f"Only for {_WITH['momentum']}; null means 0.9 for those.",
        None,
        limit=between(0, LARGEST_DECAY),
    )
    trust_coefficient: float | None = key(
        f"Only for {_WITH['trust_coefficient']}: length of a step in that of the parameter, before lr; null means "
        "0.001.",
        None,
        limit=RATE,
        aliases=("eta",),
    )
    nesterov: bool = key(
        f"Only for {_WITH['nesterov']}: a step looks ahead, as with nesterov of torch.optim.SGD.", False
    )
    weight_decay: float = key(
        "Factor of the L2 penalty; LARS and LAMB have it in their own formula. It is decoupled with "
        f"{_DECOUPLED}: a step takes lr times this share from a parameter (Loshchilov and Hutter 2019).",
        0.0,
        limit=between(0, LARGEST_RATE),
        aliases=("decay", "l2"),
    )
    clip_norm: float | None = key(
        "Gradients are scaled down together so that their L2 norm stays at or below it, before weight decay and the "
        "optimizer; null does not.",
        None,
        limit=RATE,
        aliases=("clip_grad", "max_grad_norm", "gradient_clipping"),
    )
    decay_norm_and_bias: bool = key(
        "Weight decay, and the trust ratio of LARS and LAMB, also on parameters of at most one dimension: biases, "
        "scales and shifts of normalizations.",
        False,
    )
    rates: Pairs = key(  # noqa: RUF009  (Pairs is a tuple)
        "What lr is multiplied by for parts of the network, by patterns for names as in model.npz; * stands for "
        "slashes, too, and of the patterns that fit a name the last one counts. 0 freezes.",
        Pairs(),
        limit=between(0, LARGEST_RATE),
        aliases=("lr_mult", "param_groups"),
    )
    freeze: tuple[str, ...] = key(
        "Patterns likewise of parts that stay as they are, whatever rates says; their gradients are not computed.",
        (),
        aliases=("frozen",),
    )
    preconditioner: str = key(
        "none; or kfac, by which gradients are multiplied before weight decay and the optimizer, see section kfac.",
        "none",
        choices=("none", "kfac"),
    )


@dataclass(frozen=True, kw_only=True)
class Kfac:
    """K-FAC, a preconditioner with curvature, for large batches; see [kfac.md](kfac.md)."""

    damping: float = key(
        "What is added to the diagonal of its matrices; with more a step is nearer to the plain gradient.",
        0.01,
        limit=RATE,
    )
    end_damping: float | None = key(
        "The damping at the end of training, to which it goes by the same factor in each step; null keeps it.",
        None,
        limit=RATE,
    )
    norm_damping: float = key(
        "What damping is multiplied by for batch normalizations.", 64.0, limit=RATE, aliases=("stab_coeff",)
    )
    ema_decay: float = key(
        "What is kept of the moving averages of its matrices when they are refreshed.",
        0.95,
        limit=between(0, LARGEST_DECAY),
        aliases=("factor_decay", "cov_ema_decay"),
    )
    kl_clip: float | None = key(
        "Gradients are scaled down so that lr^2 times their products before and after stay at or below it; null does "
        "not.",
        None,
        limit=RATE,
    )
    factor_every: int = key(
        "The matrices are refreshed in every step of this number.",
        1,
        limit=between(1, INT32),
        aliases=("factor_update_steps", "fac_update_freq"),
    )
    inverse_every: int = key(
        "They are inverted in every step of this number.",
        1,
        limit=between(1, INT32),
        aliases=("inv_update_steps", "kfac_update_freq"),
    )
    largest: int = key(
        "Layers with a larger matrix, of so many rows, go on with their gradients.", 8192, limit=between(1, INT32)
    )


@dataclass(frozen=True, kw_only=True)
class Update:
    """How the optimizer updates many parameters."""

    fused: bool = key(
        "true updates all parameters together, on a GPU by two launches; false is Chainer's own loop over them.",
        True,
        aliases=("batched",),
    )


@dataclass(frozen=True, kw_only=True)
class Cudnn:
    """Convolutions and batch normalizations by cuDNN on a GPU; on a CPU these keys have no effect."""

    autotune: str = key(
        "How the engine for a layer is chosen: off takes the first that cuDNN proposes, heuristic asks it to look more "
        "closely, measure times ten on the first batch and keeps the fastest on disk, in the user's cache folder.",
        "measure",
        choices=("off", "heuristic", "measure"),
    )
    search_seconds: float | None = key(
        "The most that a process may spend on measuring, with autotune measure; when it is used up, engines are chosen "
        "as with heuristic. 0 measures nothing, null has no limit.",
        None,
        limit=between(0, DAY),
        aliases=("autotune_seconds",),
    )
    compile_seconds: float = key(
        "Seconds of compiling that an operation may cost, with autotune measure, where cuDNN compiles engines as they "
        "are built. With more than 0 those of batch normalizations, a second each, are measured beside own kernels.",
        0.0,
        limit=between(0, DAY),
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
    allow_tf32: bool = key(
        "Convolutions with precision.compute float32 may round their inputs to 10 bits, as Tensor cores want.",
        False,
        aliases=("tf32",),
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
    max_graphs: int = key(
        "Largest number of graphs in memory, one for each combination of shapes; the one that was used least recently "
        "goes.",
        4,
        limit=between(1, SEVERAL),
        aliases=("cache_size", "graphs"),
    )
    dynamic_shapes: str = key(
        "Steps of other shapes than the first, such as those of a smaller last batch: capture gives them graphs of "
        "their own; eager runs them without.",
        "capture",
        choices=("capture", "eager"),
        aliases=("dynamic", "other_shapes"),
    )
    evaluation: bool = key("The evaluation is captured, too.", True, aliases=("validation", "evaluate"))
    second_stream: bool = key(
        "Gradients of convolution filters are computed on a second stream, beside the rest of the backward pass.",
        False,
        aliases=("side_stream", "streams"),
    )
