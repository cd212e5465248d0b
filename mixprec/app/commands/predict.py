"""The command behind ``scripts/predict.py``: what an exported network says about images."""

import sys
import time

import numpy as np

from mixprec.app.commands.command_line import Parser, one_line, path
from mixprec.base.files import open_regular
from mixprec.base.installation import install_hint
from mixprec.base.messages import OneLineError
from mixprec.base.standard_streams import PrintError, ReaderGone, say
from mixprec.data.data_error import printable
from mixprec.export.preprocessing import PIXELS, Preprocessing

_TOP = 5


class PredictionError(OneLineError):
    """A file that cannot be used; the message is one line and names it."""


def main(argv):
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        int: exit code: 0; 1 if standard output cannot be written; 2 for bad input. One line on standard error says why,
        but for an output that nobody reads any more.
    """
    parser = Parser(description="Says what is on images, by an ONNX file of scripts/export.py.", allow_abbrev=False)
    parser.add_argument("model", metavar="MODEL.onnx", type=path("a file"))
    parser.add_argument("images", metavar="IMAGE", nargs="+", type=path("a file"))
    arguments = parser.parse_args(argv)
    try:
        for line in _lines(arguments.model, arguments.images):
            say(line)
    except ReaderGone:
        return 1
    except PrintError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (OneLineError, MemoryError) as error:
        print(f"error: {one_line(error) or 'memory is full'}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"error: {error.name} is not installed: {install_hint('export')}", file=sys.stderr)
        return 2
    return 0


def _lines(file, paths):
    from mixprec.app.finished.validation_images import Files, ValidationImages

    session, preprocessing = _open(file)
    images = ValidationImages(Files(paths), preprocessing, range(len(paths)))
    batches = images.batches(1)
    for image in paths:
        begin = time.perf_counter()
        pixels, _ = next(batches)
        array = pixels if preprocessing.input == PIXELS else images.normalize(pixels)
        read = time.perf_counter()
        logits = _logits(session, array, file, len(preprocessing.classes))
        done = time.perf_counter()
        yield f"{printable(image)}: {1e3 * (read - begin):.1f} ms to read, {1e3 * (done - read):.1f} ms to compute"
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        for index in np.argsort(-shares, kind="stable")[:_TOP]:
            yield f"  {100 * shares[index]:5.1f} %  {one_line(preprocessing.classes[index])}"


def _open(path):
    """Returns a session of onnxruntime, and the preprocessing that the file asks for."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise PredictionError(f"{path}: {error.strerror}") from error
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        metadata = session.get_modelmeta().custom_metadata_map
        inputs, outputs = ([_described(value) for value in f()] for f in (session.get_inputs, session.get_outputs))
    except Exception as error:  # onnxruntime has a class for each of a dozen reasons, all of Exception
        raise PredictionError(f"{path}: onnxruntime cannot open it: {error}") from error
    preprocessing = Preprocessing.read(metadata, path)
    size = preprocessing.size
    images = ("tensor(uint8)", size, size, 3) if preprocessing.input == PIXELS else ("tensor(float)", 3, size, size)
    if inputs != [images]:
        raise PredictionError(f"{path}: it takes something else than one batch of images as its metadata describe them")
    if outputs != [("tensor(float)", len(preprocessing.classes))]:
        raise PredictionError(f"{path}: it has other outputs than a number for each of its classes")
    return session, preprocessing


def _described(value):
    """Returns type and shape of an input or output: one image of the batch, ``None`` if it does not take one alone."""
    batch, *rest = value.shape or [0]
    return (value.type, *rest) if batch == 1 or not isinstance(batch, int) else None


def _logits(session, array, path, classes):
    try:
        (logits,) = session.run(None, {session.get_inputs()[0].name: array})
    except Exception as error:  # as above: a graph that wants more memory than there is, for example
        raise PredictionError(f"{path}: onnxruntime cannot compute it: {error}") from error
    if logits.shape != (1, classes) or not np.isfinite(logits).all():
        raise PredictionError(f"{path}: its output is not a finite number for each of its classes")
    return logits[0]
