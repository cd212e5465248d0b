"""The least time of a training step: of each kernel that of its bytes or of its products, whichever is longer."""

import dataclasses

from benchmarks.roofline.levels import kernels


@dataclasses.dataclass(frozen=True)
class Limit:
    """What a training step takes at least.

    Attributes:
        seconds: of a step.
        images_per_second: what that allows.
        bytes: that its kernels read and write.
        flops: floating-point operations of its products.
        kernels: number of its kernels.
    """

    seconds: float
    images_per_second: float
    bytes: int
    flops: int
    kernels: int


def assumptions(specifier):
    """Returns what :func:`limit` should assume of a device: a dict of ``share``, ``gap`` and ``transposes``.

    On a GPU convolutions reach 70 % of the rate of a large product, a microsecond passes between kernels, also in a
    CUDA graph, and Tensor cores compute on NHWC. On a CPU there is nothing between kernels, and BLAS computes the
    products, for which nothing is transposed as a whole.

    Args:
        specifier: of the device, ``"@numpy"`` or ``"@cupy:N"``.
    """
    if specifier == "@numpy":
        return {"share": 1.0, "gap": 0.0, "transposes": False}
    return {"share": 0.7, "gap": 1e-6, "transposes": True}


def limit(network, level, dtype, batch, rates, *, share=0.7, gap=1e-6, transposes=True):
    """Returns the :class:`Limit` of a training step.

    Args:
        network: :class:`~benchmarks.roofline.network_layers.Network`.
        level: one of :data:`~benchmarks.roofline.levels.LEVELS`.
        dtype: name of the dtype of activations and weights, ``"float32"``, ``"float16"`` or ``"bfloat16"``; or
            ``"tf32"``, float32 that products round.
        batch: images in a batch.
        rates: :class:`~benchmarks.rates.Rates` of the device.
        share: of the rate of a large product that convolutions reach.
        gap: seconds between kernels.
        transposes: see :func:`~benchmarks.roofline.levels.kernels`.

    Raises:
        ValueError: ``level`` or ``dtype`` is none of those.
    """
    found = kernels(network, level, dtype, batch, transposes=transposes)
    seconds = sum(seconds_of(kernel, dtype, rates, share=share, gap=gap) for kernel in found)
    moved, flops = (sum(getattr(kernel, name) for kernel in found) for name in ("bytes", "flops"))
    return Limit(seconds, batch / seconds, moved, flops, len(found))


def seconds_of(kernel, dtype, rates, *, share, gap):
    """Returns the seconds that a kernel takes at least; arguments as of :func:`limit`.

    Args:
        kernel: :class:`~benchmarks.roofline.levels.Kernel`.
        dtype: of the factors of its products.
        rates: of the device.
        share: of the rate of products.
        gap: seconds until the next kernel.
    """
    return max(kernel.bytes / rates.bandwidth, kernel.flops / (share * rates.flops[dtype])) + gap
