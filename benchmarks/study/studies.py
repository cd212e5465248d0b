"""The studies: FP16 beside FP32, each ingredient of today's recipes, and optimizers at a large batch."""

import pathlib

from benchmarks.study.study_arms import Arm, Study

_CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
_DIGITS, _TEXTURES = _CONFIGS / "digits.yaml", _CONFIGS / "textures.yaml"
_MAKE_DIGITS = "python scripts/make_digits.py --out data/digits"
_BASELINE = Arm("baseline", against=None)

_PROGRESSIVE = Arm("progressive", ("progressive.until=[3, 5]", "progressive.sizes=[24, 28]"))

_FP16 = "precision.compute=float16"
_LOW_LR = (_FP16, "optimizer.lr=0.0005")  # 1/200 of the usual one, with which a step moves weights by little

#: The last two comparisons are negative controls, which must be visibly worse.
PARITY = Study(
    _TEXTURES,
    "python scripts/make_textures.py",
    (
        Arm("fp32", ("precision.compute=float32", "loss_scale.mode=none"), against=None),
        Arm("fp16", (_FP16,), against="fp32"),
        Arm("small-scale", (_FP16, "loss_scale.mode=static", f"loss_scale.init_scale={2.0**-12!r}"), "fp16", 5),
        Arm("low-lr", _LOW_LR, against=None, most_seeds=5),
        Arm("low-lr-no-masters", _LOW_LR, against="low-lr", most_seeds=5, masters=False),
    ),
    margin=1.0,
)


def _ingredients(lr, weight_decay):
    """Returns an arm for each ingredient of the recipes.

    Args:
        lr: of the config.
        weight_decay: of the config.
    """
    # A decay that momentum does not add up is ten times as large for the same effect, with a momentum of 0.9; so is the
    # rate of a method whose steps have no velocity. The mean over ten classes has a tenth of the gradients of their
    # sum: the learning rate makes up for it, and the other factor keeps lr * weight_decay.
    bce = ("training.loss=bce", f"optimizer.lr={10 * lr:g}", f"optimizer.weight_decay={weight_decay / 10:g}")
    both = ("training.mixup=0.2", "training.cutmix=1.0")
    arms = {
        "label-smoothing": ("training.label_smoothing=0.1",),
        "mixup": ("training.mixup=0.2",),
        "cutmix": ("training.cutmix=1.0",),
        "mixup-cutmix": both,
        "bce": bce,
        "mixup-cutmix-bce": (*both, *bce, "training.bce_threshold=0.2"),
        "trivial-augment": ("data.augment=trivial",),
        "rand-augment": ("data.augment=rand",),
        "erase": ("data.erase=0.1",),
        "repeats": ("data.repeats=3",),
        "stochastic-depth": ("model.stochastic_depth=0.1",),
        "zero-init-residual": ("model.zero_init_residual=true",),
        "ema": ("training.ema_decay=0.98",),
        "clip-norm": ("optimizer.clip_norm=1.0",),
        "adamw": _optimizer("AdamW", "lr=0.003", "weight_decay=0.05", "momentum=null"),
        "lamb": _optimizer("LAMB", "lr=0.02", "weight_decay=0.02", "momentum=null"),
        "lars": _optimizer("LARS", "lr=1.0", "trust_coefficient=0.02"),
        "sgdw": _optimizer("SGDW", "nesterov=true", f"weight_decay={10 * weight_decay:g}"),
        "schedule-free": (*_optimizer("ScheduleFreeSGD", f"lr={10 * lr:g}"), "schedule.kind=constant"),
    }
    return tuple(Arm(name, settings) for name, settings in arms.items())


def _optimizer(name, *settings):
    return tuple(f"optimizer.{setting}" for setting in (f"name={name}", *settings))


#: By the name that ``--data`` takes.
ABLATIONS = {
    "digits": Study(
        _DIGITS,
        _MAKE_DIGITS,
        (_BASELINE, *_ingredients(0.05, 0.001)),
        ("training.epochs=4", "log.gradient_histogram=null", "data.size=16", "data.resize=16"),
    ),
    "textures": Study(
        _TEXTURES,
        "python scripts/make_textures.py --images 5000 --side 40 --out data/textures-small",
        (_BASELINE, *_ingredients(0.1, 0.0005), _PROGRESSIVE),
        (
            *("training.epochs=8", "data.size=32", "data.resize=36"),
            *("data.train=data/textures-small/train", "data.val=data/textures-small/val"),
        ),
    ),
    # Three steps an epoch: each one has to count.
    "large-batch": Study(
        _DIGITS,
        _MAKE_DIGITS,
        (
            _BASELINE,
            Arm("lars", _optimizer("LARS", "lr=0.1", "trust_coefficient=0.03")),
            Arm("kfac", ("optimizer.preconditioner=kfac", "optimizer.lr=0.1", "kfac.damping=0.1")),
        ),
        (
            *("training.batch_size=480", "training.epochs=6", "loss_scale.growth_interval=10"),
            *("log.gradient_histogram=null", "data.size=8", "data.resize=8"),
        ),
    ),
}
