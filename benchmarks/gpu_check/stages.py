"""The stages of ``scripts/check_gpu.py``, each a command with a time limit; what is worth most comes first."""

import collections.abc
import dataclasses
import pathlib
import shlex
import sys

from benchmarks.gpu_check import quotes

ROOT = pathlib.Path(__file__).resolve().parents[2]
NO_GPU = 3  # exit status of benchmarks.gpu_check.usable_gpu
EVERYTHING = "static_graph.yaml"
BY_RULE = "static_graph.yaml, no autotuning"
MEASURED = "static_graph.yaml, 30 s of search"
PLAIN = "plain Chainer FP32, cuDNN"
PYTORCH, COMPILED = "PyTorch AMP, channels_last, graph", "PyTorch AMP, channels_last, compiled, graph"
SMOKE = (
    "tests/backends/test_gpu.py::test_losses_are_those_of_numpy",
    "tests/graph_capture/test_gpu.py::test_an_overflow_in_a_graph",
)
NCCL = "tests/distributed/test_gpu.py"
TALK = (PLAIN, "plain Chainer mixed16", f"{BY_RULE}, no graph", BY_RULE, PYTORCH)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One command, and what is made of its results.

    Attributes:
        name: of the stage, its folder and its log.
        seconds: that are planned for it, with nothing cached; with less it is not begun.
        command: its words; it runs in the root of the checkout.
        quote: callable from the stage's folder and the lines that it has printed to the lines that the summary quotes.
            If the command ended well, whatever it raises means that the stage has failed all the same.
        needs_device: whether it makes no sense without a GPU.
        on_request: whether it runs only if it is named.
    """

    name: str
    seconds: float
    command: tuple[str, ...]
    quote: collections.abc.Callable[[pathlib.Path, list], list] = quotes.everything
    needs_device: bool = True
    on_request: bool = False

    @property
    def limit(self):
        """Seconds after which it is ended."""
        return 1.5 * self.seconds + 15


def _module(name, *arguments):
    return sys.executable, "-m", *map(str, (f"benchmarks.gpu_check.{name}", *arguments))


def _script(name, *arguments):
    return sys.executable, *map(str, (ROOT / "scripts" / name, *arguments))


DEVICE = Stage("device", 10, _module("usable_gpu"), needs_device=False)


def stages(scratch):
    """Returns the stages in the order in which they run.

    Args:
        scratch: folder in which each stage has one of its name for its files, an absolute path.
    """

    def bars(name, seconds, batch, *rows, blocks=3, **more):
        words = [word for row in rows for word in ("--rows", row)]
        words += ["--batch", batch, "--blocks", blocks, "--block-steps", 10, "--limit", 25]
        words += ["--prepare-limit", min(1.5 * seconds, 135), "--json", scratch / name / quotes.BARS]
        words += ["--peer", "pytorch"] if any(row.startswith("PyTorch") for row in rows) else []
        return Stage(name, seconds, _script("benchmark.py", "bars", *words), quotes.bars, **more)

    def profile(name, seconds, batch):
        words = ("--config", EVERYTHING, "--set", "cudnn.autotune=heuristic", "--batch", batch)
        command = _script("benchmark.py", "profile", *words, "--json", scratch / name / quotes.PROFILE)
        return Stage(name, seconds, command, quotes.profile)

    def training(name, seconds, **keys):
        given = {"training.epochs": 2, "schedule.warmup_epochs": 1, "cudnn.autotune": "heuristic", **_SYNTHETIC, **keys}
        words = ("--config", ROOT / "configs" / "resnet50" / EVERYTHING, *_overrides(given))
        return Stage(name, seconds, _script("train_imagenet.py", *words, "--out", scratch / name), quotes.training)

    def tests(which, seconds):
        name = f"tests-{which}"
        return Stage(name, seconds, _module("gpu_tests", scratch / name, which), quotes.tests)

    python = shlex.quote(sys.executable)
    environment = f"echo cores: $(env -u OMP_NUM_THREADS nproc); free -g; df -h {scratch}; timeout 5 nvidia-smi"
    environment += f"; timeout 20 {python} -m mixprec info; {python} -m pip list; :"
    return [
        Stage("environment", 8, ("sh", "-c", environment), quotes.environment, False),
        Stage("smoke", 20, _module("gpu_tests", scratch / "smoke", *SMOKE), quotes.tests),
        bars("captured-256", 75, 256, BY_RULE),
        bars("captured-32", 55, 32, BY_RULE),
        bars("pytorch-256", 45, 256, PYTORCH),
        bars("pytorch-32", 35, 32, PYTORCH),
        profile("profile-256", 35, 256),
        _parity(scratch, "parity", 70),
        tests("changed", 60),
        bars("measured-256", 75, 256, MEASURED),
        Stage("segments", 8, _module("segments")),
        bars("second-256", 25, 256, f"{BY_RULE}, second stream"),
        bars("plain-32", 40, 32, PLAIN),
        bars("compiled-256", 90, 256, COMPILED),
        profile("profile-32", 30, 32),
        training("kfac", 25, **{"optimizer.preconditioner": "kfac"}),
        training("offload", 25, **{"memory.budget": "500 MB", "memory.to": "host"}),
        training("two-sizes", 25, **{"progressive.until": "[1]", "progressive.sizes": "[96]"}),
        Stage("nccl", 15, _module("gpu_tests", scratch / "nccl", NCCL), quotes.tests),
        tests("others", 60),
        bars("talk", 350, "32,64,128,256", *TALK, blocks=2, on_request=True),
    ]


_SYNTHETIC = (
    {"data.format": "synthetic", "data.train": "null", "data.val": "null", "data.synthetic_images": 512}
    | {"data.size": 128, "data.resize": 128, "model.arch": "resnet18", "training.batch_size": 32}
    | {"training.device": "gpu", "snapshot.best": "false"}
)


def _overrides(keys):
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


def _parity(scratch, name, seconds):
    """Textured pictures are made, and eight runs train on them side by side, with everything on."""
    images, out = scratch / "textures", scratch / name
    keys = (
        {"data.train": images / "train", "data.val": images / "val", "data.size": 32, "data.resize": 36}
        | {"model.memory_format": "nhwc", "model.fuse": "true", "update.fused": "true", "capture": "true"}
        | {"training.device": "gpu", "training.epochs": 12, "cudnn.autotune": "heuristic"}
    )
    made = _script("make_textures.py", "--images", 5000, "--side", 40, "--out", images)
    words = ("--arms", "fp16", "--seeds", 4, "--jobs", 8, "--out", out, "--json", out / quotes.PARITY)
    trained = _script("benchmark.py", "parity", *words, *_overrides(keys))
    return Stage(name, seconds, ("sh", "-c", f"{shlex.join(made)} && {shlex.join(trained)}"), quotes.parity)
