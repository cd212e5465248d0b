"""Images a second of inference on the CPU: Chainer, mixprec, and exported files in onnxruntime.

All of them take as many threads as ``OMP_NUM_THREADS`` says, by default one for each core.
"""

import dataclasses
import functools
import statistics
import time
from importlib import metadata

import chainer
import numpy as np

import mixprec
import mixprec.export
from benchmarks import compared_optimizers, machine
from mixprec.base.process_limits import number_of_threads
from mixprec.export.int8 import quantize
from mixprec.export.onnx_file import to_half
from mixprec.export.sessions import session
from models import MODELS

_CALIBRATION = 16  # images: speed does not depend on the ranges
FP32, FP16, INT8 = "onnxruntime FP32", "onnxruntime FP16", "onnxruntime INT8"


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to compute, at one batch size.

    Attributes:
        name: of the way.
        batch: images in a batch.
        speeds: images a second, of each turn.
        size: bytes of the file; ``None`` for Chainer.
    """

    name: str
    batch: int
    speeds: tuple
    size: int | None

    @property
    def speed(self):
        """Median of the turns."""
        return statistics.median(self.speeds)


def measure(arch, *, batches, size, repeats, seconds):
    """Times a network with random weights in all ways, which take turns.

    Args:
        arch: name of a network of ``models/``.
        batches: list of batch sizes.
        size: height and width of an image in pixels.
        repeats: timed turns, after one to warm up.
        seconds: of a turn of a way.

    Returns:
        list of :class:`Row`
    """
    np.random.seed(0)
    network = MODELS[arch](1000)
    example = np.random.normal(size=(2, 3, size, size)).astype(np.float32)
    network(example)  # running statistics that are no longer 0 and 1
    ways, sizes = _ways(network, example)
    rows = []
    for batch in batches:
        images = np.random.RandomState(1).normal(size=(batch, 3, size, size)).astype(np.float32)
        found = compared_optimizers.take_turns(ways, repeats, functools.partial(_rate, images, seconds))
        rows += [Row(name, batch, tuple(speeds), sizes.get(name)) for name, speeds in found.items()]
    return rows


def _ways(network, example):
    ways = {"plain Chainer FP32": _inference(network)}
    for name, compute in (("FP32", "float32"), ("FP16", "float16"), ("BF16", "bfloat16")):
        model = chainer.Sequential(network.copy(mode="copy"))
        mixprec.convert(model, compute=compute)
        ways[f"mixprec {name}"] = _inference(model)
    sizes = {}
    for name, graph in _graphs(network, example).items():
        (given,) = graph.graph.input
        sizes[name] = graph.ByteSize()
        ways[name] = _run_of(session(graph), given.name)
    return ways, sizes


def _graphs(network, example):
    graph = mixprec.export.onnx(network, example)
    images = np.random.RandomState(2).normal(size=(_CALIBRATION, *example.shape[1:])).astype(np.float32)
    int8, _ = quantize(graph, [images[:8], images[8:]], target="cpu")
    return {FP32: graph, FP16: to_half(graph), INT8: int8}


def _inference(model):
    def run(images):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            return model(images).array

    return run


def _run_of(session, name):
    return lambda images: session.run(None, {name: images})[0]


def _rate(images, seconds, run):
    begin, calls = time.perf_counter(), 0
    while not calls or time.perf_counter() - begin < seconds:
        run(images)
        calls += 1
    return calls * len(images) / (time.perf_counter() - begin)


def table(rows):
    """Returns the rows as text."""
    batches = list(dict.fromkeys(row.batch for row in rows))
    lines = [f"{'images/s':22}" + "".join(f"{f'batch {batch}':>24}" for batch in batches) + f"{'MB':>10}"]
    for name in dict.fromkeys(row.name for row in rows):
        mine = {row.batch: row for row in rows if row.name == name}
        cells = [f"{row.speed:.3g} ({min(row.speeds):.3g}-{max(row.speeds):.3g})" for row in mine.values()]
        bytes_of_file = mine[batches[0]].size
        file = "" if bytes_of_file is None else f"{bytes_of_file / 1e6:.1f}"
        lines.append(f"{name:22}" + "".join(f"{cell:>24}" for cell in cells) + f"{file:>10}")
    return "\n".join(lines)


def as_json(rows, **settings):
    """Returns rows and settings as a dict for JSON, with what they were measured on."""
    versions = {name: metadata.version(name) for name in ("onnx", "onnxruntime")}
    return machine.as_json(rows, settings, **versions, threads=number_of_threads())
