"""``mixprec predict``: classifies images by the network of a run, or by an exported one."""

import numpy as np

from mixprec.app.commands.command_line import add_run, failed, not_installed, one_line, parser_of
from mixprec.app.finished import classifier
from mixprec.app.finished.finished_run import newest_run
from mixprec.base.messages import OneLineError, printable
from mixprec.base.standard_streams import PrintError, ReaderGone, say
from mixprec.recipes.models import MODELS

_TOP = 5


def main(argv, networks=MODELS):
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.
        networks: as for :func:`mixprec.app.commands.train.main`.

    Returns:
        int: exit code: 0; 1 if standard output cannot be written; 2 for bad input. One line on standard error says why,
        unless the reader of the output has gone.
    """
    arguments = _parse(argv)
    try:
        for line in _lines(arguments, networks):
            say(line)
    except ReaderGone:
        return 1
    except PrintError as error:
        return failed(error, 1)
    except (OneLineError, MemoryError) as error:
        return failed(error)
    except ModuleNotFoundError as error:
        return not_installed(error, "export")
    return 0


def _parse(argv):
    usage = "%(prog)s [-h] (MODEL.onnx | --run DIR [--weights FILE]) IMAGE [IMAGE ...]"
    parser = parser_of("predict", "Prints the five most likely classes of images.", usage)
    parser.add_path("files", "MODEL.onnx, IMAGE", "ONNX file of mixprec export; images", "a file", nargs="*")
    add_run(parser, required=False)
    parser.add_path("--weights", "FILE", "file of weights; default: model.npz of the run")
    arguments = parser.parse_args(argv)
    exported = [file for file in arguments.files if file.endswith(".onnx")]
    if arguments.run is None:
        if arguments.weights is not None:
            parser.error("--weights needs --run DIR, the run of the weights")
        if len(arguments.files) < 2 and not exported:
            parser.error("no network; give MODEL.onnx or --run DIR, and IMAGE")
        arguments.model = arguments.files.pop(0)
    elif exported:
        parser.error(f"{exported[0]} and --run: two networks; give one of them")
    if not arguments.files:
        parser.error("no image; give IMAGE, one or more image files")
    return arguments


def _lines(arguments, networks):
    if arguments.run is None:
        network = classifier.of_onnx(arguments.model)
    else:
        network = classifier.of_run(newest_run(arguments.run), arguments.weights, networks)
    for image, (read, computed, shares) in zip(arguments.files, network.classify(arguments.files), strict=True):
        yield f"{printable(image)}: {1e3 * read:.1f} ms to read, {1e3 * computed:.1f} ms to compute"
        for index in np.argsort(-shares, kind="stable")[:_TOP]:
            yield f"  {100 * shares[index]:5.1f} %  {one_line(network.preprocessing.classes[index])}"
