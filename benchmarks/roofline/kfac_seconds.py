"""The time of the work of K-FAC on an H200: a model, of which nothing has been measured.

It goes on from :mod:`benchmarks.roofline.h200_model`. Launches follow each other, and nothing runs beside them.

Products of 16 bits have the share of convolutions. Those of float32 have a share of the peak of NVIDIA's data sheet of
the H200 SXM: 67 TFLOP/s without Tensor cores, which are 132 multiprocessors with 128 multiply-adds at 1.98 GHz; for
TF32 half of the 989 TFLOP/s that FP16 has without sparsity.

cuSOLVER is bound by latency: columns of a matrix depend on each other. So a call of potrf or potri takes a time for
each column, and its operations at a share of the rate without Tensor cores. Both numbers are chosen to be near what
others have published; the model's value stands in brackets:

- pytorch/pytorch#173515, a GPU that is not named, torch.cholesky by cuSOLVER: 109 us for n = 128 [90], 376 us for 512
  [362], 1,954 us for 2,048 [1,647];
- ml-explore/mlx#4262, an L40S, potrf: 3.8 ms for n = 4,096 [4.6];
- flagos-ai/FlagGems#5161, an H20, torch.cholesky_inverse, which need not be potri: 71 us for n = 128 [90], 142 us for
  256 [180].
"""

from benchmarks.profile import kinds
from benchmarks.roofline import h200_model, kfac_work

PEAKS = {"float32": 67e12, "tf32": 494.5e12}  # floating-point operations in a second
_PRODUCTS = 0.4  # share of the peak: 790 of 989 TFLOP/s in large products, and half of that in those of K-FAC
_FACTORIZATION = 0.2  # share of the peak of float32
_COLUMN = 0.7e-6  # seconds

ASSUMPTIONS = {
    **{f"peak of products in {name}, FLOP/s, data sheet": rate for name, rate in PEAKS.items()},
    "products of gradients and inverses, share of the peak": _PRODUCTS,
    "potrf and potri, share of the peak in float32": _FACTORIZATION,
    "potrf and potri, seconds for each column beside that": _COLUMN,
    "patches that are written at once, bytes": kfac_work.PART,
    "second-level cache, bytes": kfac_work.CACHE,
}


def seconds(work, batch, precision="float32"):
    """Returns the seconds of a :class:`~benchmarks.roofline.kfac_work.Work`, with the gaps between its launches.

    Args:
        work: what is computed.
        batch: images in a batch, on which the share of products of 16 bits depends.
        precision: of products of float32, a key of :data:`PEAKS`.
    """
    by_bytes = max(work.bytes / (h200_model.COPY * h200_model.OTHER_BYTES), work.cached / h200_model.SECTORS)
    least = h200_model.KERNEL
    if work.kind == kfac_work.FACTORIZATION:
        columns = work.launches * work.order * _COLUMN
        time = max(by_bytes, columns + work.flops / (_FACTORIZATION * PEAKS["float32"]))
    elif work.kind == kfac_work.MOMENTS:
        time = max(by_bytes, work.flops / h200_model.product_rate(batch))
    elif work.kind == kfac_work.PRODUCTS:
        time = max(by_bytes, work.flops / (_PRODUCTS * PEAKS[precision]))
    else:
        time, least = by_bytes, h200_model.LEAST[kinds.OTHER]
    return max(time, least * work.launches) + h200_model.GAP * work.launches
