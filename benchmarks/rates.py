"""The rates at which a machine copies and multiplies, of which the floors of a profile are made."""

import dataclasses
import statistics

import chainer
import ml_dtypes
import numpy as np

from benchmarks import compared_optimizers, gpu

_DTYPES = "float32", "tf32", "float16", "bfloat16"
_COPIED = 2**28  # bytes; more than the caches of a CPU hold
_MULTIPLIED = 2048


@dataclasses.dataclass(frozen=True)
class Rates:
    """What a device does in a second, as it was measured once, before whatever is compared with it.

    A device that later gets warm, or is shared, is slower than that.

    Attributes:
        bandwidth: bytes that a copy reads and writes.
        flops: dict from ``"float32"``, ``"tf32"``, ``"float16"`` and ``"bfloat16"`` to the floating-point operations of
            a large product of matrices; ``"tf32"`` are matrices of float32 whose products may be rounded to TF32.
    """

    bandwidth: float
    flops: dict[str, float]


def measure(specifier, repeats=5):
    """Measures a device: medians of several turns, after one that is not counted.

    On a GPU it is a copy of 1 GiB, and products of matrices of 8192 x 8192 as :func:`benchmarks.gpu.flops` says;
    the memory that this takes is given back. On a CPU it is :func:`bandwidth_of_cpu` and :func:`flops_of_cpu`; all
    products have the rate of float32 there, as they are computed in float32.

    Args:
        specifier: of the device, ``"@numpy"`` or ``"@cupy:N"``.
        repeats: number of turns.

    Returns:
        Rates
    """
    device = chainer.get_device(specifier)
    device.use()
    if device.xp is np:
        product = flops_of_cpu(repeats)
        return Rates(bandwidth_of_cpu(repeats), dict.fromkeys(_DTYPES, product))
    flops = {dtype: gpu.flops(device, repeats, dtype) for dtype in ("float32", "tf32", "float16")}
    flops["bfloat16"] = _flops_of_bfloat16(device, repeats, flops["float16"])
    rates = Rates(gpu.bandwidth(device, repeats), flops)
    device.xp.get_default_memory_pool().free_all_blocks()
    return rates


def bandwidth_of_cpu(repeats):
    """Returns the bytes that NumPy's copy of 256 MiB reads and writes in a second.

    NumPy copies in one thread, as it computes all that is not a product. Lines of the target that the CPU may read
    before it writes them are not counted.
    """
    source, target = (np.ones(_COPIED, np.uint8) for _ in range(2))  # written once, so that memory is there
    return 2 * _COPIED / _seconds(lambda: np.copyto(target, source), repeats)


def flops_of_cpu(repeats):
    """Returns the operations in a second of a product of float32 matrices of 2048 x 2048, by NumPy's BLAS.

    BLAS takes as many threads as it does in a training step.
    """
    a, b = (np.ones((_MULTIPLIED, _MULTIPLIED), np.float32) for _ in range(2))
    product = np.empty_like(a)
    return 2 * _MULTIPLIED**3 / _seconds(lambda: np.matmul(a, b, out=product), repeats)


def _flops_of_bfloat16(device, repeats, float16):
    """The rate of float16 where CuPy or NumPy is too old for bfloat16: Tensor cores that have both do both alike."""
    try:
        return gpu.flops(device, repeats, np.dtype(ml_dtypes.bfloat16))
    except (TypeError, ValueError):  # "Unsupported dtype bfloat16"
        return float16


def _seconds(step, repeats):
    times = compared_optimizers.take_turns({"step": step}, repeats, compared_optimizers.seconds)
    return statistics.median(times["step"])
