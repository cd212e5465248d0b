"""A network that classifies images, from a run or from an ONNX file."""

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from mixprec.app.finished.check import in_float32
from mixprec.app.finished.finished_run import class_names, open_network, preprocessing_of
from mixprec.app.finished.validation_images import Files, ValidationImages
from mixprec.base.files import open_regular
from mixprec.base.messages import OneLineError
from mixprec.export.preprocessing import PIXELS, Preprocessing


class PredictionError(OneLineError):
    """A file that cannot be used; the message is one line and names it."""


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A network, and the preprocessing of its images.

    Attributes:
        path: path of its file, for messages.
        preprocessing: :class:`mixprec.export.preprocessing.Preprocessing`, with the names of the classes.
        compute: function from one image, float32 (1, 3, size, size) or pixels, to logits (1, classes).
    """

    path: str
    preprocessing: Preprocessing
    compute: Callable

    def classify(self, paths):
        """Yields a tuple for each image file: seconds to read it, seconds to compute, probabilities (classes,).

        Args:
            paths: list of the paths of the files.

        Raises:
            OneLineError: a file is not an image, or the network does not compute a finite number for each class.
        """
        images = ValidationImages(Files(paths), self.preprocessing, range(len(paths)))
        batches = images.batches(1)
        for _ in paths:
            begin = time.perf_counter()
            pixels, _ = next(batches)
            array = pixels if self.preprocessing.input == PIXELS else images.normalize(pixels)
            read = time.perf_counter()
            logits = self.compute(array)
            done = time.perf_counter()
            if logits.shape != (1, len(self.preprocessing.classes)) or not np.isfinite(logits).all():
                raise PredictionError(f"{self.path}: its output is not a finite number for each of its classes")
            shares = np.exp(logits[0] - logits.max())
            yield read - begin, done - read, shares / shares.sum()


def of_run(folder, weights, networks):
    """Returns the :class:`Classifier` of a results folder, which computes in float32 on the CPU.

    Args:
        folder: path of the results folder.
        weights: file of weights; ``None`` for ``model.npz`` of the folder.
        networks: as for :func:`mixprec.app.finished.finished_run.open_run`.

    Raises:
        OneLineError: the folder holds no run, or one without weights.
    """
    config, network, path = open_network(folder, weights, (), networks)
    preprocessing = preprocessing_of(config.data, class_names(folder, config.model.classes))
    compute = in_float32(network)
    compute(np.zeros((1, 3, preprocessing.size, preprocessing.size), np.float32))  # the first call takes longer
    return Classifier(path, preprocessing, compute)


def of_onnx(path):
    """Returns the :class:`Classifier` of a file of ``mixprec export``, which onnxruntime computes on the CPU.

    Raises:
        OneLineError: it is no such file.
        ModuleNotFoundError: onnxruntime is not installed.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    wanted = "" if path.endswith(".onnx") else "; give MODEL.onnx first, or --run DIR"
    try:
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise PredictionError(f"{path}: {error.strerror}{wanted}") from error
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        metadata = session.get_modelmeta().custom_metadata_map
        inputs, outputs = ([_described(value) for value in f()] for f in (session.get_inputs, session.get_outputs))
    except Exception as error:  # onnxruntime has a class for each of a dozen reasons, all based on Exception
        raise PredictionError(f"{path}: onnxruntime cannot open it: {error}{wanted}") from error
    preprocessing = Preprocessing.read(metadata, path)
    size = preprocessing.size
    images = ("tensor(uint8)", size, size, 3) if preprocessing.input == PIXELS else ("tensor(float)", 3, size, size)
    if inputs != [images]:
        raise PredictionError(f"{path}: its input is not one batch of images as its metadata describes")
    if outputs != [("tensor(float)", len(preprocessing.classes))]:
        raise PredictionError(f"{path}: its output is not one number for each of its classes")
    (name,) = (value.name for value in session.get_inputs())

    def compute(array):
        try:
            (logits,) = session.run(None, {name: array})
        except Exception as error:  # as above: a graph that needs too much memory, for example
            raise PredictionError(f"{path}: onnxruntime cannot compute it: {error}") from error
        return logits

    return Classifier(path, preprocessing, compute)


def _described(value):
    """Returns type and shape of an input or output: one image of the batch, ``None`` if it does not take one alone."""
    batch, *rest = value.shape or [0]
    return (value.type, *rest) if batch == 1 or not isinstance(batch, int) else None
