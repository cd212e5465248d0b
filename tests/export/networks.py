"""Networks for tests of the export: one with most of what networks for images are made of, and small ones."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np


class Everything(chainer.Chain):
    """A U-Net with groups, dilation, squeeze and excitation, LRN, dropout, and a recurrent head.

    Args:
        for_reference: without what ONNX's own evaluator (1.23) computes wrongly: LRN, whose loop is over images,
            not channels, and groups of transposed convolutions, which get each other's filters.
    """

    def __init__(self, for_reference=False):
        super().__init__()
        self.normalize = F.identity if for_reference else F.local_response_normalization
        groups = 1 if for_reference else 2
        with self.init_scope():
            self.stem = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.bn0 = L.BatchNormalization(8)
            self.down = L.Convolution2D(8, 12, 3, stride=2, pad=2, dilate=2, groups=4)
            self.bn1 = L.BatchNormalization(12, eps=1e-3)
            self.squeeze = L.Linear(12, 4)
            self.excite = L.Linear(4, 12)
            self.depthwise = L.DepthwiseConvolution2D(12, 1, 3, pad=1)
            self.up = L.Deconvolution2D(12, 8, 3, stride=2, pad=1, outsize=(16, 16), groups=groups)
            self.bn2 = L.BatchNormalization(8, use_beta=False)
            self.wide = L.Deconvolution2D(16, 6, 3, pad=2, dilate=2, nobias=True)
            self.bn3 = L.BatchNormalization(6)
            self.cell = L.LSTM(6, 5)
            self.head = L.Linear(5, 4)

    def forward(self, x):
        e0 = F.relu(self.bn0(self.stem(x)))
        e1 = self.bn1(self.down(self.normalize(e0)))
        gate = F.sigmoid(self.excite(F.relu(self.squeeze(F.average_pooling_2d(e1, e1.shape[2:])))))
        e1 = F.relu(e1 * F.broadcast_to(F.reshape(gate, (*gate.shape, 1, 1)), e1.shape))
        e1 = F.dropout(F.leaky_relu(self.depthwise(e1), 0.1))
        d0 = F.concat([e0, F.relu(self.bn2(self.up(e1)))])
        pixels = F.elu(self.bn3(self.wide(d0)))
        self.cell.reset_state()
        rows = F.max_pooling_2d(pixels, 3, stride=2)
        for row in range(3):
            h = self.cell(F.mean(rows[:, :, row], axis=2))
        return {"classes": self.head(h), "pixels": F.softmax(pixels, axis=1)}


def trained(build, *shape, batch=8, steps=2):
    """Builds a network, whose running statistics are then those of some batches.

    Args:
        build: makes a link.
        shape: of an image, such as (3, 16, 16).
        batch: number of images of a batch.
        steps: number of batches.

    Returns:
        ``(link, images)``: float32 (batch, \\*shape).
    """
    np.random.seed(0)
    link = build()
    images = np.random.normal(size=(batch, *shape)).astype(np.float32)
    for step in range(steps):
        link(images * (step + 1) - step)
    random = np.random.RandomState(1)
    for each in link.links():
        if isinstance(each, L.BatchNormalization):
            for param in each.params():
                param.array[...] = random.uniform(0.5, 1.5, param.shape)
    return link, images
