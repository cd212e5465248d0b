"""The task ``inside``: the output of each layer of a run's network for an uploaded image."""

import contextlib

import chainer
import numpy as np

from mixprec.app.finished.finished_run import class_names, open_network, preprocessing_of
from mixprec.app.finished.validation_images import ValidationImages
from mixprec.app.monitor.work import grids
from mixprec.app.monitor.work.opened import weights_of
from mixprec.app.monitor.work.seen_layers import SeenLayers
from mixprec.app.monitor.work.uploaded_image import Upload
from mixprec.recipes.models import MODELS
from mixprec.training.gradient_counts import summarize

_TOP, _PICTURES = 5, 120


def look_inside(request, progress):
    """Runs the plain network of a run, in float32 on the CPU, on one image.

    Args:
        request: with ``run``, ``weights``, ``overrides``, and ``image``, an image file in base64.
        progress: called with the share that is done and a text.

    Returns:
        dict: ``top``, the five largest shares as lists of class and share; ``layers``, see :func:`layer`; ``weights``,
        dicts with ``name``, ``shape`` and ``png`` of all parameters W. Only the first 120 layers and the first 120
        weights have a picture; ``png`` of others is ``None``.

    Raises:
        OneLineError: the image is bad, or the folder holds no run or no intact weights.
    """
    upload = Upload(request.image)
    progress(0.1, "the image is good")
    weights = weights_of(request.run, request.weights)
    config, network, _ = open_network(request.run, weights, request.overrides, MODELS)
    names = class_names(request.run, config.model.classes)
    images = ValidationImages(upload, preprocessing_of(config.data, names), np.arange(1))
    (pixels, _) = next(iter(images.batches(1)))
    progress(0.3, "the network is there")
    layers = []

    def see(name, kind, array):
        layers.append(layer(name, kind, array, len(layers) < _PICTURES))

    with contextlib.ExitStack() as inside:
        inside.enter_context(chainer.using_config("train", False))
        inside.enter_context(chainer.no_backprop_mode())
        inside.enter_context(np.errstate(all="ignore"))  # for weights that are not finite
        inside.enter_context(SeenLayers(network, see))
        logits = network(images.normalize(pixels)).array[0].astype(np.float64)
    progress(0.8, f"{len(layers)} layers")
    return {"top": _top(logits, names), "layers": layers, "weights": _weights(network)}


def layer(name, kind, array, is_pictured):
    """Returns the summary of a layer's output.

    Args:
        name: name of the layer.
        kind: name of its class.
        array: floating point, (1, C, H, W) or (1, ...).
        is_pictured: whether there is a picture.

    Returns:
        dict: ``name``, ``type``, ``shape``; ``minimum``, ``maximum``, ``mean``, ``std``; the shares ``zeros`` (exact
        zeros), ``fp16_zeros`` (other values that FP16 would flush to zero), ``subnormals`` (of FP16) and ``overflows``
        (values that FP16 would make infinite, and values that are not finite); ``png``, the grid of channels, or the
        strip of a vector.
    """
    values = array.astype(np.float64)
    with np.errstate(all="ignore"):
        numbers = {"minimum": values.min(), "maximum": values.max(), "mean": values.mean(), "std": values.std()}
        counts = summarize([(f"/{kind}/output", array.astype(np.float32))], 1.0).total
    png = None
    if is_pictured:
        png = grids.channels(array[0]) if array.ndim == 4 else grids.bars(array[0])
    return {
        "name": name,
        "type": kind,
        "shape": list(array.shape),
        **{key: float(value) for key, value in numbers.items()},
        "zeros": counts.zeros / counts.values,
        "fp16_zeros": counts.unscaled.flushed / counts.values,
        "subnormals": counts.unscaled.subnormal / counts.values,
        "overflows": counts.unscaled.overflow / counts.values,
        "png": png,
    }


def _top(logits, names):
    with np.errstate(all="ignore"):
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
    order = np.argsort(-logits, kind="stable")[:_TOP]
    return [[names[index], float(shares[index])] for index in order.tolist()]


def _weights(network):
    """The filters and matrices of the links, in the order in which these were added."""
    order = {path: index for index, (path, _) in enumerate(network.namedlinks())}
    parameters = sorted(network.namedparams(), key=lambda pair: (order[pair[0].rpartition("/")[0] or "/"], pair[0]))
    found = []
    for path, parameter in parameters:
        if parameter.name == "W" and parameter.array is not None and parameter.ndim >= 2:
            picture = grids.filters(parameter.array) if len(found) < _PICTURES else None
            found.append({"name": path.strip("/"), "shape": list(parameter.shape), "png": picture})
    return found
