"""The command behind ``scripts/predict.py``: what an exported network says about images."""

import sys
import time

import numpy as np

from mixprec.command_line import Parser, one_line, path
from mixprec.data.data_error import printable
from mixprec.export.preprocessing import PIXELS, Preprocessing
from mixprec.messages import OneLineError

_TOP = 5


class PredictionError(OneLineError):
    """A file that cannot be used; the message is one line and names it."""


def main(argv):
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        int: exit code: 0, or 2 for bad input, one line on standard error.
    """
    parser = Parser(description="Says what is on images, by an ONNX file of scripts/export.py.", allow_abbrev=False)
    parser.add_argument("model", metavar="MODEL.onnx", type=path("a file"))
    parser.add_argument("images", metavar="IMAGE", nargs="+", type=path("a file"))
    arguments = parser.parse_args(argv)
    try:
        for line in _lines(arguments.model, arguments.images):
            print(line, flush=True)
    except OneLineError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"error: {error.name} is not installed: pip install -e '.[export]'", file=sys.stderr)
        return 2
    return 0


def _lines(file, paths):
    from mixprec.export_run.validation_images import Files, ValidationImages

    session, preprocessing = _open(file)
    (name,) = (value.name for value in session.get_inputs())
    images = ValidationImages(Files(paths), preprocessing, range(len(paths)))
    batches = images.batches(1)
    for image in paths:
        begin = time.perf_counter()
        pixels, _ = next(batches)
        array = pixels if preprocessing.input == PIXELS else images.normalize(pixels)
        read = time.perf_counter()
        (logits,) = session.run(None, {name: array})[0]
        done = time.perf_counter()
        yield f"{printable(image)}: {1e3 * (read - begin):.1f} ms to read, {1e3 * (done - read):.1f} ms to compute"
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        for index in np.argsort(-shares, kind="stable")[:_TOP]:
            yield f"  {100 * shares[index]:5.1f} %  {printable(preprocessing.classes[index])}"


def _open(path):
    """Returns a session of onnxruntime, and the preprocessing that the file asks for."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        with open(path, "rb") as file:
            data = file.read()
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except OSError as error:
        raise PredictionError(f"{path}: {error.strerror}") from error
    except Exception as error:  # onnxruntime has a class for each of a dozen reasons, all of Exception
        raise PredictionError(f"{path}: onnxruntime cannot open it: {error}") from error
    preprocessing = Preprocessing.read(session.get_modelmeta().custom_metadata_map, path)
    outputs = session.get_outputs()
    if len(outputs) != 1 or outputs[0].shape[1:] != [len(preprocessing.classes)]:
        raise PredictionError(f"{path}: it has other outputs than a number for each of its classes")
    return session, preprocessing
