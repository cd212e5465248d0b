"""Preprocessing of images for a network: as metadata of an ONNX file, and as nodes at the beginning of its graph.

ONNX is imported where a file is made: the monitor evaluates a run without it.
"""

import copy
import dataclasses
import json

import numpy as np

from mixprec.base.bounds import HALF, SIDE
from mixprec.base.messages import OneLineError

FLOAT, PIXELS = "float32 NCHW", "uint8 NHWC"


class NotAnImageNetwork(OneLineError):
    """A file without a description of the preprocessing; the message is one line and names the file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The preprocessing from an image file to the input of a network.

    Attributes:
        resize (int): the shorter side, in pixels, before the centre is cropped.
        size (int): height and width of the crop.
        mean (tuple of float): subtracted from red, green and blue, which are 0 to 255.
        std (tuple of float): divides them after that.
        classes (tuple of str): names, in the order of the outputs.
        input (str): ``"float32 NCHW"``: normalized; or ``"uint8 NHWC"``: pixels, which the graph normalizes.
    """

    resize: int
    size: int
    mean: tuple
    std: tuple
    classes: tuple
    input: str = FLOAT

    def write(self, model):
        """Writes the attributes into the metadata of a model: each is JSON, with its name as the key."""
        from onnx import helper

        helper.set_model_props(model, {name: json.dumps(value) for name, value in dataclasses.asdict(self).items()})

    @classmethod
    def read(cls, metadata, path):
        """Returns the preprocessing that a file describes.

        Args:
            metadata: dict of str.
            path: path of the file, for messages.

        Raises:
            NotAnImageNetwork: it has none, or it is invalid.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        missing = [name for name in names if name not in metadata]
        if missing:
            wanted = "wanted: a file of mixprec export"
            raise NotAnImageNetwork(f"{path}: no '{missing[0]}' in its metadata; {wanted}")
        values = {}
        for name in names:
            try:
                values[name] = json.loads(metadata[name])
            except (ValueError, RecursionError) as error:
                raise NotAnImageNetwork(f"{path}: '{name}' in its metadata is not JSON") from error
        wrong = [name for name in names if not _IS_VALID[name](values[name])]
        if wrong:
            raise NotAnImageNetwork(f"{path}: '{wrong[0]}' in its metadata is not as mixprec export writes it")
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _is_size(value):
    return type(value) is int and 0 < value <= SIDE


def _are_numbers(value, lowest):
    return isinstance(value, list) and len(value) == 3 and all(_is_number(each, lowest) for each in value)


def _is_number(value, lowest):
    return type(value) in (int, float) and lowest <= value <= HALF  # not NaN, which JSON may have


def _are_names(value):
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


_IS_VALID = {  # the same bounds as in a config
    "resize": _is_size,
    "size": _is_size,
    "mean": lambda value: _are_numbers(value, -HALF),
    "std": lambda value: _are_numbers(value, 0.001),
    "classes": _are_names,
    "input": lambda value: value in (FLOAT, PIXELS),
}


def take_pixels(model, preprocessing):
    """Returns a model that takes pixels: uint8 (N, size, size, 3), red, green and blue.

    (pixel - mean) / std is computed in float32 and rounded twice, so that inputs differ from training in their last
    bits.

    Args:
        model: :class:`onnx.ModelProto` with one input, normalized images (N, 3, size, size); it stays as it is.
        preprocessing: :class:`Preprocessing`.
    """
    from onnx import TensorProto, helper, numpy_helper

    from mixprec.export.onnx_file import finished

    result = copy.deepcopy(model)
    graph = result.graph
    (images,) = graph.input
    name, dims = images.name, images.type.tensor_type.shape.dim
    inner = f"{name}_normalized"
    for node in graph.node:
        node.input[:] = [inner if each == name else each for each in node.input]
    pixels = helper.make_tensor_value_info(
        name, TensorProto.UINT8, [dims[0].dim_param, dims[2].dim_value, dims[3].dim_value, dims[1].dim_value]
    )
    constants = {"mean": preprocessing.mean, "std": preprocessing.std}
    for each, values in constants.items():
        graph.initializer.append(numpy_helper.from_array(np.array(values, np.float32), f"{name}_{each}"))
    nodes = [
        helper.make_node("Cast", [name], [f"{name}_float"], to=TensorProto.FLOAT),
        helper.make_node("Sub", [f"{name}_float", f"{name}_mean"], [f"{name}_centred"]),
        helper.make_node("Div", [f"{name}_centred", f"{name}_std"], [f"{name}_scaled"]),
        helper.make_node("Transpose", [f"{name}_scaled"], [inner], perm=[0, 3, 1, 2]),
    ]
    for node in nodes:
        node.name = node.output[0]
    nodes += graph.node
    del graph.input[:], graph.node[:]
    graph.input.append(pixels)
    graph.node.extend(nodes)
    dataclasses.replace(preprocessing, input=PIXELS).write(result)
    return finished(result)
