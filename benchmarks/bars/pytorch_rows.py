"""The rows of PyTorch: the same network, batch and recipe, set up as well as PyTorch's documentation knows how.

A row that wins against a PyTorch that is slow for want of a switch says nothing. So all switches that make it faster
are in some row: channels_last, mixed precision, fused SGD, ``torch.compile``, CUDA graphs, TF32, and their sums.
"""

import dataclasses
import functools

from benchmarks import compared_optimizers
from benchmarks.bars.row_worker import BenchmarkRow
from benchmarks.bars.sequences import SEQUENCES

ARCHS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d")


@dataclasses.dataclass(frozen=True)
class PyTorchSettings:
    """The settings with which a row of PyTorch trains.

    Attributes:
        precision: ``"float32"``, or that of autocast: ``"float16"``, with dynamic loss scaling, or ``"bfloat16"``.
        channels_last: whether images and weights are NHWC in memory.
        fused: whether one launch updates all parameters of a group, and skips a step without asking the host.
        compile: ``mode`` of ``torch.compile``, or ``None`` for eager execution.
        graph: whether the whole step, update included, is one CUDA graph, captured by hand.
        tf32: whether products of float32 may round their factors to TF32.
    """

    precision: str
    channels_last: bool = True
    fused: bool = True
    compile: str | None = None
    graph: bool = False
    tf32: bool = False


_STOCK = PyTorchSettings("float32", channels_last=False, fused=False)
_ON_GPU = {
    "PyTorch FP32": _STOCK,
    "PyTorch TF32, channels_last": PyTorchSettings("float32", tf32=True),
    "PyTorch AMP, channels_last": PyTorchSettings("float16", fused=False),
    "PyTorch AMP, channels_last, fused SGD": PyTorchSettings("float16"),
    "PyTorch AMP, channels_last, graph": PyTorchSettings("float16", graph=True),
    "PyTorch AMP, channels_last, compiled": PyTorchSettings("float16", compile="default"),
    "PyTorch AMP, channels_last, reduce-overhead": PyTorchSettings("float16", compile="reduce-overhead"),
    "PyTorch AMP, channels_last, compiled, graph": PyTorchSettings("float16", compile="default", graph=True),
    "PyTorch AMP bfloat16, channels_last, compiled, graph": PyTorchSettings("bfloat16", compile="default", graph=True),
    "PyTorch AMP, channels_last, max-autotune, graph": PyTorchSettings(
        "float16", compile="max-autotune-no-cudagraphs", graph=True
    ),
}
_ON_CPU = {
    "PyTorch FP32": _STOCK,
    "PyTorch FP32, channels_last": PyTorchSettings("float32"),
    "PyTorch FP32, channels_last, compiled": PyTorchSettings("float32", compile="default"),
    "PyTorch AMP bfloat16, channels_last": PyTorchSettings("bfloat16"),
}
_FP32 = {"PyTorch FP32": PyTorchSettings("float32")}
_SEQUENCES_ON_CPU = _FP32 | {"PyTorch AMP bfloat16": PyTorchSettings("bfloat16")}
_AMP = {"PyTorch AMP": PyTorchSettings("float16"), "PyTorch AMP, graph": PyTorchSettings("float16", graph=True)}


def bars(specifier, arch=None):
    """Returns the list of :class:`~benchmarks.bars.row_worker.BenchmarkRow` for a device.

    Without torch, or without one for the device, they all have the reason.

    Args:
        specifier: of the device.
        arch: name of a task on sequences; all networks for images have the same rows.
    """
    reason = _why_not(specifier)
    on_cpu, on_gpu = (_SEQUENCES_ON_CPU, _FP32 | _AMP) if arch in SEQUENCES else (_ON_CPU, _ON_GPU)
    ways = on_cpu if specifier == "@numpy" else on_gpu
    return [BenchmarkRow(name, functools.partial(_make, way), reason, group="peer") for name, way in ways.items()]


def _why_not(specifier):
    torch, reason = compared_optimizers.import_torch()
    if torch is None:
        return f'{reason.partition(chr(10))[0]}; pip install -e ".[torch]" installs it'
    if specifier != "@numpy" and not torch.cuda.is_available():
        return f"torch {torch.__version__} has no GPU"
    return ""


def _make(way, task):
    """Makes the step of a way to train.

    Raises:
        ValueError: the network is neither in :data:`ARCHS` nor one for sequences.
    """
    if task.arch in SEQUENCES:
        from benchmarks.bars import torch_sequences

        return torch_sequences.make(way, task)
    if task.arch not in ARCHS:
        raise ValueError(f"no {task.arch} in PyTorch to compare with; there are {', '.join(ARCHS)}")
    from benchmarks.bars import torch_step  # torch takes seconds to import, and need not be there

    return torch_step.make(way, task.arch, task.specifier, task.batch, task.size)
