"""Config sections about arithmetic: precision, loss scale, optimizer, cuDNN, CUDA graphs."""

from dataclasses import dataclass

from mixprec.base.bounds import DAY, INT32, LARGEST_DECAY, LARGEST_RATE, MIB, SEVERAL
from mixprec.base.declaration import RATE, Pairs, between, key, power_of_two
from mixprec.base.optimizer_names import DECOUPLED, OPTIMIZERS, OWN, WITH_KEY
from mixprec.base.vocabulary import DTYPE_SYNONYMS, DTYPES

_OWN, _DECOUPLED = ", ".join(OWN), ", ".join(DECOUPLED)
_WITH = {key: ", ".join(names) for key, names in WITH_KEY.items()}


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The number formats of the network and of the exchange between processes."""

    compute: str = key(
        "Dtype of activations and weights in the forward and backward pass. Master weights, optimizer state, "
        "statistics and the loss are always float32.",
        "float16",
        choices=DTYPES,
        synonyms=DTYPE_SYNONYMS,
        aliases=("dtype",),
    )
    allreduce: str | None = key(
        "Dtype in which gradients in 16 bits are summed over processes; null: their own on GPUs, float32 on CPUs.",
        None,
        choices=DTYPES,
        synonyms=DTYPE_SYNONYMS,
        aliases=("allreduce_dtype",),
    )
    keep_float32: tuple[str, ...] = key(
        "Patterns for names of links that stay in float32, with all links below them; * matches slashes, too.", ()
    )


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """The factor that keeps small gradients from vanishing in float16."""

    mode: str = key(
        "dynamic adapts the scale to overflows; static keeps it at init_scale; none means a scale of 1.",
        "dynamic",
        choices=("dynamic", "static", "none"),
    )
    init_scale: float = key(
        "Initial scale; in static mode the scale itself.",
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
        "The scale is multiplied by it on an overflow.", 0.5, limit=power_of_two("from 2^-126 to 0.5", high=0.5)
    )
    growth_interval: int = key(
        "Number of steps without an overflow, in a row, before the scale grows.", 2000, limit=between(1, INT32)
    )
    min_scale: float | None = key(
        "Lower limit of the scale; null for none.",
        2.0**-14,
        limit=power_of_two(),
        aliases=("min", "min_loss_scale", "floor"),
    )
    max_scale: float | None = key(
        "Upper limit of the scale; null for none.",
        2.0**24,
        limit=power_of_two(),
        aliases=("max", "max_loss_scale", "cap"),
    )
    hysteresis: int = key("The scale backs off from this overflow on since it last grew.", 1, limit=between(1, INT32))
    patience: int = key(
        "Number of overflows in a row, in any mode, after which training stops with an error.",
        50,
        limit=between(1, INT32),
    )
    search: bool = key(
        "In dynamic mode, until gradients are finite for the first time, an overflow repeats the backward pass at a "
        "quarter of the scale, at most 8 times a step: no step is lost.",
        False,
    )


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How the weights are updated."""

    name: str = key(
        f"Name of an optimizer of chainer.optimizers; {_OWN} belong to mixprec.",
        "CorrectedMomentumSGD",
        choices=OPTIMIZERS,
        aliases=("type", "kind"),
    )
    lr: float = key(
        "Peak learning rate; alpha of Adam and its variants, eta of AdamW.",
        limit=RATE,
        aliases=("learning_rate", "alpha"),
    )
    base_batch_size: int | None = key(
        "Number of images in a step for which lr and schedule.end_lr are given; for others they are scaled in "
        "proportion (Goyal et al. 2017). null: unscaled.",
        None,
        limit=between(1, INT32),
        aliases=("lr_batch_size", "lr_images"),
    )
    momentum: float | None = key(
        f"Only for {_WITH['momentum']}; null means 0.9 for these.", None, limit=between(0, LARGEST_DECAY)
    )
    trust_coefficient: float | None = key(
        f"Only for {_WITH['trust_coefficient']}: norm of a step relative to the norm of the parameter, before lr; null "
        "means 0.001.",
        None,
        limit=RATE,
        aliases=("eta",),
    )
    nesterov: bool = key(f"Only for {_WITH['nesterov']}: Nesterov momentum, as nesterov of torch.optim.SGD.", False)
    weight_decay: float = key(
        "Factor of the L2 penalty. LARS and LAMB have it in their own formula; with "
        f"{_DECOUPLED} a step subtracts lr times this share from a parameter (Loshchilov and Hutter 2019).",
        0.0,
        limit=between(0, LARGEST_RATE),
        aliases=("decay", "l2"),
    )
    clip_norm: float | None = key(
        "Limit of the L2 norm of all gradients together: they are scaled down to it, before weight decay; null: none.",
        None,
        limit=RATE,
        aliases=("clip_grad", "max_grad_norm", "gradient_clipping"),
    )
    decay_norm_and_bias: bool = key(
        "Whether weight decay, and the trust ratio of LARS and LAMB, also apply to biases, and to scales and shifts of "
        "normalizations.",
        False,
    )
    rates: Pairs = key(  # noqa: RUF009  (Pairs is a tuple)
        "Factors on lr for [parts of the network](recipes.md#fine-tuning-parts-of-a-network), by patterns for names; 0 "
        "freezes.",
        Pairs(),
        limit=between(0, LARGEST_RATE),
        aliases=("lr_mult", "param_groups"),
    )
    freeze: tuple[str, ...] = key(
        "Patterns for frozen parts, which take precedence over rates.", (), aliases=("frozen",)
    )
    preconditioner: str = key(
        "[kfac](config-tuning.md#kfac) is applied to gradients before weight decay and the optimizer.",
        "none",
        choices=("none", "kfac"),
    )


