"""Training commands that nobody means: arguments, configs and snapshots, all drawn from a ``random.Random``."""

import os

import numpy as np
from PIL import Image

from tests.app.config import mangled

CONFIG = """
model: {arch: resnet8, classes: 3}
data: {train: images/train, val: images/val, size: 8, resize: 8, threads: 1}
optimizer: {lr: 0.02}
training: {batch_size: 6, epochs: 1, device: cpu}
"""
# The largest values, and what they need.
HUGE = (
    {"data.size": "16384", "data.val_size": "16384", "data.resize": "16384", "data.threads": "1024"}
    | {"data.prefetch": "1024", "data.shuffle_window": "2147483647", "data.synthetic_images": "2147483647"}
    | {"training.batch_size": "1000000", "training.accumulation_steps": "16384", "training.epochs": "1000000"}
    | {"capture.max_graphs": "1024", "snapshot.keep": "1000000", "cudnn.workspace_mib": "1048576"}
)
_RESIZE = ("data.resize", "16384")
_SYNTHETIC = [("data.format", "synthetic"), ("data.train", "null"), ("data.val", "null"), ("snapshot.best", "false")]
EXTRA = {
    "data.size": [_RESIZE],
    "data.val_size": [_RESIZE],
    "data.synthetic_images": _SYNTHETIC,
    "training.batch_size": [*_SYNTHETIC, ("data.synthetic_images", "1000000")],
    "data.threads": [("data.loader", "pillow")],
}
ODD_PATHS = (
    *("", " ", ".", "..", "/dev/null", "/dev/zero", "pipe", "a\0b", "a\nb\x1b[31m", "\udce4", "ü 数", "c.yaml"),
    "c.yaml/x",
)
ODD_PATHS += (
    *("none", "none/none", "images", "circle", "circle/x", "x" * 300, "x" * 5000, "/proc/x", "-", "--", "~", "empty"),
)


def prepare(folder):
    """Makes the working directory: a config, images, and things that are none."""
    random = np.random.RandomState(0)
    for split, count in (("train", 6), ("val", 2)):
        for label in range(3):
            (folder / "images" / split / "abc"[label]).mkdir(parents=True)
            for index in range(count):
                pixels = random.randint(0, 60, (9, 9, 3)) + 90 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / "images" / split / "abc"[label] / f"{index}.png")
    (folder / "c.yaml").write_text(CONFIG)
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe")
    os.symlink("circle", folder / "circle")


def command(random):
    """Returns a name for the kind of command, its arguments, and a function that prepares the folder for it."""
    kinds = _huge, _set, _config, _arguments, _resume
    return random.choices(kinds, (2, 7, 4, 5, 4))[0](random)


def _sets(settings):
    return [word for name, value in settings for word in ("--set", f"{name}={value}")]


def _nothing():
    pass


def _huge(random):
    """As much as the bounds allow; a dry run says whether it fits."""
    key = random.choice(sorted(HUGE))
    return "huge", ["--config", "c.yaml", "--dry-run", *_sets([(key, HUGE[key]), *EXTRA.get(key, ())])], _nothing


def _set(random):
    overrides = [mangled.override(random) for _ in range(random.choice((1, 1, 2)))]
    return (
        "set",
        ["--config", "c.yaml", "--dry-run", *(word for text in overrides for word in ("--set", text))],
        _nothing,
    )


def _config(random):
    data, overrides = mangled.config(random)

    def prepare():
        with open("c.yaml", "wb") as file:
            file.write(data)

    return "config", ["--config", "c.yaml", "--dry-run", *(f"--set={text}" for text in overrides)], prepare


def _arguments(random):
    arguments = {"--config": "c.yaml", "--out": "out", "--resume": None}
    for name in random.sample(("--config", "--out", "--resume"), random.choice((1, 1, 2))):
        arguments[name] = random.choice(ODD_PATHS)
    words = [f"{name}={value}" for name, value in arguments.items() if value is not None]
    words += random.choice((["--dry-run"], ["--dry-run"], []))
    words += random.choice(
        (
            *([], [], [], [], [], [], ["--help"], ["--colour"], ["a\nb\x1b"], ["--set"], ["--set", "\0"]),
            ["--conf", "c.yaml"],
        )
        + (["--epochs", "3"], ["--lr=\n"], ["--dryrun"], ["--set", "training.epochs:3"], ["--set", "optimizer.lr", "1"])
        + (["c.yaml"], ["--resume", "atuo"], ["--resume", "images"], ["--set", "training.device=@cupy:0"])
    )
    random.shuffle(words)
    return "arguments", words, _nothing


def _resume(random):
    """Of the folder ``run``, a copy of that of a finished run."""
    name = "run/snapshot_iter_3.npz"
    what = random.choice(
        ("whole", "bits", "cut", "empty", "npy", "text", "pipe", "zero", "folder", "arch", "data", "seed")
    )
    place, bit = random.random(), 1 << random.randrange(8)

    def prepare():
        if what == "bits":
            with open(name, "r+b") as file:
                at = int(place * os.path.getsize(name))
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ bit]))
        elif what == "cut":
            os.truncate(name, int(place * os.path.getsize(name)))
        elif what in ("empty", "text", "npy"):
            with open(name, "wb") as file:
                if what == "npy":
                    np.save(file, np.arange(3))
                file.write({"empty": b"", "npy": b"", "text": b"no snapshot\n\0\x1b"}[what])
        elif what in ("pipe", "zero", "folder"):
            os.remove(name)
            {"pipe": os.mkfifo, "zero": lambda path: os.symlink("/dev/zero", path), "folder": os.mkdir}[what](name)

    words = [
        "--config",
        "c.yaml",
        "--resume",
        random.choice(("auto", name)),
        *random.choice((["--out", "run"], [])),
        "--dry-run",
    ]
    words += {"arch": ["--set", "model.arch=resnet20"], "seed": ["--set", "training.seed=1"]}.get(what, [])
    words += ["--set", "data.train=images/val"] if what == "data" else []
    return f"resume, {what}", words, prepare
