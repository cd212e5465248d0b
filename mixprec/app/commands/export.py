"""``mixprec export``: the network of a run as ONNX files, checked before they are handed over."""

import contextlib

import numpy as np

from mixprec.app.commands.command_line import add_run, failed, not_installed, one_line, parser_of, progress_bar, whole
from mixprec.app.finished import out_folder
from mixprec.app.finished.finished_run import RunError, newest_run, open_run, open_source, some
from mixprec.app.parts import environment
from mixprec.base import VERSION
from mixprec.base.messages import OneLineError
from mixprec.base.process_limits import number_of_threads
from mixprec.base.standard_streams import PrintError, ReaderGone, say
from mixprec.export import ExportError
from mixprec.recipes.models import MODELS

_FEWEST = 16  # images to calibrate with, a quarter of which is held out


def main(argv, networks=MODELS):
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.
        networks: as for :func:`mixprec.app.commands.train.main`.

    Returns:
        int: exit code. 0: all files are good. 1: they are written, but one is not as accurate as the limits demand and
        has another name, or the table could not be printed. 2: bad input, or the files could not be written; the folder
        is as it was. 130: Ctrl-C. With 1 and 2 one line on standard error says why.
    """
    arguments = _parse(argv)
    try:
        return _run(arguments, networks)
    except PrintError as error:
        return failed(f"{error}; the files are written", 1)
    except (OneLineError, MemoryError) as error:
        return failed(error)
    except ModuleNotFoundError as error:
        return not_installed(error, "export")
    except OSError as error:
        return failed(f"{error.filename or arguments.out}: {error.strerror or error}")


def _parse(argv):
    description = "Writes the network of a run as ONNX files, and checks them on validation images."
    parser = parser_of("export", description, "%(prog)s --run DIR --out DIR [OPTION ...]")
    add_run(parser)
    parser.add_path("--out", "DIR", "folder for the files", required=True)
    parser.add_path("--weights", "FILE", "file of weights; default: model.npz")
    parser.add_argument("--fp16", action="store_true", help="also write model_fp16.onnx, with inputs in float32")
    parser.add_argument("--int8", action="store_true", help="also write model_int8.onnx, with Q/DQ nodes")
    parser.add_argument(
        "--for", dest="target", choices=("tensorrt", "cpu"), default="cpu", help="target of INT8; default: cpu"
    )
    parser.add_argument(
        "--images", type=whole(_FEWEST), default=512, metavar="N", help="images that calibrate INT8; default: 512"
    )
    parser.add_argument("--half-ends", action="store_true", help="INT8: end layers in float16 (cpu: float32)")
    parser.add_argument("--preprocess", action="store_true", help="the files take pixels, uint8 (N, H, W, 3)")
    parser.add_argument("--val-images", type=whole(1), metavar="N", help="check on N validation images; default: all")
    parser.add_repeated("--set", "KEY=VALUE", "override a key of the run's config")
    arguments = parser.parse_args(argv)
    if not arguments.int8:
        given = {"--for tensorrt": arguments.target == "tensorrt", "--half-ends": arguments.half_ends}
        for option in filter(given.get, given):
            parser.error(f"{option} is about INT8: give --int8, too")
    arguments.run = newest_run(arguments.run)
    return arguments


def _run(arguments, networks):
    import onnx
    import onnxruntime

    with out_folder.tried(arguments.out):
        run = open_run(arguments.run, arguments.weights, arguments.set, networks)
        train = open_source(run.config, "train") if arguments.int8 else None
        models, about = _models(run, train, arguments)
        candidates = [_candidate(kind, model, arguments, run.config.export) for kind, model in models.items()]
        del models
        images = _images(run, run.val, arguments.val_images)
        from mixprec.app.finished import check, report

        with progress_bar("checking", len(images)) as bar:
            rows = check.compare(run.network, candidates, images, bar.update)
        bad = [(row.name, row.is_finite) for row in rows if not row.is_good]
        for row in rows[1:]:
            row.name = row.name if row.is_good else out_folder.failed(row.name)
        guessed = float(np.bincount(images.labels).max() / len(images))
        record = report.as_json(
            rows,
            run=arguments.run,
            weights=run.weights,
            images=len(images),
            guessed=guessed,
            threads=number_of_threads(),
            cpu=environment.cpu(),
            versions={"mixprec": VERSION, "onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__},
            **about,
        )
        contents = {row.name: each.data for row, each in zip(rows[1:], candidates, strict=True)}
        contents |= {out_folder.PICTURE: report.picture(rows), out_folder.JSON: record.encode()}
        out_folder.replace(arguments.out, contents)
    lines = report.table(rows, len(images), guessed)
    if about.get("int8", {}).get("reduce_range"):
        lines.append("weights of 7 bits, as this processor has no VNNI")
    with contextlib.suppress(ReaderGone):  # the files are written, even if a reader has taken the first lines only
        say("\n".join([*lines, f"files, {out_folder.JSON} and {out_folder.PICTURE}: {one_line(arguments.out)}"]))
    return failed(_complaint(bad), 1) if bad else 0


def _complaint(bad):
    """Returns one line about pairs of a name and whether all logits are finite."""
    reasons = {True: "less accurate than the limits allow", False: "logits that are not finite"}
    names = {each: [name for name, is_finite in bad if is_finite == each] for each in reasons}
    return "; ".join(f"{', '.join(names[each])}: {reason}" for each, reason in reasons.items() if names[each])


def _models(run, train, arguments):
    """Returns ``{kind: ModelProto}`` and what is to be said of the quantization."""
    from mixprec.export import onnx as export_onnx
    from mixprec.export.preprocessing import take_pixels

    size = run.preprocessing.size
    example = np.zeros((2, 3, size, size), np.float32)
    example += np.random.RandomState(0).normal(size=example.shape)
    exported = export_onnx(run.network, example, inputs=("images",), outputs=("logits",))
    if len(exported.graph.output) != 1:
        raise ExportError(f"the network has {len(exported.graph.output)} outputs; wanted: logits")
    run.preprocessing.write(exported)
    models, about = {"float32": exported}, {}
    if arguments.fp16:
        from mixprec.export.onnx_file import to_half

        models["float16"] = to_half(exported)
    if arguments.int8:
        models["int8"], about["int8"] = _quantized(exported, run, train, arguments)
    if arguments.preprocess:
        models = {kind: take_pixels(model, run.preprocessing) for kind, model in models.items()}
    return models, about


def _quantized(exported, run, train, arguments):
    from mixprec.export.int8 import quantize

    images = _images(run, train, arguments.images)
    if len(images) < _FEWEST:
        raise RunError(f"{run.config.data.train}: {len(images)} images; INT8 needs at least {_FEWEST} to be calibrated")

    def batches():
        for pixels, _ in images.batches(8):
            yield images.normalize(pixels)

    with progress_bar("calibrating", 3 * len(images)) as bar:

        def progress(step, done):
            bar.set_postfix_str(step)
            bar.update(1)

        model, about = quantize(
            exported, batches, target=arguments.target, half_ends=arguments.half_ends, progress=progress
        )
    return model, {"target": arguments.target, **about}


def _images(run, source, count):
    from mixprec.app.finished.validation_images import ValidationImages

    return ValidationImages(source, run.preprocessing, some(source, count), run.config.data.threads)


def _candidate(kind, model, arguments, limits):
    from mixprec.app.finished.check import Candidate
    from mixprec.export.sessions import session

    name = model.graph.input[0].name
    is_tensorrts = kind == "int8" and arguments.target == "tensorrt"
    computer = session(model, qdq_in_float=is_tensorrts)  # the integer kernels of a CPU are not TensorRT's

    def run(array):
        return computer.run(None, {name: array})[0]

    limit = {"float32": None, "float16": limits.max_drop_float16, "int8": limits.max_drop_int8}[kind]
    data = model.SerializeToString()
    return Candidate(out_folder.NAMES[kind], data, run, not is_tensorrts, arguments.preprocess, limit)
