"""The arms of the parity study, and the command that starts a run of one."""

import dataclasses
import pathlib
import sys

_SCRIPTS = pathlib.Path(__file__).resolve().parents[1] / "scripts"
_LOW_LR = 0.0005


@dataclasses.dataclass(frozen=True)
class Arm:
    """Runs that differ in their seeds only.

    Attributes:
        name: of the folders of its runs.
        title: for people.
        settings: overrides of the config, ``KEY=VALUE``.
        masters: whether the optimizer works on FP32 masters.
    """

    name: str
    title: str
    settings: tuple[str, ...]
    masters: bool = True


FP32 = Arm("fp32", "FP32", ("precision.compute=float32", "loss_scale.mode=none"))
FP16 = Arm("fp16", "FP16", ("precision.compute=float16",))
SMALL_SCALE = Arm(
    "small-scale",
    "FP16, loss scale 2^-12",
    ("precision.compute=float16", "loss_scale.mode=static", f"loss_scale.init_scale={2.0**-12!r}"),
)
LOW_LR = Arm("low-lr", f"FP16, lr {_LOW_LR}", ("precision.compute=float16", f"optimizer.lr={_LOW_LR}"))
NO_MASTERS = Arm("low-lr-no-masters", f"FP16, lr {_LOW_LR}, no masters", LOW_LR.settings, masters=False)

#: The arms in the order of the table.
ARMS = (FP32, FP16, SMALL_SCALE, LOW_LR, NO_MASTERS)

#: Negative controls, which must be visibly worse, and what each is compared with.
CONTROLS = {SMALL_SCALE: FP16, NO_MASTERS: LOW_LR}

# One core a run, so that as many run side by side as there are cores.
_COMMON = ("data.threads=1",)


def command(arm, seed, config, settings, out):
    """Returns the command line of a run, which goes on where an earlier one was killed.

    Args:
        arm: :class:`Arm`.
        seed: of weights, order of the images and crops: with the same one all arms get the same.
        config: path of the YAML file.
        settings: overrides of it for all arms; those of the arm come after.
        out: results folder of the run.
    """
    script = [_SCRIPTS / "train_imagenet.py"] if arm.masters else [_SCRIPTS / "parity.py", "--without-masters"]
    overrides = [
        word for setting in (*_COMMON, *settings, *arm.settings, f"training.seed={seed}") for word in ("--set", setting)
    ]
    words = [sys.executable, *script, "--config", config, *overrides, "--out", out, "--resume", "auto"]
    return [str(word) for word in words]
