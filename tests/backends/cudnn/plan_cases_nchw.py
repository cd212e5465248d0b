"""What plain Chainer asks of cuDNN for its own networks, through the bridge: the operations of a training step.

Found by running a network on one image and asking for the same convolutions, forward and backward, of a batch.
"""

import itertools
import types

import chainer
import chainer.links as L
import numpy as np
from chainer.functions.connection.convolution_2d import Convolution2DFunction
from chainer.functions.connection.deconvolution_2d import Deconvolution2DFunction

from mixprec.backends.geometry import Convolution
from mixprec.backends.nchw import Nchw
from tests.graph_nodes import nodes_behind


class Generator(chainer.ChainList):
    """That of Chainer's example ``dcgan``, after its linear layer."""

    def __init__(self):
        channels = (512, 256, 128, 64)
        layers = [L.Deconvolution2D(*pair, 4, 2, 1) for pair in itertools.pairwise(channels)]
        super().__init__(*layers, L.Deconvolution2D(64, 3, 3, 1, 1))

    def forward(self, x):
        for layer in self:
            x = layer(x)
        return x


def _classifier(link, last):
    return lambda: lambda x: link(pretrained_model=None)(x, layers=[last])[last]


# A function that makes the network, and the shape of an image.
NETWORKS = {
    "resnet50": (_classifier(L.ResNet50Layers, "fc6"), (3, 224, 224)),
    "vgg16": (_classifier(L.VGG16Layers, "fc8"), (3, 224, 224)),
    "googlenet": (_classifier(L.GoogLeNet, "loss3_fc"), (3, 224, 224)),
    "dcgan_generator": (Generator, (512, 4, 4)),
}


class Collected:
    """In place of a :class:`~mixprec.backends.cudnn.context.CudnnContext`: has all engines, and keeps what is asked."""

    def __init__(self):
        self.operations = set()

    def supports(self, operation):
        self.operations.add(operation)
        return True

    def plan(self, operation):
        self.operations.add(operation)
        return types.SimpleNamespace(run=lambda *addresses: None)

    def known(self, key):
        return None

    def measures(self):
        return False


def operations_of(network, batch, dtype):
    """Returns the operations of a training step, each once, by the order of their text."""
    make, shape = NETWORKS[network]
    with chainer.using_config("train", True):
        last = make()(np.zeros((1, *shape), np.float32))
    collected = Collected()
    nchw = Nchw(types.SimpleNamespace(address=lambda array: 0), collected)
    for node in nodes_behind(last):
        if isinstance(node, (Convolution2DFunction, Deconvolution2DFunction)):
            x, w, *b = (np.empty(variable.shape, dtype) for variable in node.inputs)
            y = node.outputs[0]()
            x, y = (np.empty((batch, *each.shape[1:]), dtype) for each in (x, y))
            convolution = Convolution((node.sy, node.sx), (node.ph, node.pw), (node.dy, node.dx), node.groups)
            if isinstance(node, Deconvolution2DFunction):
                x, y, b = y, x, []  # forward is the gradient of a convolution; its bias is added by a kernel
            nchw.conv_fprop(x, w, b[0] if b else None, y, convolution)
            nchw.conv_dgrad(y, w, None, x, convolution)
            nchw.conv_wgrad(x, y, w, convolution)
    return sorted(collected.operations, key=str)
