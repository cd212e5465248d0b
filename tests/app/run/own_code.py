"""A folder of a user's own modules, images and a config, in which tests call the training command."""

import sys

import chainer
import chainer.functions as F
import chainer.links as L
import yaml

from mixprec.app.commands import train as command
from mixprec.training.plots import Plots
from tests.app.run import small_images
from tests.called import call

SECTIONS = {
    "model": {"arch": "tiny", "classes": 3},
    "precision": {"compute": "float32"},
    "data": {"train": "images/train", "val": "images/val", "size": 8, "resize": 8, "threads": 1, "loader": "pillow"},
    "optimizer": {"lr": 0.02},
    "training": {"batch_size": 4, "epochs": 1, "device": "cpu"},
}
# 20 images of random numbers, three classes, and no validation.
SYNTHETIC = {"data.format": "synthetic", "data.synthetic_images": 20, "data.train": None, "data.val": None}
SYNTHETIC |= {"snapshot.best": False}


class Tiny(chainer.Chain):
    def __init__(self, classes):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3)
            self.linear = L.Linear(4, classes)

    def forward(self, x):
        h = F.relu(self.conv(x))
        return self.linear(F.average_pooling_2d(h, h.shape[2:]))


def enter(folder, monkeypatch, modules):
    """Makes the folder the working directory; returns a function that calls the command in it.

    Args:
        folder: a ``pathlib.Path``.
        monkeypatch: of pytest.
        modules: dict from names of modules to their text.
    """
    small_images.make(folder / "images")
    (folder / "c.yaml").write_text(yaml.safe_dump(SECTIONS))
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(Plots, "__call__", lambda self, trainer: None)

    def run(*arguments, **settings):
        """``out`` is the results folder; other settings have ``__`` in place of the dot."""
        words = [word for name, value in settings.items() for word in ("--set", f"{name.replace('__', '.')}={value}")]
        return call(lambda argv: command.main(argv, {"tiny": Tiny}), "--config", "c.yaml", *arguments, *words)

    return run


def synthetic(**settings):
    """Returns settings for a run without images, with others."""
    data = {name.replace(".", "__"): yaml.safe_dump(value).split("\n")[0] for name, value in SYNTHETIC.items()}
    return data | settings


def check_refused(process, folder, before, message):
    """Makes sure that a run was refused in one line, and left nothing."""
    assert process.returncode == 2, process.stdout + process.stderr
    (line,) = process.stderr.splitlines()
    assert message in line
    assert len(line) < 700
    assert process.stdout == ""
    assert sorted(folder.rglob("*")) == before