@dataclass(frozen=True, kw_only=True)
class Kfac:
    """K-FAC, a preconditioner with curvature, for large batches; see [kfac.md](kfac.md)."""

    damping: float = key(
        "Number added to the diagonal of its matrices; larger values bring a step nearer to the plain gradient.",
        0.01,
        limit=RATE,
    )
    end_damping: float | None = key(
        "Damping at the end of training, reached by the same factor in each step; null keeps it constant.",
        None,
        limit=RATE,
    )
    norm_damping: float = key("Factor on damping for batch normalizations.", 64.0, limit=RATE, aliases=("stab_coeff",))
    ema_decay: float = key(
        "Share of the averages of its matrices that is kept when they are refreshed.",
        0.95,
        limit=between(0, LARGEST_DECAY),
        aliases=("factor_decay", "cov_ema_decay"),
    )
    kl_clip: float | None = key(
        "Limit of lr^2 times the inner product of the gradients before and after: they are scaled down to it; null: "
        "none.",
        None,
        limit=RATE,
    )
    factor_every: int = key(
        "Number of steps from one refresh of the matrices to the next.",
        1,
        limit=between(1, INT32),
        aliases=("factor_update_steps", "fac_update_freq"),
    )
    inverse_every: int = key(
        "Number of steps from one inversion of the matrices to the next.",
        1,
        limit=between(1, INT32),
        aliases=("inv_update_steps", "kfac_update_freq"),
    )
    largest: int = key(
        "Largest number of rows of a matrix; layers with a larger one use plain gradients.",
        8192,
        limit=between(1, INT32),
    )


@dataclass(frozen=True, kw_only=True)
class Update:
    """How the optimizer updates many parameters."""

    fused: bool = key(
        "true updates all parameters together, on a GPU by two launches; false uses Chainer's own loop over them.",
        True,
        aliases=("batched",),
    )


@dataclass(frozen=True, kw_only=True)
class Cudnn:
    """Convolutions and batch normalizations by cuDNN on a GPU; on a CPU these keys have no effect."""

    autotune: str = key(
        "The engine for a layer: off takes the first that cuDNN proposes, heuristic uses its slower heuristic, measure "
        "times ten and stores the fastest in the user's cache folder.",
        "measure",
        choices=("off", "heuristic", "measure"),
    )
    search_seconds: float | None = key(
        "Limit of the time that a process spends on measuring; after it, engines are chosen as with heuristic. null: "
        "no limit.",
        None,
        limit=between(0, DAY),
        aliases=("autotune_seconds",),
    )
    compile_seconds: float = key(
        "Limit of the time that cuDNN compiles engines for an operation, in measuring. Above 0, engines of batch "
        "normalizations, a second each, are measured beside own kernels.",
        0.0,
        limit=between(0, DAY),
    )
    workspace_mib: int = key(
        "Largest temporary memory of an engine, in MiB.",
        512,
        limit=between(0, MIB),
        aliases=("workspace", "max_workspace_size"),
    )
    deterministic: bool = key(
        "Whether to use only engines that give the same bits each time.", False, aliases=("cudnn_deterministic",)
    )
    allow_tf32: bool = key(
        "Whether convolutions in float32 may round their inputs to 10 bits, for Tensor cores.", False, aliases=("tf32",)
    )


@dataclass(frozen=True, kw_only=True)
class Capture:
    """The whole training step as one CUDA graph; on a CPU steps are eager, and mode required is an error."""

    mode: str = key(
        "auto: steps are captured; if that is impossible, a warning states the reason and the run continues eagerly. "
        "required: it stops with an error instead.",
        "off",
        choices=("off", "auto", "required"),
        switch=("off", "auto"),
    )
    max_graphs: int = key(
        "Largest number of graphs, one for each combination of shapes; the least recently used one is released.",
        4,
        limit=between(1, SEVERAL),
        aliases=("cache_size", "graphs"),
    )
    dynamic_shapes: str = key(
        "Steps of other shapes than the first, such as a smaller last batch: capture gives each shape its own graph; "
        "eager runs them without.",
        "capture",
        choices=("capture", "eager"),
        aliases=("dynamic", "other_shapes"),
    )
    evaluation: bool = key("Whether the evaluation is captured, too.", True, aliases=("validation", "evaluate"))
    second_stream: bool = key(
        "Whether gradients of convolution filters are computed on a side stream, in parallel.",
        False,
        aliases=("side_stream", "streams"),
    )
