"""The averages and inverses of K-FAC in a snapshot, with descriptions of their layers."""

import json

import numpy as np
from chainer import backend

from mixprec.backends.transfers import loaded
from mixprec.kfac import triangles
from mixprec.kfac.layers import FilterLayer, ScaleLayer

_KINDS = {"filters": FilterLayer, "scales": ScaleLayer}
_ARRAYS = ("averages", "inverses")


def save(layers, serializer):
    """Saves layers; one triangle of each symmetric matrix.

    Args:
        layers: dict from names to :class:`~mixprec.kfac.layers.Layer`.
        serializer: Chainer serializer.
    """
    text = json.dumps([layer.description for layer in layers.values()])
    serializer("layers", np.frombuffer(text.encode(), np.uint8))
    for number, layer in enumerate(layers.values()):
        own = serializer[str(number)]
        own("steps", layer.steps)
        for name in _ARRAYS:
            for index, array in enumerate(getattr(layer, name)):
                own(f"{name}{index}", triangles.packed(array))


def load(serializer, params):
    """Returns the layers from :func:`save`, on the devices of the parameters; ``None`` if the file has none.

    Args:
        serializer: Chainer serializer.
        params: dict from names to the parameters of the model.

    Raises:
        ValueError: the file has a layer of a parameter that is not in ``params``, or has another shape.
    """
    text = loaded(serializer, "layers")
    if text is None:
        return None
    layers = {}
    for number, description in enumerate(json.loads(np.asarray(text).tobytes().decode())):
        if unknown := [name for name in description["names"] if name not in params]:
            raise ValueError(f"the snapshot has matrices of K-FAC of {unknown[0]}, which the model lacks")
        _check_shape(params[description["names"][0]], description)
        kind = _KINDS[description.pop("kind")]
        layer = kind(**description, like=params[description["names"][0]].array)
        layer.has_inverses = True
        layers[layer.names[0]] = layer
        own = serializer[str(number)]
        layer.steps.fill(int(own("steps", None)))
        for name in _ARRAYS:
            for index, array in enumerate(getattr(layer, name)):
                values = np.asarray(own(f"{name}{index}", None), np.float32)
                triangles.unpack(backend.get_device_from_array(array).send(values), array)
    return layers


def _check_shape(param, description):
    if param.array is None:  # the model's file will initialize it
        return
    if "channels" in description:
        shape = (description["channels"],)
    else:
        filters, *size, channels = description["w_shape"]
        shape = (filters, channels, *size) if param.ndim == 4 or size != [1, 1] else (filters, channels)
    if param.shape != shape:
        raise ValueError(
            f"the snapshot has matrices of K-FAC of {description['names'][0]} with shape {shape}; "
            f"in the model it has {param.shape}"
        )
