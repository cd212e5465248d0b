"""The data of the ablation, and its arms: one ingredient each, as overrides of the config."""

import dataclasses
import pathlib

from benchmarks.parity_arms import Arm

_CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"

BASELINE = Arm("baseline", "baseline", ())


@dataclasses.dataclass(frozen=True)
class Data:
    """What is learned.

    Attributes:
        config: path of the YAML file.
        settings: overrides of it for all arms, which make a run short.
        make: the command that writes the images.
        epochs: of a run, unless another number is asked for.
        arms: the arms that are compared with :data:`BASELINE`, by name.
    """

    config: pathlib.Path
    settings: tuple[str, ...]
    make: str
    epochs: int
    arms: dict[str, Arm]


def _arms(lr, weight_decay, *more):
    """Returns the arms by name.

    Args:
        lr: of the config.
        weight_decay: of the config.
        *more: arms for these data only.
    """
    # A decay that momentum does not add up is ten times as large for the same effect, with a momentum of 0.9; so is the
    # rate of a method whose steps have no velocity. The mean over ten classes has a tenth of the gradients of their
    # sum: the learning rate makes up for it, and the other factor keeps lr * weight_decay.
    bce = ("training.loss=bce", f"optimizer.lr={10 * lr:g}", f"optimizer.weight_decay={weight_decay / 10:g}")
    both = ("training.mixup=0.2", "training.cutmix=1.0")
    arms = (
        _arm("label-smoothing", "training.label_smoothing=0.1"),
        _arm("mixup", "training.mixup=0.2"),
        _arm("cutmix", "training.cutmix=1.0"),
        _arm("mixup-cutmix", *both),
        _arm("bce", *bce),
        _arm("mixup-cutmix-bce", *both, *bce, "training.bce_threshold=0.2"),
        _arm("trivial-augment", "data.augment=trivial"),
        _arm("rand-augment", "data.augment=rand"),
        _arm("erase", "data.erase=0.1"),
        _arm("repeats", "data.repeats=3"),
        _arm("stochastic-depth", "model.stochastic_depth=0.1"),
        _arm("zero-init-residual", "model.zero_init_residual=true"),
        _arm("ema", "training.ema_decay=0.98"),
        _arm("clip-norm", "optimizer.clip_norm=1.0"),
        _optimizer("adamw", "AdamW", "optimizer.lr=0.003", "optimizer.weight_decay=0.05", "optimizer.momentum=null"),
        _optimizer("lamb", "LAMB", "optimizer.lr=0.02", "optimizer.weight_decay=0.02", "optimizer.momentum=null"),
        _optimizer("lars", "LARS", "optimizer.lr=1.0", "optimizer.trust_coefficient=0.02"),
        _optimizer("sgdw", "SGDW", "optimizer.nesterov=true", f"optimizer.weight_decay={10 * weight_decay:g}"),
        _optimizer("schedule-free", "ScheduleFreeSGD", f"optimizer.lr={10 * lr:g}", "schedule.kind=constant"),
        *more,
    )
    return {arm.name: arm for arm in arms}


def _arm(name, *settings):
    return Arm(name, ", ".join(setting.partition(".")[2] for setting in settings), settings)


def _optimizer(name, optimizer, *settings):
    return Arm(
        name,
        ", ".join([optimizer, *(setting.partition(".")[2] for setting in settings if not setting.endswith("=null"))]),
        (f"optimizer.name={optimizer}", *settings),
    )


#: By the name that ``--data`` takes.
DATA = {
    "digits": Data(
        _CONFIGS / "digits.yaml",
        ("log.gradient_histogram=null", "data.size=16", "data.resize=16"),  # the digits have 8x8 pixels
        "python scripts/make_digits.py --out data/digits",
        4,
        _arms(0.05, 0.001),
    ),
    "textures": Data(
        _CONFIGS / "textures.yaml",
        (
            *("data.size=32", "data.resize=36"),
            *("data.train=data/textures-small/train", "data.val=data/textures-small/val"),
        ),
        "python scripts/make_textures.py --images 5000 --side 40 --out data/textures-small",
        8,
        _arms(0.1, 0.0005, _arm("progressive", "progressive.until=[3, 5]", "progressive.sizes=[24, 28]")),
    ),
}
