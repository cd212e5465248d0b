"""The stages of ``scripts/check_gpu.py``, each a command with a time limit; what is worth most comes first."""

import collections.abc
import dataclasses
import pathlib
import sys

from benchmarks.gpu_check import properties, quotes, tests_at_once
from benchmarks.gpu_check.group import Stop

EVERYTHING = "static_graph.yaml"  # everything on
UNTUNED = "static_graph.yaml, no autotuning"
PYTORCH = "PyTorch AMP, channels_last, graph"  # the best row that need not be compiled, which takes minutes
BATCHES = (256, 32)
_SMOKE = ("smoke", 75.0)
_SECONDS_OF_TRAINING = 45.0


@dataclasses.dataclass(frozen=True)
class Stage:
    """One command, and what is made of its results.

    Attributes:
        name: of the stage, its folder and its log.
        command: its words; it runs in the root of the checkout.
        limit: seconds that it may take.
        quote: callable from the stage's folder and the lines that it has printed to the lines that the summary quotes.
            If the command ended well, whatever it raises means that the stage has failed all the same.
        needs_device: whether it makes no sense without a GPU.
        least: seconds without which it is not begun.
        together: ``(name, seconds)`` that all stages with this name may take together, or ``None``.
        stop: for a command without an end of its own, a :class:`~benchmarks.gpu_check.group.Stop`.
    """

    name: str
    command: tuple[str, ...]
    limit: float
    quote: collections.abc.Callable[[pathlib.Path, list], list] = lambda folder, lines: []
    needs_device: bool = True
    least: float = 0.0
    together: tuple[str, float] | None = None
    stop: Stop | None = None


def asking():
    """Returns the stage that asks whether there is a GPU; it comes first if another one wants to know."""
    return Stage("device", _module("benchmarks.gpu_check.usable_gpu"), 60.0, needs_device=False)


def stages(root, scratch):
    """Returns the stages in the order in which they run.

    Args:
        root: the checkout, with ``scripts``, ``configs`` and ``tests``; an absolute path.
        scratch: folder in which each stage has one of its name for its files, likewise.
    """
    surrounding = _module("benchmarks.gpu_check.machine_report", scratch)
    asked = _module("benchmarks.gpu_check.properties", scratch / "properties" / properties.NAME)
    return [
        Stage("environment", surrounding, 15.0, quotes.environment, needs_device=False),
        *(_smoke(name) for name in ("kernel", "convolution", "batch_norm", "capture", "sums", "nccl")),
        Stage("properties", asked, 15.0, quotes.properties),
        *(_bar(root, scratch, f"mixprec-{batch}", UNTUNED, batch) for batch in BATCHES),
        _profile(root, scratch),
        *(_bar(root, scratch, f"pytorch-{batch}", PYTORCH, batch, 90.0, "--peer", "pytorch") for batch in BATCHES),
        *(_bar(root, scratch, f"tuned-{batch}", EVERYTHING, batch, 330.0) for batch in BATCHES),
        _tests(scratch),
        _training(root, scratch),
    ]


def _smoke(name):
    stage = Stage(f"smoke-{name}", _module("benchmarks.gpu_check.smoke", name), 30.0, quotes.last_line, least=3.0)
    return dataclasses.replace(stage, together=_SMOKE)


def _bar(root, scratch, name, row, batch, limit=200.0, *more):
    words = ("bars", "--rows", row, "--batch", batch, "--blocks", 3, "--block-steps", 10, "--no-rates", *more)
    words += ("--prepare-limit", limit - 30, "--limit", 25, "--json", scratch / name / quotes.BARS)
    return Stage(name, _script(root, "benchmark.py", *words), limit, quotes.bars, least=20.0)


def _profile(root, scratch):
    words = ("profile", "--config", EVERYTHING, "--set", "cudnn.autotune=off", "--batch", BATCHES[0])
    command = _script(root, "benchmark.py", *words, "--json", scratch / "profile" / quotes.PROFILE)
    return Stage("profile", command, 120.0, quotes.profile, least=20.0)


def _tests(scratch):
    words = (*tests_at_once.options(), f"--junitxml={scratch / 'tests' / quotes.JUNIT}", "tests")
    return Stage("tests", _module("pytest", *words), 360.0, quotes.tests, least=60.0)


def _training(root, scratch):
    settings = {
        "data.format": "synthetic",
        "data.train": "null",
        "data.val": "null",
        "data.synthetic_images": 7000,  # 27 batches: the start of an epoch counts for little
        "training.device": "gpu",
        "training.epochs": 10_000,  # more than there is time for
        "cudnn.autotune": "off",
        "snapshot.every": "10000 epochs",  # the only one is that of SIGTERM
        "snapshot.best": "false",
    }
    overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    config, out = root / "configs" / "resnet50" / "90ep.yaml", scratch / "train"
    command = _script(root, "train_imagenet.py", "--config", config, *overrides, "--out", out)
    return Stage(
        "train", command, 150.0, quotes.training, least=90.0, stop=Stop(out / quotes.LOG, _SECONDS_OF_TRAINING)
    )


def _script(root, name, *arguments):
    return sys.executable, *map(str, (root / "scripts" / name, *arguments))


def _module(name, *arguments):
    return sys.executable, "-m", *map(str, (name, *arguments))
