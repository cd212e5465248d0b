"""``mixprec evaluate``: the network of a run on validation images, as the monitor's page evaluates it."""

import json
import os

from mixprec.app import config as configs
from mixprec.app.commands.command_line import add_run, failed, parser_of, progress_bar, whole
from mixprec.app.finished import check, predictions
from mixprec.app.finished.finished_run import RunError, newest_run, open_config, open_run, some
from mixprec.app.parts import gpus
from mixprec.base import files
from mixprec.base.messages import OneLineError, counted, printable, reworded
from mixprec.base.text_table import aligned
from mixprec.recipes.models import MODELS

_CONFUSIONS = 10  # printed; the JSON has 100
_STANDARD_OUTPUT = "-"


def main(argv, networks=MODELS):
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.
        networks: as for :func:`mixprec.app.commands.train.main`.

    Returns:
        int: exit code: 0, or 2 for bad input or a JSON file that cannot be written; one line on standard error says
        why, and nothing is written.
    """
    arguments = _parse(argv)
    try:
        _run(arguments, networks)
    except (OneLineError, MemoryError) as error:
        return failed(error)
    except OSError as error:
        return failed(f"{error.filename or arguments.run}: {error.strerror}")
    return 0


def _parse(argv):
    description = "Evaluates the network of a run on its validation images, in float32."
    parser = parser_of("evaluate", description, "%(prog)s --run DIR [OPTION ...]")
    add_run(parser)
    parser.add_path("--weights", "FILE", "file of weights, or a snapshot; default: model.npz")
    parser.add_argument("--images", type=whole(1), metavar="N", help="evaluate only N, drawn at random; default: all")
    parser.add_argument("--device", help="auto, cpu, gpu or gpu:N; default: the device of the run")
    parser.add_path("--json", "FILE", "write all numbers; - prints them instead of the tables")
    parser.add_repeated("--set", "KEY=VALUE", "override a key of the run's config, such as data.val=DIR")
    arguments = parser.parse_args(argv)
    arguments.run = newest_run(arguments.run)
    return arguments


def _run(arguments, networks):
    prints_json = arguments.json == _STANDARD_OUTPUT
    target = os.path.realpath(arguments.json) if arguments.json and not prints_json else None
    if target:  # tried before anything is computed
        with _naming(arguments.json):
            files.check_writable(target)
        if os.path.exists(target) and not target.endswith(".json"):
            raise RunError(f"{arguments.json}: it exists, and is not named like a JSON file; wanted: a FILE.json, or -")
    device = _device(arguments, networks)
    run = open_run(arguments.run, arguments.weights, arguments.set, networks)
    indices = some(run.val, arguments.images)
    with progress_bar("evaluating", len(indices)) as bar:
        found = predictions.evaluate(run, indices, check.in_float32(run.network, device), bar.update)
    text = json.dumps({"file": target and printable(os.path.basename(target)), **found})
    where = "the CPU" if device == "@numpy" else device.replace("@cupy:", "GPU ")
    lines = [*_lines(found), f"{found['weights']} in float32 on {where}: {_summary(found)}"]
    print(text if prints_json else "\n".join(lines))
    if target:  # last, so that a disk that is full by now does not cost the tables, too
        with _naming(arguments.json):
            files.write_text(target, f"{text}\n")


def _naming(file):
    return reworded(lambda reason: RunError(f"{file}: {reason}"))


def _device(arguments, networks):
    config = open_config(arguments.run, arguments.set, networks)
    try:
        return gpus.resolve_device(arguments.device or config.training.device)[0]
    except ValueError as error:
        location = configs.location("training.device", arguments.set, arguments.run)
        where = "--" if arguments.device else f"{location}: training."
        raise RunError(f"{where}{error}") from error


def _lines(found):
    """Returns the lines of both tables: a row for each class, and one for each of the most frequent confusions."""
    names = found["classes"]
    rows = [("class", "images", "correct", "accuracy", "loss")]
    for name, (images, correct, loss) in zip(names, found["per_class"], strict=True):
        accuracy = _percent(correct / images) if images else "-"
        rows.append((name, str(images), str(correct), accuracy, _loss(loss) if images else "-"))
    lines = [*aligned(rows, right=(1, 2, 3, 4)), ""]
    confused = found["confused"][:_CONFUSIONS]
    if confused:
        rows = [(names[true], names[wrong], str(count)) for true, wrong, count in confused]
        lines += [*aligned([("class", "taken for", "images"), *rows], right=(2,)), ""]
    return lines


def _summary(found):
    top5 = "" if found["top5"] is None else f", top-5 {_percent(found['top5'])}"
    return f"{counted(found['images'], 'image')}, top-1 {_percent(found['top1'])}{top5}, loss {_loss(found['loss'])}"


def _percent(share):
    return f"{100 * share:.2f} %"


def _loss(value):
    return "not finite" if value is None else f"{value:.4f}"
