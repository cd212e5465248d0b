"""Config sections about the network, the schedule, the length of training, snapshots, the log, and the export."""

import operator
import re
from dataclasses import dataclass

from mixprec.activation_memory.budget import is_budget
from mixprec.base.bounds import LARGEST_DECAY, LARGEST_RATE, MANY, SEVERAL, SUMMANDS
from mixprec.base.declaration import IMPORT_PATH, IMPORTS, INTERVAL, PATH, Limit, above, below, between, key, matching
from mixprec.base.messages import nearest
from mixprec.base.vocabulary import LAYOUT_SYNONYMS, LAYOUTS, device


def _near_device(value):
    number = re.fullmatch(r"(?:[a-z]+:?)?0*([0-9]{1,3})", str(value).lower())
    return f"gpu:{number[1]}" if number else nearest(str(value), ("auto", "cpu", "gpu", "cuda"))


def _trigger(every):
    number, unit = every.split()
    return int(number), unit.removesuffix("s")


@dataclass(frozen=True, kw_only=True)
class Model:
    """The network."""

    arch: str = key(
        "Name of a network that comes with mixprec, or the import path of your own ([own-network](own-network.md)).",
        other=IMPORT_PATH,
        aliases=("architecture", "network"),
    )
    classes: int = key("Number of classes; it must be the number of class folders.", limit=between(2, MANY))
    weights: str | None = key(
        "File of weights that training starts from: model.npz of a run, or .safetensors or .pt of PyTorch "
        "([export](export.md#fine-tuning)). If it has another number of classes, the last layer is initialized anew.",
        None,
        limit=PATH,
        aliases=("pretrained", "checkpoint"),
    )
    memory_format: str = key(
        "Memory layout of images in the network: nhwc (channels_last), which Tensor cores prefer, with functions of "
        "mixprec; nchw (channels_first) with Chainer's own.",
        "nhwc",
        choices=LAYOUTS,
        synonyms=LAYOUT_SYNONYMS,
        aliases=("layout",),
    )
    fuse: bool | None = key(
        "Compute a batch normalization together with the addition and the ReLU after it; null means true with nhwc.",
        None,
    )
    conv_statistics: bool | None = key(
        "Let a GPU take the sums of a batch normalization's statistics inside the convolution before it, on an H100 "
        "always, elsewhere unless cudnn.autotune measures that to be slower; null means the value of fuse.",
        None,
    )
    zero_init_residual: bool = key(
        "Each residual block starts as the identity: the scale of its last batch normalization is 0 (Goyal et al. "
        "2017). Only for architectures that have it.",
        False,
        aliases=("zero_init_gamma", "zero_init_last_gamma", "zero_gamma"),
    )
    stochastic_depth: float = key(
        "Probability that an image skips the branch of the last residual block in training; it rises linearly from 0 "
        "in the first block (Huang et al. 2016). Only for architectures that have it.",
        0.0,
        limit=below(0, 1),
        aliases=("drop_path", "drop_path_rate", "stochastic_depth_rate"),
    )

    @property
    def fuses(self):
        """:attr:`fuse`, or what null means."""
        return self.memory_format == "nhwc" if self.fuse is None else self.fuse


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate over time."""

    kind: str = key(
        "After the warm-up: constant; cosine, half a cosine from lr to end_lr; step, times gamma at each milestone; "
        "poly, end_lr + (lr - end_lr) * (1 - progress)^power.",
        "cosine",
        choices=("constant", "cosine", "step", "poly"),
        aliases=("name", "type"),
    )
    warmup_epochs: float = key(
        "Length of the linear rise to lr at the start.", 0.0, limit=between(0, MANY), aliases=("warmup",)
    )
    warmup_start_lr: float | None = key(
        "Learning rate at which the rise begins, scaled like lr; null: one step's share of lr.",
        None,
        limit=between(0, LARGEST_RATE),
        aliases=("warmup_lr",),
    )
    decay_from: str = key(
        "Start of the decay: the end of the warm-up, or the start of training, as in timm, where lr itself is not "
        "reached.",
        "warmup",
        choices=("warmup", "start"),
    )
    by: str = key(
        "The learning rate changes with each step, or, as in timm and torchvision, with each epoch.",
        "step",
        choices=("step", "epoch"),
    )
    milestones: tuple[float, ...] = key(
        "Only for step: epochs at which the learning rate falls.",
        (),
        limit=Limit(
            f">= 0 and <= {MANY}, each larger than the one before, at most {SEVERAL} of them",
            lambda value: len(value) <= SEVERAL and all(map(operator.lt, (-1.0, *value), (*value, MANY + 1.0))),
        ),
        aliases=("steps", "step_epochs"),
    )
    gamma: float = key("Only for step: factor at each milestone.", 0.1, limit=above(0, 1), aliases=("decay_rate",))
    power: float = key("Only for poly: the exponent.", 2.0, limit=above(0, 100))
    end_lr: float = key(
        "Only for cosine and poly: the learning rate at the end, scaled like lr.", 0.0, limit=between(0, LARGEST_RATE)
    )


@dataclass(frozen=True, kw_only=True)
class Training:
    """Batches, epochs, random numbers, and the device."""

    batch_size: int = key("Number of images in one forward and backward pass of a process.", limit=between(1, MANY))
    accumulation_steps: int = key(
        "Number of forward and backward passes whose gradients are averaged for one step of the optimizer.",
        1,
        limit=between(1, SUMMANDS),
        aliases=("accumulation", "gradient_accumulation", "gradient_accumulation_steps"),
    )
    epochs: int = key("Number of passes over the training images.", limit=between(1, MANY))
    seed: int = key(
        "Seed of the random numbers: weights, order of the images, crops.",
        0,
        # NumPy's np.random.seed takes 32 bits.
        limit=between(0, 2**32 - 1),
    )
    device: str = key(
        "auto: a GPU, or the CPU if there is none. With auto and gpu the processes of a machine use one GPU each, from "
        "gpu:0 on.",
        "auto",
        limit=matching(
            r"auto|cpu|gpu|gpu:[0-9]{1,3}",
            "auto, cpu, gpu or gpu:N, with N from 0 to 999; cuda:N and Chainer's @cupy:N and @numpy mean the same",
            near=_near_device,
        ),
        respelled=device,
    )
    label_smoothing: float = key(
        "Share of the target that is spread evenly over all classes (Szegedy et al. 2016), not in validation.",
        0.0,
        limit=below(0, 1),
        aliases=("smoothing",),
    )
    loss: str = key(
        "cross_entropy of a softmax; bce: mean of per-class sigmoid cross entropies (Wightman et al. 2021), where "
        "validation reports cross_entropy; or [your own](own-network.md#own-losses-class-weights-and-extensions).",
        "cross_entropy",
        choices=("cross_entropy", "bce"),
        other=IMPORT_PATH,
        aliases=("criterion",),
        synonyms={"softmax": "cross_entropy", "binary_cross_entropy": "bce"},
    )
    class_weights: str | tuple[float, ...] | None = key(
        "Only for cross_entropy: weights of the classes in the mean over the training images. balanced: in inverse "
        "proportion to the images of the class.",
        None,
        choices=("balanced",),
        other=Limit(
            f"a list of numbers > 0 and <= {MANY}",
            lambda value: isinstance(value, tuple) and all(0 < weight <= MANY for weight in value),
        ),
        aliases=("class_weight",),
    )
    bce_threshold: float | None = key(
        "Only for bce: targets above it become 1, others 0; null leaves them unchanged.",
        None,
        limit=below(0, 1),
        aliases=("bce_target_thresh",),
    )
    mixup: float = key(
        "Alpha of Mixup, a weighted mean of two images with a share from Beta(alpha, alpha) (Zhang et al. 2018); 0: "
        "off.",
        0.0,
        limit=between(0, 100),
        aliases=("mixup_alpha",),
    )
    cutmix: float = key(
        "Alpha of CutMix, which pastes a box of one image into another (Yun et al. 2019); 0: off.",
        0.0,
        limit=between(0, 100),
        aliases=("cutmix_alpha",),
    )
    cutmix_probability: float = key(
        "Probability of CutMix in a batch, if Mixup is on as well.",
        0.5,
        limit=between(0, 1),
        aliases=("mixup_switch_prob", "switch_prob"),
    )
    mix_probability: float = key(
        "Probability that a batch is mixed, if Mixup or CutMix is on.",
        1.0,
        limit=between(0, 1),
        aliases=("mixup_prob",),
    )
    ema_decay: float | None = key(
        "Decay per step of an exponential moving average of the weights, which is then validated; null: none.",
        None,
        limit=above(0, LARGEST_DECAY),
        aliases=("ema",),
    )

    @property
    def has_own_loss(self):
        """Whether :attr:`loss` is an import path."""
        return IMPORT_PATH.holds(self.loss)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Saved states of a run, from which --resume continues."""

    every: str = key("Interval between snapshots; the end of training always has one.", "1 epoch", limit=INTERVAL)
    keep: int = key("Number of the newest snapshots that stay on disk.", 3, limit=between(1, MANY))
    best: bool = key("Keep the state with the highest validation accuracy as snapshot_best.npz.", True)

    @property
    def trigger(self):
        """:attr:`every` in Chainer's form, ``(5, "epoch")``."""
        return _trigger(self.every)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of what layers keep for the backward pass."""

    recompute: str = key(
        "blocks: the blocks of the network keep only their inputs, and are recomputed in the backward pass. auto: the "
        "same if the run would not fit otherwise; with a budget, single layers, where that is cheaper than moving "
        "their activations.",
        "none",
        choices=("none", "blocks", "auto"),
        aliases=("checkpointing", "gradient_checkpointing"),
        switch=("none", "auto"),
    )
    budget: str | float | None = key(
        "Memory of the device that the run may use, or a share of it. The rest waits in another memory for the "
        "backward pass. null: no limit.",
        None,
        limit=Limit("such as 16 GB, 500 MiB or 0.8", is_budget),
    )
    to: str | None = key(
        "That other memory: host, a GPU's; or a folder for a file, if the CPU trains. null: host, or the results "
        "folder.",
        None,
        limit=PATH,
        aliases=("offload_to",),
    )


@dataclass(frozen=True, kw_only=True)
class Log:
    """The log, the table in the terminal and the plots."""

    every: str = key("Time between two entries.", "1 epoch", limit=INTERVAL)
    gradient_histogram: str | None = key(
        "Interval between plots of the gradients in the range of float16 ([runs](runs.md#numbers-of-the-gradients)); "
        "null: none.",
        None,
        limit=INTERVAL,
    )
    tensorboard: bool = key("Write the log as TensorBoard events, too; needs tensorboardX.", False)
    extensions: tuple[str, ...] = key(
        "Extensions of Chainer's Trainer: [your own](own-network.md#own-losses-class-weights-and-extensions).",
        (),
        limit=IMPORTS,
    )

    @property
    def trigger(self):
        """:attr:`every` in Chainer's form, ``(5, "epoch")``."""
        return _trigger(self.every)

    @property
    def gradient_histogram_trigger(self):
        """:attr:`gradient_histogram` in Chainer's form, or ``None``."""
        return None if self.gradient_histogram is None else _trigger(self.gradient_histogram)


@dataclass(frozen=True, kw_only=True)
class Export:
    """Limits of `mixprec export`; training does not read them."""

    max_drop_float16: float = key(
        "Percentage points of accuracy that the float16 file may be below the float32 file.", 0.1, limit=between(0, 100)
    )
    max_drop_int8: float = key(
        "Percentage points of accuracy that the INT8 file may be below the float32 file.", 1.0, limit=between(0, 100)
    )
