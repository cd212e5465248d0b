"""One operation of each variant that the primitives may ask of cuDNN, and of shapes that are not usual."""

from mixprec.backends.cuda.stem import ON_SQUARES
from mixprec.backends.geometry import Convolution
from tests.backends.cudnn import operations

_X, _W = (32, 28, 28, 128), (128, 3, 3, 128)
_POINTWISE, _SAME, _HALVING = Convolution(), Convolution(pad=(1, 1)), Convolution(stride=(2, 2), pad=(1, 1))

# The 7x7 of stride 2 as a 4x4 on squares of 2x2 pixels, with the padding written before.
_STEM, _SQUARES = (((images, 115, 115, 16), (64, 4, 4, 16), ON_SQUARES) for images in (256, 32))

_SHAPES = {
    "1x1": (_X, (256, 1, 1, 128), _POINTWISE),
    "3x3": (_X, _W, _SAME),
    "3x3/2": (_X, _W, _HALVING),
    "1x1/2": (_X, (256, 1, 1, 128), Convolution(stride=(2, 2))),
    "3x3/3": (_X, _W, Convolution(stride=(3, 3), pad=(1, 1))),
    "3x3 dilation 2": (_X, _W, Convolution(pad=(2, 2), dilation=(2, 2))),
    "3x3 32 groups": (_X, (128, 3, 3, 4), Convolution(pad=(1, 1), groups=32)),
    "3x3/2 32 groups": (_X, (128, 3, 3, 4), Convolution(stride=(2, 2), pad=(1, 1), groups=32)),
    "3x3 depthwise": (_X, (128, 3, 3, 1), Convolution(pad=(1, 1), groups=128)),
    "stem 3 channels": ((32, 224, 224, 3), (64, 7, 7, 3), Convolution(stride=(2, 2), pad=(3, 3))),
    "stem 4 channels": ((32, 224, 224, 4), (64, 7, 7, 4), Convolution(stride=(2, 2), pad=(3, 3))),
    "stem 8 channels": ((32, 224, 224, 8), (64, 7, 7, 8), Convolution(stride=(2, 2), pad=(3, 3))),
    "3x3 10 to 20": ((32, 14, 14, 10), (20, 3, 3, 10), _SAME),
    "3x3 3 to 5": ((32, 14, 14, 3), (5, 3, 3, 3), _SAME),
    "3x3 1 to 1": ((32, 14, 14, 1), (1, 3, 3, 1), _SAME),
    "5x5 1 to 32": ((32, 28, 28, 1), (32, 5, 5, 1), Convolution(pad=(2, 2))),
    "3x3 on 7x5": ((3, 7, 5, 16), (24, 3, 3, 16), _SAME),
    "linear 2048 to 1000": ((32, 1, 1, 2048), (1000, 1, 1, 2048), _POINTWISE),
    "linear 2048 to 10": ((32, 1, 1, 2048), (10, 1, 1, 2048), _POINTWISE),
    "linear 3 to 7": ((5, 1, 1, 3), (7, 1, 1, 3), _POINTWISE),
}


def variants(dtype):
    """Returns operations by name."""
    return {**_fused(dtype), **_shapes(dtype), **_stems(dtype), **_normalizations(dtype)}


def of_a_step(dtype):
    """Returns the graphs of a ResNet-50's step beside plain convolutions, by name: add yours here, for every GPU.

    In the shapes where they take longest, batch 256.
    """
    x, narrow = (256, 56, 56, 256), (256, 56, 56, 64)
    norm, backward = operations.batch_norm, operations.batch_norm_backward
    found = {
        "batch norm": norm(narrow, dtype),
        "batch norm + relu": norm(narrow, dtype, relu=True),
        "batch norm + add + relu": norm(x, dtype, relu=True, add=True),
        "batch norm backward": backward(x, dtype),
        "recompute -> batch norm backward": backward(narrow, dtype, relu=True),
        "mask -> batch norm backward": backward(x, dtype, relu=True, add=True),
        "stem": operations.conv_fprop(*_STEM, dtype),
        "stem wgrad": operations.conv_wgrad(*_STEM, dtype),
    }
    if dtype == "float16":
        for name, shape in (
            ("1x1", (narrow, (256, 1, 1, 64), _POINTWISE)),
            ("3x3", (narrow, (64, 3, 3, 64), _SAME)),
            ("3x3/2", ((256, 56, 56, 128), (128, 3, 3, 128), _HALVING)),
            ("1x1/2", (x, (512, 1, 1, 256), Convolution(stride=(2, 2)))),
            ("stem", _STEM),
            ("5x5", (narrow, (64, 5, 5, 64), Convolution(pad=(2, 2)))),
        ):
            found[f"{name} -> sums"] = operations.conv_fprop(*shape, dtype, sums=True)
    return found


def _fused(dtype):
    fprop, same = operations.conv_fprop, (_X, _W, _SAME, dtype)
    return {
        "fprop + b": fprop(*same, b=dtype),
        "fprop + b + relu": fprop(*same, b=dtype, relu=True),
        "fprop + float32 b": fprop(*same, b="float32"),
        "fprop + float32 b + relu": fprop(*same, b="float32", relu=True),
        "fprop + relu": fprop(*same, relu=True),
        "linear 2048 to 1000 + b": fprop(*_SHAPES["linear 2048 to 1000"], dtype, b=dtype),
        "fprop -> sums": fprop(*same, sums=True),
        "7x7 fprop -> sums": fprop(*_SHAPES["stem 8 channels"], dtype, sums=True),
        "1x7 fprop -> sums": fprop(_X, (128, 1, 7, 128), Convolution(pad=(0, 3)), dtype, sums=True),
        "10 to 20 fprop -> sums": fprop(*_SHAPES["3x3 10 to 20"], dtype, sums=True),
        "32 groups fprop -> sums": fprop(*_SHAPES["3x3 32 groups"], dtype, sums=True),
    }


def _shapes(dtype):
    kinds = ("fprop", "dgrad", "wgrad")
    return {
        f"{kind} {name}": getattr(operations, f"conv_{kind}")(*shape, dtype)
        for kind in kinds
        for name, shape in _SHAPES.items()
    }


def _stems(dtype):
    given = *_SQUARES, dtype
    return {
        "fprop stem of squares": operations.conv_fprop(*given),
        "fprop stem of squares + b + relu": operations.conv_fprop(*given, b=dtype, relu=True),
        "squares fprop -> sums": operations.conv_fprop(*given, sums=True),
        "dgrad stem of squares": operations.conv_dgrad(*given),
        "wgrad stem of squares": operations.conv_wgrad(*given),
    }


def _normalizations(dtype):
    found = {}
    for channels in (128, 12, 10):
        x = (*_X[:3], channels)
        for name, relu, add in (("", False, False), (" + relu", True, False), (" + add + relu", True, True)):
            found[f"batch norm{name}, {channels} channels"] = operations.batch_norm(x, dtype, relu=relu, add=add)
            backward = operations.batch_norm_backward(x, dtype, relu=relu, add=add)
            found[f"batch norm{name} backward, {channels} channels"] = backward
    found["batch norm + add"] = operations.batch_norm(_X, dtype, add=True)
    found["batch norm of (32, 128)"] = operations.batch_norm((32, 1, 1, 128), dtype)
    found["batch norm of one image"] = operations.batch_norm((1, 7, 7, 128), dtype)
    return found
