"""A small network with each pattern that the levels of a roofline know, and its kernels, worked out by hand."""

import chainer
import chainer.functions as F
import chainer.links as L

BATCH, SIZE = 2, 4
X = 2 * 3 * 4 * 4 * BATCH  # bytes in float16 of the images,
A = 2 * 8 * 4 * 4 * BATCH  # of all between the convolutions,
P = 2 * 8 * BATCH  # of what is pooled,
Y = 2 * 1000 * BATCH  # of the logits,
S = 2 * BATCH  # of labels or losses, a number each,
W1, W2, W3 = 2 * 8 * 3 * 9, 2 * 8 * 8, 2 * 8 * 1000  # of the weights,
B = 8 * 4 * 4 * BATCH // 8  # and of a bit for each element
WEIGHTS, VECTORS = (W1 + W2 + W3) // 2, 4 * 8 + 1000


class Small(chainer.Chain):
    """3x3 convolution, BN, ReLU; 1x1 convolution, BN, shortcut, ReLU; average, linear layer."""

    def __init__(self, classes):
        super().__init__()
        with self.init_scope():
            self.conv1, self.bn1 = L.Convolution2D(3, 8, 3, pad=1, nobias=True), L.BatchNormalization(8)
            self.conv2, self.bn2 = L.Convolution2D(8, 8, 1, nobias=True), L.BatchNormalization(8)
            self.fc = L.Linear(8, classes)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)) + h)
        return self.fc(F.reshape(F.average_pooling_2d(h, 4), (-1, 8)))


_BN, _BNB, _T = "batch_normalization", "batch_normalization_backward", "transpose"
_C1, _C2 = ("convolution", X + W1 + A), ("convolution", 2 * A + W2)
_C2B = [("convolution_dgrad", 2 * A + W2), ("convolution_wgrad", 2 * A + W2)]
_C1B = ("convolution_wgrad", X + W1 + A)
_HEAD = [
    *[("average_pooling", A + P), ("linear", P + W3 + Y), ("loss", Y + S + S)],
    *[("loss_backward", S + Y + S + Y), ("linear_dgrad", Y + W3 + P), ("linear_wgrad", P + Y + W3), ("linear_bias", Y)],
    ("average_pooling_backward", P + A),
]
_UPDATE = [("update", 2 * WEIGHTS + 4 * VECTORS), ("update", 24 * WEIGHTS + 20 * VECTORS)]
_RELU, _RELUB, _SUM = ("relu", 2 * A), ("relu_backward", 3 * A), ("gradient_sum", 3 * A)
_AROUND1, _AROUND2 = [(_T, 2 * X + 2 * W1), (_T, 2 * A)], [(_T, 2 * A), (_T, 2 * A)]


def _unfused(around1, around2):
    dgrad, wgrad = _C2B
    return [
        *[_C1, *around1, (_BN, 3 * A), _RELU],
        *[_C2, *around2, (_BN, 3 * A), ("add", 3 * A), _RELU, *_HEAD],
        *[_RELUB, (_BNB, 5 * A), dgrad, *around2, wgrad, *around2, _SUM],
        *[_RELUB, (_BNB, 5 * A), _C1B, *around1, *_UPDATE],
    ]


KERNELS = {
    "nchw": _unfused(_AROUND1, _AROUND2),
    "nhwc": _unfused([], []),
    "nhwc-fused": [
        *[_C1, (_BN, 3 * A), _C2, (_BN, 4 * A + B), *_HEAD],
        *[(_BNB, 6 * A + 2 * B), *_C2B, _SUM, (_BNB, 5 * A), _C1B, *_UPDATE],
    ],
    "nhwc-conv-fused": [
        *[_C1, _C2, (_BN, 3 * A + B), *_HEAD, (_BNB, 6 * A + 2 * B)],
        *[("convolution_dgrad", 3 * A + W2), _C2B[1], (_BNB, 5 * A), _C1B, *_UPDATE],
    ],
    "nhwc-all-fused": [
        *[_C1, _C2, (_BN, 3 * A + B), *_HEAD, (_BNB, 6 * A + 2 * B)],
        *[("convolution_dgrad", 4 * A + W2), _C2B[1], (_BNB, 3 * A), _C1B, *_UPDATE],
    ],
}
