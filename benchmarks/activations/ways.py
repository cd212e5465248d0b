"""Training steps of a U-Net in the ways that ``scripts/benchmark.py memory`` compares."""

import contextlib
import dataclasses
import time

import chainer
import chainer.functions as F
import numpy as np
from chainer import optimizers

import mixprec
from models.unet import DoubleConvolution, UNet

MULTIPLE = 256  # of pixels: sizes of images. A U-Net takes those of 16; a finer search takes longer
_CLASSES = 2
RECORDED = 2  # steps after which :func:`mixprec.offload` makes its plan


@dataclasses.dataclass(frozen=True)
class Way:
    """What happens to activations.

    Attributes:
        blocks: whether each block of two convolutions is computed again as a whole.
        offload: whether the step runs in :func:`mixprec.offload`.
        recompute: whether that may compute layers again.
    """

    blocks: bool = False
    offload: bool = False
    recompute: bool = False

    @property
    def warmup(self):
        """Steps before the first one that is timed."""
        return RECORDED if self.offload else 1


KEPT = "kept"
WAYS = {
    KEPT: Way(),
    "recompute: blocks": Way(blocks=True),
    "offload, nothing recomputed": Way(offload=True),
    "offload": Way(offload=True, recompute=True),
    "offload, recompute: blocks": Way(blocks=True, offload=True, recompute=True),
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is the same in all ways.

    Attributes:
        budget: bytes of memory of the process.
        width: of the U-Net.
        batch: images in a batch.
        dtype: that :func:`mixprec.convert` is told to compute in.
        folder: for the file of :func:`mixprec.offload`.
        steps: that are timed.
    """

    budget: int
    width: int
    batch: int
    dtype: str
    folder: str
    steps: int


class _Pixels(chainer.Chain):
    """A U-Net with the loss of each pixel."""

    def __init__(self, width):
        super().__init__()
        with self.init_scope():
            self.predictor = UNet(_CLASSES, width)

    def forward(self, images, labels):
        loss = F.softmax_cross_entropy(self.predictor(images), labels)
        self.loss = float(loss.array)
        return loss


class Training:
    """A converted U-Net, its optimizer and a batch of noise.

    Args:
        way: :class:`Way`.
        setting: :class:`Setting`.
        size: height and width of an image in pixels.

    Attributes:
        model: a link with the U-Net, which returns the loss.
    """

    def __init__(self, way, setting, size):
        np.random.seed(0)
        self.model = _Pixels(setting.width)
        mixprec.convert(self.model, _batch(1, MULTIPLE), compute=setting.dtype)
        if way.blocks:
            for link in self.model.links():
                if isinstance(link, DoubleConvolution):
                    mixprec.recompute(link)
        rule = optimizers.MomentumSGD(0.01)
        self._optimizer = mixprec.MixedPrecisionOptimizer(rule).setup(self.model)
        self._given = _batch(setting.batch, size)

    def step(self, memory=None):
        """Runs a training step, and returns the seconds that it takes.

        Args:
            memory: from :func:`mixprec.offload`, or ``None``.
        """
        begin = time.perf_counter()
        with contextlib.nullcontext() if memory is None else memory:
            self._optimizer.update(self.model, *self._given)
        return time.perf_counter() - begin

    @property
    def loss(self):
        """Of the last step."""
        return self.model.loss


def _batch(count, size):
    random = np.random.default_rng(0)
    images = random.standard_normal((count, 3, size, size), np.float32)
    return images, random.integers(_CLASSES, size=(count, size, size), dtype=np.int32)
