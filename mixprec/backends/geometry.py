"""The attributes of convolutions, poolings and normalizations, and results that normalizations save."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple


@dataclass(frozen=True)
class Convolution:
    """How the filter of a two-dimensional convolution moves. Pairs are (vertical, horizontal).

    Attributes:
        stride: steps between two positions of the filter.
        pad: rows and columns of zeros on every side.
        dilation: steps between two elements of the filter; 1 is a dense one.
        groups: number of groups of channels that are convolved separately.
        channels: number of channels of images in a backend-specific form; ``None``: as many as the filter, or more.
    """

    channels: ClassVar[int | None] = None
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def out_size(self, size, filter_size):
        """Returns (OH, OW) for an input of (H, W) and a filter of (R, S)."""
        axes = zip(size, filter_size, self.pad, self.dilation, self.stride, strict=True)
        return tuple([(n + 2 * pad - (r - 1) * dilation - 1) // stride + 1 for n, r, pad, dilation, stride in axes])

    def y_shape(self, x_shape, w_shape):
        """Returns (N, OH, OW, K) for x (N, H, W, C) and w (K, R, S, C / groups).

        Raises:
            ValueError: the filter is larger than the padded input.
        """
        out_size = self.out_size(x_shape[1:3], w_shape[1:3])
        if min(out_size) <= 0:
            raise ValueError("conv_fprop: the filter is larger than the input")
        return (x_shape[0], *out_size, w_shape[0])


@dataclass(frozen=True)
class Pooling:
    """How the window of a two-dimensional pooling moves. Pairs are (vertical, horizontal).

    Attributes:
        window: rows and columns of the window.
        stride: steps between two positions of the window.
        pad: rows and columns on every side that are ignored for a maximum, and zeros for an average.
        cover_all: whether to include positions at which the window reaches beyond the padded input, as by default in
            Chainer's max pooling; only for a maximum.
    """

    window: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int] = (0, 0)
    cover_all: bool = False

    def out_size(self, size):
        """Returns (OH, OW) for an input of (H, W)."""
        return tuple(
            (n + 2 * pad - window + (stride - 1 if self.cover_all else 0)) // stride + 1
            for n, window, pad, stride in zip(size, self.window, self.pad, self.stride, strict=True)
        )


@dataclass(frozen=True)
class BatchNorm:
    """The attributes of a batch normalization.

    Attributes:
        eps: added to the variance.
        decay: share of the running statistics that is kept in a step, Chainer's ``decay``; cuDNN's momentum is
            ``1 - decay``.
        relu: whether a ReLU follows, after the addition if there is one.
    """

    eps: float = 2e-5
    decay: float = 0.9
    relu: bool = False


class Normalized(NamedTuple):
    """A batch normalization by the statistics of the batch with its input, as arguments of ``batch_norm``.

    Attributes:
        x: (..., C) in the storage dtype.
        gamma: (C,) float32.
        beta: (C,) float32.
        running: ``None`` or ``(mean, variance)``, which move.
        attributes: :class:`BatchNorm`.
        sums: ``None``, or the sums that the convolution returned together with ``x``.
    """

    x: Any
    gamma: Any
    beta: Any
    running: Any
    attributes: BatchNorm
    sums: Any = None


@dataclass(frozen=True)
class Following:
    """The batch normalization with statistics of the batch that follows a convolution.

    Attributes:
        relu: whether a ReLU follows it, after the addition if there is one.
        add: whether something is added to it.
    """

    relu: bool = False
    add: bool = False


@dataclass(frozen=True)
class LocalResponseNorm:
    """The attributes of a local response normalization: ``x / (k + alpha * (sum of squares in the window)) ** beta``.

    Attributes:
        n: channels of the window, which reaches ``n // 2`` to each side of its own channel.
        k: constant added to the sum.
        alpha: factor on the sum; it is not divided by ``n``.
        beta: the exponent.
    """

    n: int = 5
    k: float = 2.0
    alpha: float = 1e-4
    beta: float = 0.75

    def reach(self, channels):
        """Returns the number of channels that the window reaches to each side, limited by the number of channels."""
        return min(self.n // 2, max(channels - 1, 0))


class Saved(NamedTuple):
    """The results of the forward pass that the backward pass of a batch normalization needs, beside the input.

    Attributes:
        mean: (C,) float32, of the batch.
        invstd: (C,) float32, 1 / sqrt(variance + eps), with the biased variance of the batch.
        mask: where the ReLU after an addition was open, in a backend-specific form; otherwise ``None``.
        count: number of elements of a channel in all processes, in a backend-specific form; ``None`` if the batch
            belongs to this process alone.
    """

    mean: Any
    invstd: Any
    mask: Any = None
    count: Any = None


def is_in_plane(node):
    """Whether the windows of a pooling node have two axes."""
    return getattr(node, "ndim", 2) == 2


def pooling_of(node, cover_all=False):
    """Returns the :class:`~mixprec.backends.geometry.Pooling` of a node, with any number of spatial axes."""
    if hasattr(node, "ksize"):
        numbers = node.ksize, node.stride, node.pad
    else:
        numbers = (node.kh, node.kw), (node.sy, node.sx), (node.ph, node.pw)
    return Pooling(*map(tuple, numbers), bool(cover_all))
