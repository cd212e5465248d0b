"""Helpers of all measurements on a GPU."""

import contextlib
import statistics

from benchmarks import compared_optimizers

_COPIED = 2**30
_MULTIPLIED = 8192
_TF32 = 80  # compute capability, times 10, from which on there is TF32


def seconds(device, step, steps=20):
    """Returns the seconds that a step takes on the device, gaps in which it waits for the host included.

    torch and CuPy both use the legacy default stream, so that one pair of events is good for either.
    """
    event = device.xp.cuda.Event
    start, stop = event(), event()
    start.record()
    for _ in range(steps):
        step()
    stop.record()
    stop.synchronize()
    return device.xp.cuda.get_elapsed_time(start, stop) / 1e3 / steps


def bandwidth(device, repeats):
    """Returns the bytes that a copy on the device reads and writes in a second."""
    source = device.xp.zeros(_COPIED, dtype="uint8")
    target = device.xp.empty_like(source)

    def copy():
        target[...] = source

    times = compared_optimizers.take_turns({"copy": copy}, repeats, lambda step: seconds(device, step))
    return 2 * _COPIED / statistics.median(times["copy"])


def flops(device, repeats, dtype="float16"):
    """Returns the floating-point operations in a second of a large product of matrices of a dtype, by cuBLAS.

    The matrices are of ones, which takes less power, and so may be faster, than other numbers. Products in float32 are
    rounded to TF32 only where ``CUPY_TF32=1`` or ``NVIDIA_TF32_OVERRIDE=1`` asks for that.

    Args:
        device: :class:`chainer.backend.GpuDevice`.
        repeats: number of turns.
        dtype: of the matrices, or ``"tf32"`` for matrices of float32 whose products may be rounded to TF32, which a GPU
            before Ampere cannot do: it computes in float32 then.
    """
    rounded = dtype == "tf32"
    a, b = (device.xp.ones((_MULTIPLIED, _MULTIPLIED), "float32" if rounded else dtype) for _ in range(2))
    steps = {"product": lambda: device.xp.matmul(a, b)}
    with _rounding(device) if rounded else contextlib.nullcontext():
        times = compared_optimizers.take_turns(steps, repeats, lambda step: seconds(device, step))
    return 2 * _MULTIPLIED**3 / statistics.median(times["product"])


@contextlib.contextmanager
def _rounding(device):
    """Inside of the block CuPy's products of float32 may be rounded to TF32, if the device can do that.

    CuPy reads ``CUPY_TF32`` once; afterwards it keeps the answer, which is what is changed here.
    """
    if int(device.device.compute_capability) < _TF32:
        yield
        return
    core = device.xp._core
    before = core.get_compute_type("float32")
    core.set_compute_type("float32", core._routines_linalg.COMPUTE_TYPE_TF32)
    try:
        yield
    finally:
        core.set_compute_type("float32", before)
