"""A results folder as the training command leaves it, made in a moment, for tests of the export."""

import json

import chainer
import numpy as np
from PIL import Image

from mixprec.app import config as configs
from models import MODELS
from tests.app.run import small_images

ALL = ("--fp16", "--int8", "--images", "16")


def export(work, out, *options):
    """Runs the command on the run of ``work``; returns its exit code and what is in the JSON file."""
    from mixprec.app.commands import export as export_command  # which needs ONNX

    code = export_command.main(["--run", str(work / "run"), "--out", str(out), *options])
    path = out / "export.json"
    return code, json.loads(path.read_text()) if path.exists() else None


def validation(work):
    """Returns the validation images of ``work``, and their labels, by Pillow and NumPy alone."""
    images, labels = [], []
    for label, name in enumerate("abc"):
        for path in sorted((work / "images" / "val" / name).iterdir()):
            pixels = np.asarray(Image.open(path).resize((16, 16), Image.Resampling.BILINEAR), np.float64)
            images.append(((pixels - [123.675, 116.28, 103.53]) / [58.395, 57.12, 57.375]).transpose(2, 0, 1))
            labels.append(label)
    return np.array(images, np.float32), np.array(labels)


def logits_of(weights, images, arch="resnet8", classes=3):
    """Returns the logits of plain Chainer, with a file of weights."""
    network = MODELS[arch](classes)
    chainer.serializers.load_npz(weights, network)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        return network(images).array


def make(root, arch="resnet8", classes=3):
    """Makes ``images`` (22 to train, 7 to validate, of three classes) and ``run`` with a network that tells them apart.

    Args:
        root: folder for both, a ``pathlib.Path``.
        arch: a name in ``models.MODELS``.
        classes: of the network; with another number than 3 there is no ``classes.txt``.

    Returns:
        The network, a plain Chainer link.
    """
    small_images.make(root / "images")
    (root / "small.yaml").write_text(
        f"model: {{arch: {arch}, classes: {classes}}}\n"
        f"data: {{train: {root}/images/train, val: {root}/images/val, size: 16, resize: 16, threads: 1}}\n"
        "optimizer: {lr: 0.1}\ntraining: {batch_size: 2, epochs: 1}\n"
    )
    config = configs.load(root / "small.yaml")
    run = root / "run"
    run.mkdir()
    (run / "config.yaml").write_text(configs.dump(config, source="small.yaml", overrides=[], version="0"))
    np.random.seed(0)
    network = MODELS[arch](classes)
    images = np.random.normal(size=(16, 3, 16, 16)).astype(np.float32)
    images += np.linspace(-2, 2, 16, dtype=np.float32)[:, None, None, None]
    optimizer = chainer.optimizers.MomentumSGD(0.05).setup(network)
    labels = np.arange(16) * classes // 16
    for _ in range(15):
        optimizer.update(lambda: chainer.functions.softmax_cross_entropy(network(images), labels))
    chainer.serializers.save_npz(run / "model.npz", network)
    if classes == 3:
        (run / "classes.txt").write_text("a\nb\nc\n")
    return network
