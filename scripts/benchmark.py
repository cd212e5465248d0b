"""Measures mixprec beside plain Chainer and PyTorch in one run.

python scripts/benchmark.py bars [--peer pytorch] [--arch resnet50] [--batch 32,64,128,256,512] [--size 224]
    [--blocks 5] [--block-steps 30] [--limit 600] [--prepare-limit 600] [--minutes M] [--rows PATTERN ...]
    [--json FILE]
python scripts/benchmark.py bars --task lm|seq2seq|blstm [--peer pytorch] [the options of bars, without
    --arch and --size]
python scripts/benchmark.py page [--results benchmarks/results] [--out docs/results.md]
python scripts/benchmark.py profile [--config nhwc_fused_batched.yaml] [--arch resnet50] [--batch 256] [--size 224]
    [--set KEY=VALUE ...] [--steps 5] [--top 20] [--json FILE]
python scripts/benchmark.py update [--arch resnet50] [--repeats 7] [--json FILE]
python scripts/benchmark.py convolutions [--arch resnet18] [--batch 8] [--size 64] [--repeats 7] [--json FILE]
python scripts/benchmark.py inference [--arch resnet50] [--batch 1,8] [--size 224] [--repeats 5] [--seconds 2]
    [--json FILE]
python scripts/benchmark.py step [--arch resnet50] [--size 224] [--batch 256] [--json FILE]
python scripts/benchmark.py loader [--data PATH] [--images 512] [--batch 64] [--threads 2] [--repeats 7] [--seconds 10]
    [--json FILE]
python scripts/benchmark.py scaling [--arch resnet20] [--ranks 2] [--batch 32] [--dtype float32] [--blocks 7]
    [--seconds 2] [--json FILE]
python scripts/benchmark.py parity [--config FILE] [--set KEY=VALUE ...] [--arms NAMES] [--seeds 5] [--jobs 2]
    [--out DIR] [--json FILE]
python scripts/benchmark.py ablation [--data digits|textures|large-batch] [the options of parity]
"""

import dataclasses
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process
from mixprec.base import standard_streams

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

import chainer

from benchmarks import (
    compared_loaders,
    convolutions,
    loader,
    machine,
    step_commands,
    update,
)
from benchmarks.bars.record import RecordError
from benchmarks.command_arguments import ArgumentsError, add_arch, positive, positives
from benchmarks.record_files import Record, WriteError, add_command
from benchmarks.scaling import scaling_command
from benchmarks.scaling.rank_processes import RankError
from benchmarks.step import counts, launches, model
from benchmarks.study import study_command
from benchmarks.study.study_runs import StudyError
from mixprec.app.commands.command_line import Parser, first_line, one_line
from mixprec.app.config import ConfigError
from mixprec.app.parts import gpus
from mixprec.data.data_error import DataError
from mixprec.data.sources.opening import open_images
from models import MODELS

_COUNTED = 2  # images in a batch: launches do not depend on it
BAD_INPUT = (ArgumentsError, ConfigError, DataError, RecordError)


def _update(save, arch, repeats):
    rows = update.measure(MODELS[arch], repeats=repeats)
    print(f"optimizer.update() of MomentumSGD, parameters of {arch}, NumPy")
    print(update.table(rows))
    save(update.as_json(rows, arch=arch, repeats=repeats))


def _convolutions(save, arch, batch, size, repeats):
    rows = convolutions.measure(arch, batch=batch, size=size, repeats=repeats)
    print(f"convolutions of {arch}, batch {batch}, {size}x{size} pixels, on the CPU")
    print(convolutions.table(rows))
    save(convolutions.as_json(rows, arch=arch, batch=batch, size=size, repeats=repeats))


def _inference(save, arch, batch, size, repeats, seconds):
    try:
        from benchmarks import inference
    except ModuleNotFoundError as error:
        raise ArgumentsError(f"{error.name} is not installed: pip install -e '.[export]'") from error
    rows = inference.measure(arch, batches=batch, size=size, repeats=repeats, seconds=seconds)
    print(f"{arch}, {size}x{size} pixels, inference on the CPU, median of {repeats} turns (slowest-fastest)")
    print(inference.table(rows))
    settings = {"arch": arch, "batch": batch, "size": size, "repeats": repeats, "seconds": seconds}
    save(inference.as_json(rows, **settings))


def _step(save, arch, size, batch):
    found = counts.counts_of(counts.WAYS, MODELS[arch], arch=arch, batch=_COUNTED, size=size)
    print(f"{arch}, {size}x{size} pixels: what a training step asks of a device, counted without one")
    print(counts.table(found))
    print(f"\nlaunches of an eager step\n{counts.parts_table(found[counts.EAGER])}")
    moves = found[counts.CAPTURED].moves
    kinds, modelled = launches.totals(moves, batch), model.of_h100()
    seconds = modelled.by_kind(moves, batch)
    print("\nlaunches of a captured step by kind, and the bytes that they move")
    print(launches.table(kinds, batch, seconds), modelled.text(moves, batch), sep="\n")
    record = {"settings": {"arch": arch, "size": size, "batch": batch}, **machine.record()}
    record |= {"counts": counts.as_json(found), "parts": found[counts.EAGER].parts}
    record["kinds"] = {kind: dataclasses.asdict(total) for kind, total in kinds.items()}
    save({**record, "modelled seconds": seconds})


