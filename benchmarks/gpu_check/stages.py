"""The stages of ``scripts/check_gpu.py``, each a command with a time limit."""

import collections.abc
import dataclasses
import functools
import pathlib
import sys

from benchmarks.gpu_check import device, properties, quotes, surroundings
from benchmarks.gpu_check.group import Stop

_MINUTE = 60.0
_PICTURES = 10_000  # 7,000 to train on: 27 batches in an epoch, so that the start of one counts for little
_SECONDS_OF_TRAINING = 60.0
ROWS = (  # of the bars; those of PyTorch that are compiled take minutes before the first step
    "plain Chainer FP32, cuDNN",
    "fp16.yaml",
    "nhwc_fused_batched.yaml",
    "static_graph.yaml",
    "PyTorch AMP, channels_last, graph",
)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One command, and what is made of its results.

    Attributes:
        name: of the stage, its folder and its log.
        command: its words; it runs in the root of the checkout.
        limit: seconds that it may take.
        quote: callable from the stage's folder and log to the lines that the summary quotes. If the command ended well,
            whatever it raises means that the stage has failed all the same.
        needs_device: whether it makes no sense without a GPU.
        after: name of the stage without whose success it cannot run, or ``None``.
        stop: for a command without an end of its own, a :class:`~benchmarks.gpu_check.group.Stop`.
    """

    name: str
    command: tuple[str, ...]
    limit: float
    quote: collections.abc.Callable[[pathlib.Path, pathlib.Path], list] = lambda folder, log: []
    needs_device: bool = False
    after: str | None = None
    stop: Stop | None = None


def asking(out):
    """Returns the stage that asks whether there is a GPU; it comes first if another one wants to know."""
    module = "benchmarks.gpu_check.device"
    return Stage("device", _module(module, out / "device" / device.NAME), 2 * _MINUTE)


def stages(root, out):
    """Returns the stages in the order in which they run.

    Args:
        root: the checkout, with ``scripts``, ``configs`` and ``tests``; an absolute path.
        out: folder of the results, likewise.
    """
    benchmark = functools.partial(_script, root, "benchmark.py")
    return [
        Stage(
            "environment",
            _module("benchmarks.gpu_check.surroundings", out / "environment" / surroundings.NAME),
            3 * _MINUTE,
            quotes.environment,
        ),
        Stage(
            "properties",
            _module("benchmarks.gpu_check.properties", out / "properties" / properties.NAME),
            2 * _MINUTE,
            quotes.properties,
            needs_device=True,
        ),
        Stage(
            "tests",
            # A line for each test, so that the log of a run that was killed says which have passed.
            _module("pytest", "-m", "gpu", "-v", "-p", "no:cacheprovider", "--continue-on-collection-errors")
            + (f"--junitxml={out / 'tests' / quotes.JUNIT}",),
            15 * _MINUTE,
            quotes.tests,
            needs_device=True,
        ),
        Stage(
            "bars",
            benchmark("bars", "--peer", "pytorch", "--minutes", "2", "--limit", "60", "--batch", "256,32")
            + tuple(word for row in ROWS for word in ("--rows", row))
            + ("--json", str(out / "bars" / quotes.BARS)),
            5 * _MINUTE,
            quotes.bars,
            needs_device=True,
        ),
        Stage(
            "profile",
            benchmark("profile", "--json", out / "profile" / "profile.json"),
            3 * _MINUTE,
            quotes.profile,
            needs_device=True,
        ),
        Stage(
            "images",
            _script(root, "make_textures.py", "--out", out / "images" / "textures", "--images", _PICTURES),
            10 * _MINUTE,
            quotes.last_line,
        ),
        Stage(
            "train",
            _training(root, out / "images" / "textures", out / "train"),
            8 * _MINUTE,
            quotes.training,
            needs_device=True,
            after="images",
            stop=Stop(out / "train" / quotes.LOG, _SECONDS_OF_TRAINING),
        ),
    ]


def _training(root, images, out):
    settings = {
        "data.train": images / "train",
        "data.val": images / "val",
        "model.classes": 10,
        "training.device": "gpu",
        "training.epochs": 10_000,  # more than there is time for
        "snapshot.every": "10000 epochs",  # the only one is that of SIGTERM
        "snapshot.best": "false",
    }
    overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    config = root / "configs" / "resnet50" / "90ep.yaml"
    return _script(root, "train_imagenet.py", "--config", config, *overrides, "--out", out)


def _script(root, name, *arguments):
    return sys.executable, *map(str, (root / "scripts" / name, *arguments))


def _module(name, *arguments):
    return sys.executable, "-m", *map(str, (name, *arguments))
