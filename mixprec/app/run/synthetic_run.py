"""Training by a config on a batch of random numbers on the device: no loader, no disk."""

import os

from mixprec.app import config as configs
from mixprec.app.parts import images
from mixprec.app.parts.model import build_model
from mixprec.app.parts.trainer import build_trainer
from mixprec.recipes import config_path

_IMAGES = 1281167  # as in ImageNet, so that epochs and learning rates are the same


def load(name, *, arch=None, batch=None, size=None, overrides=()):
    """Loads a config for synthetic data.

    Args:
        name: name of a config, as for :func:`mixprec.recipes.config_path`; ``"fp32.yaml"`` is ``"resnet50/fp32.yaml"``.
        arch: name of the network; ``None`` takes the config's.
        batch: images in a batch; ``None`` takes the config's.
        size: height and width of an image in pixels; ``None`` takes the config's.
        overrides: list of ``"section.key=value"``, which take precedence over everything else.

    Returns:
        :class:`mixprec.app.config.Config`

    Raises:
        mixprec.app.config.ConfigError: the config cannot be used.
    """
    settings = ["data.format=synthetic", "data.train=null", "data.val=null", f"data.synthetic_images={_IMAGES}"]
    settings += ["snapshot.best=false"]
    if arch is not None:
        settings += [f"model.arch={arch}"]
    if batch is not None:
        settings += [f"training.batch_size={batch}"]
    if size is not None:
        settings += [f"data.size={size}", "data.val_size=null", f"data.resize={size}"]
    resnet50 = config_path(f"resnet50/{name}")
    return configs.load(resnet50 if os.path.isfile(resnet50) else config_path(name), [*settings, *overrides])


def updater_of(config, network, specifier):
    """Builds the updater that the training command would build.

    Args:
        config: from :func:`load`.
        network: callable that takes the number of classes and returns a Chainer link from images to logits.
        specifier: device specifier.

    Returns:
        :class:`mixprec.training.updater.TimedUpdater`, or a
        :class:`~mixprec.training.updater.CapturedUpdater` if the config says so: ``update()`` runs one step.
    """
    train, val = images.open_sources(config)
    _, optimizer, _ = build_model(config, network, specifier)
    return build_trainer(config, optimizer, train, val, out=".").updater
