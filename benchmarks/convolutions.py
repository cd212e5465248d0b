"""The convolutions of a ResNet on the CPU, one by one: the native library, NumPy, and torch (oneDNN).

All of them take as many threads as ``OMP_NUM_THREADS`` says, by default one for each core.
"""

import collections
import dataclasses
import time

import chainer
import chainer.links as L
import numpy as np

from benchmarks import machine
from mixprec.backends import cpu
from mixprec.backends.cpu import native_primitives as native
from mixprec.backends.geometry import Convolution
from mixprec.base.dtypes import BFLOAT16
from mixprec.base.process_limits import number_of_threads
from mixprec.native.native_library import library
from models import MODELS

_PAUSE = 0.05  # seconds before each way: threads of OpenBLAS and of OpenMP spin for a while after their work
_WARM_UP = 0.03  # seconds before each timed call
_CHANNELS = 4  # images get a fourth channel of zeros
PASSES = ("forward", "dgrad", "wgrad")
_NATIVE = {"native float32": np.float32, "native float16": np.float16, "native bfloat16": BFLOAT16}


@dataclasses.dataclass(frozen=True)
class Row:
    """One shape.

    Attributes:
        x: shape of the input, (N, H, W, C).
        w: shape of the filters, (K, R, S, C).
        stride: vertical and horizontal.
        pad: vertical and horizontal.
        count: how many convolutions of the network have it.
        times: {name: [milliseconds of forward, dgrad, wgrad]}, the quickest of all turns.
    """

    x: tuple
    w: tuple
    stride: tuple
    pad: tuple
    count: int
    times: dict


def measure(arch, *, batch, size, repeats):
    """Times each distinct convolution of a network; all ways take turns.

    Args:
        arch: name of a ResNet.
        batch: images in a batch.
        size: height and width of an image in pixels.
        repeats: timed turns, after one to warm up.

    Returns:
        list of Row
    """
    with _Shapes() as found, chainer.using_config("train", False), chainer.no_backprop_mode():
        MODELS[arch](1000)(np.zeros((batch, 3, size, size), np.float32))
    return [_row(*shape, count, repeats) for shape, count in collections.Counter(found.shapes).items()]


class _Shapes(chainer.LinkHook):
    """Takes down the shapes of convolutions, as mixprec computes them."""

    name = "Shapes"

    def __init__(self):
        self.shapes = []

    def forward_preprocess(self, call):
        if isinstance(call.link, L.Convolution2D):
            (n, c, h, w), (k, _, r, s) = call.args[0].shape, call.link.W.shape
            moves = Convolution(call.link.stride, call.link.pad)
            self.shapes.append(((n, h, w, -(-c // _CHANNELS) * _CHANNELS), (k, r, s, c), moves))


def table(rows):
    """Returns the times as text: those of each shape, and those of all, each as often as the network has it."""
    names = list(rows[0].times)
    lines = [f"{'ms: forward, dgrad, wgrad':40}" + "".join(f"{name:>24}" for name in names)]
    for row in rows:
        what = f"{row.count} x {'x'.join(map(str, row.x))} {'x'.join(map(str, row.w))} /{row.stride[0]}"
        lines.append(f"{what:40}" + "".join(_cells(row.times[name]) for name in names))
    lines.append(f"{'all':40}" + "".join(_cells(part) for part in totals(rows).values()))
    return "\n".join(lines)


def totals(rows):
    """Returns {name: [milliseconds of forward, dgrad, wgrad]} of all convolutions of the network."""
    names, passes = rows[0].times, range(len(PASSES))
    return {name: [sum(row.count * row.times[name][each] for row in rows) for each in passes] for name in names}


def as_json(rows, **settings):
    """Returns rows and settings as a dict for JSON, with what they were measured on."""
    settings |= {"threads": number_of_threads(), "instructions": library() and library().instructions()}
    return machine.as_json(rows, settings, totals=totals(rows))


def _cells(times):
    return "".join(f"{value:8.2f}" for value in times)


def _row(x_shape, w_shape, convolution, count, repeats):
    rng = np.random.default_rng(0)
    y_shape = (x_shape[0], *convolution.out_size(x_shape[1:3], w_shape[1:3]), w_shape[0])
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (x_shape, w_shape, y_shape)]
    ways = {}
    if library() is not None:
        for name, dtype in _NATIVE.items():
            ways[name] = _by_primitives(native.PRIMITIVES, *(array.astype(dtype) for array in arrays), convolution)
    ways["NumPy float32"] = _by_primitives(cpu.PRIMITIVES, *arrays, convolution)
    ways |= _by_torch(*arrays, convolution)
    times = {name: [np.inf] * len(PASSES) for name in ways}
    for turn in range(repeats + 1):
        for name, functions in ways.items():
            time.sleep(_PAUSE)
            for i, function in enumerate(functions):
                _warm_up(function)
                start = time.perf_counter()
                function()
                if turn:
                    times[name][i] = min(times[name][i], (time.perf_counter() - start) * 1e3)
    return Row(x_shape, w_shape, convolution.stride, convolution.pad, count, times)


def _warm_up(function):
    """Calls a function until its threads are awake, and the kernel has put each on a core of its own."""
    end = time.perf_counter() + _WARM_UP
    while time.perf_counter() < end:
        function()


def _by_primitives(primitives, x, w, dy, convolution):
    return (
        lambda: primitives.conv_fprop(x, w, convolution),
        lambda: primitives.conv_dgrad(dy, w, convolution, x.shape),
        lambda: primitives.conv_wgrad(x, dy, convolution, w.shape),
    )


def _by_torch(x, w, dy, convolution):
    """The same by torch in channels_last, if it is there."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(number_of_threads())
    arrays = [torch.from_numpy(array).permute(0, 3, 1, 2) for array in (x[..., : w.shape[3]].copy(), w, dy)]
    moves = (convolution.stride, convolution.pad, convolution.dilation)

    def functions(dtype):
        x, w, dy = (array.to(dtype) for array in arrays)

        def backward(*wanted):
            return torch.ops.aten.convolution_backward(dy, x, w, None, *moves, False, (0, 0), 1, (*wanted, False))

        return (
            lambda: torch.nn.functional.conv2d(x, w, None, *moves),
            lambda: backward(True, False),
            lambda: backward(False, True),
        )

    return {"torch bfloat16": functions(torch.bfloat16), "torch float32": functions(torch.float32)}
