"""Measures mixprec beside plain Chainer in one run.

python scripts/benchmark.py step [--arch resnet8] [--batch 64] [--size 32] [--steps 5] [--json FILE]
python scripts/benchmark.py update [--arch resnet50] [--repeats 7] [--json FILE]
python scripts/benchmark.py primitives [--batch 8] [--size 64] [--repeats 5] [--gpu-batch 32] [--json FILE]
python scripts/benchmark.py host [--arch resnet50] [--repeats 15] [--profile] [--json FILE]
python scripts/benchmark.py capture [--arch resnet50] [--batch 32,64,128,256] [--size 224] [--repeats 15] [--json FILE]
python scripts/benchmark.py loader [--data PATH] [--images 512] [--batch 64] [--threads 2] [--repeats 7] [--seconds 10]
    [--gpu-batch 256] [--gpu-threads 8] [--json FILE]
python scripts/benchmark.py bars [--arch resnet50] [--batch 32,64,128,256] [--size 224] [--blocks 5] [--block-steps 10]
    [--json FILE]
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # models/ lies beside scripts/

from mixprec import environment, files
from mixprec.benchmark import (
    capture,
    capture_gpu,
    host,
    launches,
    loader,
    loader_contestants,
    loader_gpu,
    primitives,
    primitives_gpu,
    step,
    update,
    update_gpu,
)
from mixprec.benchmark.bars import plain as bars_plain
from mixprec.benchmark.bars import turns as bars
from mixprec.data.errors import DataError
from mixprec.data.sources.opening import open_images
from models import MODELS

WITHOUT_GROUPS = [name for name in MODELS if not name.startswith("resnext")]


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"found {number}, expected at least 1")
    return number


def _positives(text):
    return [_positive(part) for part in text.split(",")]


def _step(arch, **settings):
    rows = step.measure(MODELS[arch], **settings)
    print(f"{arch}, batch {settings['batch']}, {settings['size']}x{settings['size']} pixels, NumPy")
    print(step.table(rows))
    return step.as_json(rows, arch=arch, **settings)


def _update(arch, repeats):
    rows = update.measure(MODELS[arch], repeats=repeats)
    print(f"optimizer.update() of MomentumSGD, parameters of {arch}, NumPy")
    print(update.table(rows))
    gpu = update_gpu.measure(MODELS[arch], repeats=repeats)
    print(update_gpu.table(*gpu))
    return update.as_json(rows, update_gpu.as_json(*gpu), arch=arch, repeats=repeats)


def _primitives(batch, size, repeats, gpu_batch):
    rows = primitives.measure(MODELS["resnet50"], batch=batch, size=size, repeats=repeats)
    print(f"ResNet-50, batch {batch}, {size}x{size} pixels, forward and backward pass on NumPy")
    print(primitives.table(rows))
    counts = launches.count("resnet50", batch=gpu_batch)
    print(
        f"\nlaunches of ResNet-50 by mixprec.links in float16, counted without a GPU; at most {launches.BOUND} wanted"
    )
    print(launches.table(counts))
    gpu = primitives_gpu.measure(batch=gpu_batch, repeats=repeats)
    print(f"\nprimitives of ResNet-50 in float16, batch {gpu_batch}, 224x224 pixels")
    print(primitives_gpu.table(*gpu))
    record = primitives.as_json(rows, batch=batch, size=size, repeats=repeats, gpu_batch=gpu_batch)
    return {**record, "launches": dataclasses.asdict(counts), "gpu": primitives_gpu.as_json(*gpu)}


def _host(arch, repeats, profile):
    rows, profiles = host.measure(arch, MODELS[arch], repeats=repeats, profile=profile)
    print(f"{arch}, Python of a step with kernels that compute nothing")
    print(host.table(rows))
    for (part, name), text in profiles.items():
        print(f"\n{name}, {part}\n{text}")
    return host.as_json(rows, arch=arch, repeats=repeats)


def _capture(arch, batch, size, repeats):
    rows = capture.measure(MODELS[arch], repeats=repeats)
    print(f"{arch}, converted, Python of a training step, launches left out")
    print(capture.table(rows))
    gpu = capture_gpu.measure(MODELS[arch], batches=batch, size=size, repeats=repeats)
    print(f"\n{arch} in float16, a training step with {size}x{size} pixels, eager and as one CUDA graph")
    print(capture_gpu.table(*gpu))
    return capture.as_json(rows, capture_gpu.as_json(*gpu), arch=arch, batch=batch, size=size, repeats=repeats)


def _loader(data, images, batch, threads, repeats, seconds, gpu_batch, gpu_threads):
    with tempfile.TemporaryDirectory() as folder:
        source = loader_contestants.make_pictures(folder, images) if data is None else open_images(data)
        if len(source) < batch:
            raise DataError(f"--batch {batch}: must be at most {len(source)}, the number of images")
        speeds, waits = loader.measure(source, batch=batch, threads=threads, repeats=repeats, seconds=seconds)
        what = f"{images} pictures of noise, 500x375" if data is None else f"{data}, {len(source)} images"
        print(f"{what}, to 224x224 in float16 NHWC, batch {batch}, {threads} threads or processes")
        print(loader.table(speeds, waits))
        gpu = loader_gpu.measure(MODELS["resnet50"], source, batch=gpu_batch, threads=gpu_threads, repeats=repeats)
        print(f"\nResNet-50 in float16, captured steps, batch {gpu_batch}")
        print(loader_gpu.table(*gpu))
    settings = {"data": data, "images": len(source), "batch": batch, "threads": threads, "repeats": repeats}
    settings |= {"seconds": seconds, "gpu_batch": gpu_batch, "gpu_threads": gpu_threads}
    return loader.as_json(speeds, waits, loader_gpu.as_json(*gpu), **settings)


def _bars(arch, batch, size, blocks, block_steps):
    specifier, device = environment.resolve_device("auto")
    default = bars.defaults(specifier)
    small = ", therefore in small" if specifier == "@numpy" and not (arch and batch and size) else ""
    arch, batch, size = arch or default["arch"], batch or default["batch"], size or default["size"]
    print(f"{device}{small}")
    print(f"{arch}, {size}x{size} pixels, training on synthetic data, {blocks} blocks of {block_steps} steps")
    ways = bars_plain.bars(specifier)
    rows = bars.measure(MODELS[arch], ways, specifier, batches=batch, size=size, blocks=blocks, block_steps=block_steps)
    print(bars.table(rows))
    settings = {"arch": arch, "batch": batch, "size": size, "blocks": blocks, "block_steps": block_steps}
    return bars.as_json(rows, device, **settings)


def _add_command(commands, function, name, text):
    command = commands.add_parser(name, help=text)
    command.set_defaults(function=function)
    command.add_argument("--json", metavar="FILE", help="write the numbers there, too")
    return command


def _add_arch(command, default, choices=MODELS):
    command.add_argument("--arch", choices=sorted(choices), default=default, metavar="NAME")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    text = "one training step on the CPU: float32, float16, plain mixed16"
    command = _add_command(commands, _step, "step", text)
    _add_arch(command, "resnet8")
    command.add_argument("--batch", type=_positive, default=64, help="images in a batch")
    command.add_argument("--size", type=_positive, default=32, help="height and width of an image in pixels")
    command.add_argument("--steps", type=_positive, default=5, help="timed steps")
    text = "the optimizer's step alone: plain Chainer, mixprec, torch"
    command = _add_command(commands, _update, "update", text)
    _add_arch(command, "resnet50")
    command.add_argument("--repeats", type=_positive, default=7, help="timed turns")
    text = "forward and backward pass of ResNet-50: NCHW and NHWC on the CPU, launches, each primitive on a GPU"
    command = _add_command(commands, _primitives, "primitives", text)
    command.add_argument("--batch", type=_positive, default=8, help="images in a batch on the CPU")
    command.add_argument("--size", type=_positive, default=64, help="height and width of an image on the CPU in pixels")
    command.add_argument("--repeats", type=_positive, default=5, help="timed turns")
    command.add_argument("--gpu-batch", type=_positive, default=32, help="images in a batch on the GPU")
    text = "the Python of a training step: plain Chainer, converted, by hand, with kernels that compute nothing"
    command = _add_command(commands, _host, "host", text)
    _add_arch(command, "resnet50", WITHOUT_GROUPS)
    command.add_argument("--repeats", type=_positive, default=15, help="timed turns of ten steps")
    command.add_argument("--profile", action="store_true", help="print in which functions the time is spent")
    text = "a training step as one CUDA graph: its Python beside that of an eager one, and on a GPU time and memory"
    command = _add_command(commands, _capture, "capture", text)
    _add_arch(command, "resnet50", WITHOUT_GROUPS)
    command.add_argument("--batch", type=_positives, default=[32, 64, 128, 256], help="images in a batch, with commas")
    command.add_argument("--size", type=_positive, default=224, help="height and width of an image on a GPU in pixels")
    command.add_argument("--repeats", type=_positive, default=15, help="timed turns")
    text = "images/s of the loaders beside Chainer's with Pillow, how long training waits, and on a GPU with ResNet-50"
    command = _add_command(commands, _loader, "loader", text)
    command.add_argument("--data", metavar="PATH", help="images to read, as data.train in a config; default: made")
    command.add_argument("--images", type=_positive, default=512, help="number of pictures that are made")
    command.add_argument("--batch", type=_positive, default=64, help="images in a batch on the CPU")
    command.add_argument("--threads", type=_positive, default=2, help="threads of DALI, processes of the others")
    command.add_argument("--repeats", type=_positive, default=7, help="timed turns")
    command.add_argument("--seconds", type=_positive, default=10, help="of training beside a loader")
    command.add_argument("--gpu-batch", type=_positive, default=256, help="images in a batch on the GPU")
    command.add_argument("--gpu-threads", type=_positive, default=8, help="threads of DALI beside the GPU")
    text = "images/s of training on synthetic data, a row for each way to train; on a GPU, or in small on the CPU"
    command = _add_command(commands, _bars, "bars", text)
    _add_arch(command, None)
    help = "images in a batch, with commas; default: 32,64,128,256, on a CPU 8"
    command.add_argument("--batch", type=_positives, help=help)
    help = "height and width of an image in pixels; default: 224, on a CPU 64"
    command.add_argument("--size", type=_positive, help=help)
    command.add_argument("--blocks", type=_positive, default=5, help="timed blocks of each row")
    command.add_argument("--block-steps", type=_positive, default=10, help="timed steps in a block")
    settings = vars(parser.parse_args())

    del settings["command"]
    function, file = settings.pop("function"), settings.pop("json")
    try:
        record = function(**settings)
    except DataError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        sys.exit(2)
    if file:
        files.write_text(file, json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
