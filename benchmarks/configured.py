"""Training as a config says, on a batch of random numbers that lies on the device: no loader, no disk."""

import pathlib

from mixprec.app import config as configs
from mixprec.app.parts import images
from mixprec.app.parts.model import build_model
from mixprec.app.parts.trainer import build_trainer

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "configs" / "resnet50"
_IMAGES = 1281167  # of ImageNet: epochs, and with them learning rates, are as long as they would be


def load(name, *, arch, batch, size, overrides=()):
    """Loads a config for synthetic data.

    Args:
        name: of a file in ``configs/resnet50``, such as ``"fp32.yaml"``, or a path.
        arch: name of the network.
        batch: images in a batch.
        size: height and width of an image in pixels.
        overrides: list of ``"section.key=value"``, which win over all else.

    Returns:
        :class:`mixprec.app.config.Config`

    Raises:
        mixprec.app.config.ConfigError: the config cannot be used.
    """
    synthetic = ["data.format=synthetic", "data.train=null", "data.val=null", f"data.synthetic_images={_IMAGES}"]
    synthetic += ["snapshot.best=false", f"data.size={size}", "data.val_size=null", f"data.resize={size}"]
    own = [f"model.arch={arch}", "model.classes=1000", f"training.batch_size={batch}"]
    return configs.load(FOLDER / name, [*synthetic, *own, *overrides])


def updater_of(config, network, specifier):
    """Builds what the training script would build.

    Args:
        config: from :func:`load`.
        network: callable that takes the number of classes and returns a Chainer link from images to logits.
        specifier: of the device.

    Returns:
        :class:`mixprec.training.updater.TimedUpdater`, or a
        :class:`~mixprec.training.updater.CapturedUpdater` if the config says so: ``update()`` runs one step.
    """
    train, val = images.open_sources(config)
    _, optimizer, _ = build_model(config, network, specifier)
    return build_trainer(config, optimizer, train, val, out=".").updater