def _loader(save, data, images, batch, threads, repeats, seconds):
    specifier, device = gpus.resolve_device("auto")
    gpu = None if specifier == "@numpy" else chainer.get_device(specifier).device.id
    with tempfile.TemporaryDirectory() as folder:
        source = compared_loaders.make_pictures(folder, images) if data is None else open_images(data)
        if len(source) < batch:
            raise DataError(f"--batch {batch}: must be at most {len(source)}, the number of images")
        rows = loader.measure(source, gpu=gpu, batch=batch, threads=threads, repeats=repeats, seconds=seconds)
    what = f"{images} pictures of noise, 500x375" if data is None else f"{one_line(data)}, {len(source)} images"
    print(f"{what}, to 224x224 in float16 NHWC, batch {batch}, {threads} threads or processes; {device}")
    print(loader.table(rows))
    settings = {"data": data, "images": len(source), "batch": batch, "threads": threads, "repeats": repeats}
    save(loader.as_json(rows, **settings, seconds=seconds, device=device))


def main(argv=None):
    """Runs a command.

    Args:
        argv: its arguments; ``None`` for those of the process.

    Raises:
        SystemExit: it has not ended well; the reason is on standard error.
    """
    parser = Parser(description=first_line(__doc__))
    commands = parser.add_subparsers(dest="command", required=True)
    text = "the optimizer's step alone: plain Chainer, mixprec, torch; OMP_NUM_THREADS says the threads"
    own = add_command(commands, _update, "update", text)
    add_arch(own, "resnet50", MODELS)
    own.add_argument("--repeats", type=positive, default=7, help="timed turns")
    text = "each convolution of a ResNet on the CPU: the native library, NumPy, torch; OMP_NUM_THREADS says the threads"
    own = add_command(commands, _convolutions, "convolutions", text)
    own.add_argument("--arch", choices=["resnet18", "resnet50"], default="resnet18", help="the network")
    own.add_argument("--batch", type=positive, default=8, help="images in a batch")
    own.add_argument("--size", type=positive, default=64, help="height and width of an image in pixels")
    own.add_argument("--repeats", type=positive, default=7, help="timed turns")
    text = "images/s of inference on the CPU: Chainer, mixprec, and exported files in onnxruntime"
    own = add_command(commands, _inference, "inference", text)
    add_arch(own, "resnet50", MODELS)
    own.add_argument("--batch", type=positives, default=[1, 8], help="images in a batch, with commas")
    own.add_argument("--size", type=positive, default=224, help="height and width of an image in pixels")
    own.add_argument("--repeats", type=positive, default=5, help="timed turns")
    own.add_argument("--seconds", type=positive, default=2, help="of each way in a turn")
    text = "what a training step asks of a device, counted without one, the bytes that it moves, and a modelled time"
    own = add_command(commands, _step, "step", text)
    add_arch(own, "resnet50", MODELS)
    own.add_argument("--size", type=positive, default=224, help="height and width of an image in pixels")
    own.add_argument("--batch", type=positive, default=256, help="images in a batch, for the bytes")
    text = "images/s of the loaders beside Chainer's with Pillow, and how long training waits"
    own = add_command(commands, _loader, "loader", text)
    own.add_argument("--data", metavar="PATH", help="images to read, as data.train in a config; default: made")
    own.add_argument("--images", type=positive, default=512, help="number of pictures that are made")
    own.add_argument("--batch", type=positive, default=64, help="images in a batch")
    own.add_argument("--threads", type=positive, default=2, help="threads of DALI, processes of the others")
    own.add_argument("--repeats", type=positive, default=7, help="timed turns")
    own.add_argument("--seconds", type=positive, default=10, help="of training beside a loader")
    step_commands.add(commands, MODELS)
    scaling_command.add(commands, MODELS)
    study_command.add(commands, MODELS)
    settings = vars(parser.parse_args(argv))

    del settings["command"]
    function, save = settings.pop("function"), Record(settings.pop("json"))
    try:
        with standard_streams.raising(lambda: save.path is None):  # a record is worth going on for
            function(save, **settings)
    except standard_streams.PrintError as error:
        what = "the output is closed" if isinstance(error, standard_streams.ReaderGone) else error
        _end(1, f"{what}; {_saved(save)}")
    except BAD_INPUT as error:
        _end(2, error)
    except (StudyError, WriteError, RankError) as error:
        _end(1, error)
    except KeyboardInterrupt:
        _end(130, f"interrupted; {_saved(save)}")


def _end(status, text):
    print(f"benchmark: {one_line(text)}", file=sys.stderr)
    sys.exit(status)


def _saved(save):
    return f"what was measured before is in {save.path}" if save.is_written else save.otherwise


if __name__ == "__main__":
    sys.exit(command_process.run(main))
