"""Mixup and CutMix: images of a batch, mixed with other images of it, and the labels of both.

The updaters pass :meth:`Mixing.mix` to the converter, which calls it on each batch that it has sent to the device.
"""

import math
from typing import NamedTuple

import chainer
import numpy as np

from mixprec.backends import primitives_of
from mixprec.base import arguments


class Mixture(NamedTuple):
    """Parameters for mixing the images of a batch with the images in reversed order.

    Attributes:
        share: share of an image in each pixel outside the box, from 0 to 1.
        box: ``(top, left, bottom, right)`` in pixels, filled by the other image alone.
        target: share of the image's label, float32.
    """

    share: float
    box: tuple
    target: np.float32


class Mixing:
    """Mixes batches of images by Mixup, by CutMix, or by one of them in each batch.

    Mixup (Zhang et al. 2018, arXiv:1710.09412) takes the mean of two images, with a share from the distribution
    Beta(alpha, alpha). CutMix (Yun et al. 2019, arXiv:1905.04899) draws a share in the same way, and pastes a box of
    the other image over the rest: its sides are ``sqrt(1 - share)`` times the sides of the image, its centre is
    uniform, and it is clipped at the borders. Labels get the shares of the visible pixels. As in timm, image n is mixed
    with image N - 1 - n, and all images of a batch in the same way.

    The random numbers follow from the seed, the rank and the number of the batch: a run that resumes from a
    snapshot mixes like a run that was never stopped, with any number of threads.

    Args:
        mixup: alpha of Mixup's shares; 0 switches Mixup off.
        cutmix: alpha of CutMix's shares; 0 switches CutMix off.
        cutmix_probability: probability of CutMix in a batch, if both are on.
        probability: probability that a batch is mixed at all.
        seed: from 0 to 2^32 - 1.
        rank: rank of the process, if several train together; from 0 to 2^32 - 1.

    Raises:
        ValueError: an argument is not a number, or out of its range; or both alphas are 0.

    Example:
        >>> mixing = Mixing(mixup=0.2, cutmix=1.0, seed=1)
        >>> x, t = np.zeros((2, 3, 8, 8), np.float32), np.array([4, 7], np.int32)
        >>> x, t, second, share = mixing(x, t, number=0)
        >>> second.tolist(), share.dtype
        ([7, 4], dtype('float32'))
    """

    def __init__(self, mixup=0.0, cutmix=0.0, *, cutmix_probability=0.5, probability=1.0, seed=0, rank=0):
        self._mixup = arguments.number("mixup", mixup, 0.0)
        self._cutmix = arguments.number("cutmix", cutmix, 0.0)
        if not (self._mixup or self._cutmix):
            raise ValueError("mixup or cutmix must be above 0; found 0 for both")
        self._cutmix_probability = _share("cutmix_probability", cutmix_probability)
        self._probability = _share("probability", probability)
        self._seed, self._rank = (_word(name, value) for name, value in (("seed", seed), ("rank", rank)))

    def __call__(self, x, t, number):
        """Mixes a batch.

        Args:
            x: images (N, C, H, W) in a storage dtype, as from a converter; preferably in the memory order (N, H, W, C),
                as other orders are copied.
            t: labels (N,), signed integers; all of them count.
            number: number of the batch since the beginning of training, from 0.

        Returns:
            ``(x, t, second, share)``: mixed images (N, C, H, W), in the memory order (N, H, W, C); the labels; the
            labels of the images that were mixed in; and the share of the former, () float32. Pass the last two as
            ``mixed=(second, share)`` to :func:`mixprec.functions.softmax_cross_entropy`.
        """
        mixed, *others = self.mix(x.transpose(0, 2, 3, 1), t, number)
        return mixed.transpose(0, 3, 1, 2), *others

    def mix(self, x, t, number):
        """Mixes a batch in the layout of loaders: images (N, H, W, C), before and after; otherwise like a call."""
        mixture, device = self.draw(number, *x.shape[1:3]), chainer.backend.get_device_from_array(x)
        with chainer.using_device(device):
            images = device.xp.ascontiguousarray(x)
            mixed = primitives_of(x).mix_images(images, mixture.share, mixture.box)
            second = device.xp.ascontiguousarray(t[::-1])
        return mixed, t, second, device.send(np.array(mixture.target))

    def __str__(self):
        kinds = [
            f"{name} (alpha {alpha:g})" for name, alpha in (("CutMix", self._cutmix), ("Mixup", self._mixup)) if alpha
        ]
        if len(kinds) == 2:
            kinds[0] += f" in {100 * self._cutmix_probability:g}% of the batches"
            kinds[1] += " in the others"
        of_all = (
            "" if self._probability == 1 else f"; {100 * (1 - self._probability):.3g}% of the batches are not mixed"
        )
        return ", ".join(kinds) + of_all

    def draw(self, number, height, width):
        """Returns the :class:`Mixture` of a batch of images of this size in pixels."""
        # Counters of their own: the Pillow loader draws crops from the same keys.
        random = np.random.Generator(np.random.Philox(key=[self._seed, number], counter=[0, 0, 1, self._rank]))
        is_mixed, which = random.random(2)
        is_cut = self._cutmix > 0 and (not self._mixup or which < self._cutmix_probability)
        alpha = self._cutmix if is_cut else self._mixup
        share, *centre = random.beta(alpha, alpha), *random.random(2)
        if is_mixed >= self._probability:
            return Mixture(1.0, (0, 0, 0, 0), np.float32(1))
        if not is_cut:
            return Mixture(share, (0, 0, 0, 0), np.float32(share))
        (top, bottom), (left, right) = (
            _cut(side, math.sqrt(1 - share), at) for side, at in zip((height, width), centre, strict=True)
        )
        covered = (bottom - top) * (right - left) / (height * width)
        return Mixture(1.0, (top, left, bottom, right), np.float32(1 - covered))


def _cut(side, ratio, at):
    """Returns where a box of ``ratio`` of a side begins and ends, with its centre at ``at``, from 0 to 1."""
    half, centre = int(side * ratio) // 2, int(at * side)
    return max(centre - half, 0), min(centre + half, side)


def _word(name, value):
    value = arguments.whole(name, value, 0)
    if value >= 2**32:
        raise ValueError(f"{name} must be from 0 to 2^32 - 1; found {value}")
    return value


def _share(name, value):
    value = arguments.number(name, value, 0.0)
    if value > 1:
        raise ValueError(f"{name} must be from 0 to 1; found {value}")
    return value
