"""The network that ``model.arch`` names: one that comes with mixprec, or the user's own by its import path.

The training command imports it at first, and tries it before the images are scanned.
"""

import chainer
import chainer.links as L
import numpy as np

from mixprec.app.config import ConfigError
from mixprec.app.config.config_error import shown
from mixprec.app.parts import user_code
from mixprec.base.declaration import IMPORT_PATH
from mixprec.rewrite.example import call_on_example, without_trace

EXAMPLE = 2  # images on which a network is tried, on the CPU

_WANTED = "a function or class that is called with the number of classes and makes a chainer.Link"


def find(settings, networks):
    """Returns the network of a config; the user's own is imported.

    Args:
        settings: :class:`mixprec.app.config.schema.Model`.
        networks: the named networks: a dict to callables that take the number of classes.

    Returns:
        callable that takes the number of classes.

    Raises:
        ConfigError: there is none, or it cannot be called in this way.
    """
    if settings.arch in networks:
        return networks[settings.arch]
    network = user_code.load(_named(settings), settings.arch, sorted(networks))
    if isinstance(network, chainer.Link):
        raise ConfigError(_named(settings), f"found a {type(network).__name__} instance; wanted: {_WANTED}")
    if not callable(network):
        raise ConfigError(_named(settings), f"found {type(network).__name__}; wanted: {_WANTED}")
    attribute = settings.arch.partition(":")[2]
    called = f"the number of classes, {attribute}({settings.classes})"
    user_code.check_call(_named(settings), network, called, settings.classes)
    return network


def make(config, network, keywords):
    """Calls a network with the number of classes; a network of the user's own is checked on some images.

    Args:
        config: :class:`mixprec.app.config.Config`.
        network: from :func:`find`.
        keywords: further arguments.

    Returns:
        chainer.Link: from images (N, 3, H, W) to logits (N, classes), on the CPU.

    Raises:
        ConfigError: the user's network raised an exception, has no parameters, or returned something else.
    """
    settings, data = config.model, config.data
    if not IMPORT_PATH.holds(settings.arch):
        return network(settings.classes, **keywords)
    called = f"called with {', '.join([str(settings.classes), *(f'{key}={value}' for key, value in keywords.items())])}"
    made = user_code.call(_named(settings), called, network, settings.classes, **keywords)
    if not isinstance(made, chainer.Link) or isinstance(made, L.Classifier):
        wanted = "wanted: a chainer.Link from images to logits, without the loss"
        raise ConfigError(_named(settings), f"{called} it returns {type(made).__name__}; {wanted}")
    if not any(True for _ in made.params()):
        raise ConfigError(_named(settings), f"{called} it returns a {type(made).__name__} without parameters to train")
    sizes = dict.fromkeys((data.size, *config.progressive.sizes))
    for train, size in (*((True, size) for size in sizes), (False, data.val_size or data.size)):
        images = np.zeros((EXAMPLE, 3, size, size), np.float32)
        called = f"in {'training' if train else 'evaluation'} on images {images.shape} float32"
        with without_trace(made):
            logits = user_code.call(_named(settings), called, call_on_example, made, images, train=train)
        if not _are_logits(logits, settings.classes):
            wanted = f"wanted: logits, a chainer.Variable {(EXAMPLE, settings.classes)} in floating point"
            raise ConfigError(_named(settings), f"{called} it returns {user_code.kind(logits)}; {wanted}")
    return made


def _are_logits(logits, classes):
    return (
        isinstance(logits, chainer.Variable) and logits.shape == (EXAMPLE, classes) and logits.array.dtype.kind == "f"
    )


def _named(settings):
    return f"'model.arch' is {shown(settings.arch)}"
