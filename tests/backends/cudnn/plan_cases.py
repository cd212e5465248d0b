"""What training a network asks of cuDNN: its convolutions and batch normalizations, forward and backward.

Found by running the plain model on one image and looking at Chainer's graph: which function takes what from which.
"""

import collections
import functools

import chainer
import numpy as np
from chainer.functions.activation.relu import ReLU
from chainer.functions.connection.convolution_2d import Convolution2DFunction
from chainer.functions.connection.linear import LinearFunction
from chainer.functions.math.basic_math import Add
from chainer.functions.normalization.batch_normalization import BatchNormalization

import models
from mixprec.backends.geometry import Convolution
from tests.backends.cudnn import operations
from tests.graph_nodes import nodes_behind

NETWORKS = ("resnet18", "resnet50", "resnet101", "resnext50_32x4d")
STEM_CHANNELS = 4  # three would cost cuDNN a workspace of 100 MB, and images come with zeros up to here


@functools.cache
def nodes_of(network):
    """Returns the function nodes of a forward pass of one image, and a dict from the id of one to those after it."""
    model = models.MODELS[network]()
    image = np.zeros((1, 3, 224, 224), np.float32)
    with chainer.using_config("train", True):
        nodes, followers = nodes_behind(model(image)), collections.defaultdict(list)
    for node in nodes:
        for variable in node.inputs:
            if variable.creator_node is not None:
                followers[id(variable.creator_node)].append(node)
    return nodes, followers


def operations_of(network, batch, dtype):
    """Returns the operations of a training step, each once, by the order of their text."""
    nodes, followers = nodes_of(network)
    found = set()
    for node in nodes:
        if isinstance(node, Convolution2DFunction):
            found.update(_convolution(node, batch, dtype))
        elif isinstance(node, LinearFunction):
            found.update(_linear(node, batch, dtype))
        elif isinstance(node, BatchNormalization):
            found.update(_batch_norm(node, followers, batch, dtype))
    return sorted(found, key=str)


def _convolution(node, batch, dtype):
    (_, c, h, width), (k, _, r, s) = (variable.shape for variable in node.inputs)
    is_stem = c == 3
    c = STEM_CHANNELS if is_stem else c
    x, w = (batch, h, width, c), (k, r, s, c // node.groups)
    convolution = Convolution((node.sy, node.sx), (node.ph, node.pw), (node.dy, node.dx), node.groups)
    yield operations.conv_fprop(x, w, convolution, dtype)
    yield operations.conv_wgrad(x, w, convolution, dtype)
    if not is_stem:
        yield operations.conv_dgrad(x, w, convolution, dtype)


def _linear(node, batch, dtype):
    """A 1x1 convolution of one pixel."""
    k, c = node.inputs[1].shape
    x, w = (batch, 1, 1, c), (k, 1, 1, c)
    yield operations.conv_fprop(x, w, Convolution(), dtype, b=dtype)
    yield operations.conv_wgrad(x, w, Convolution(), dtype)
    yield operations.conv_dgrad(x, w, Convolution(), dtype)


def _batch_norm(node, followers, batch, dtype):
    """An addition is fused with the first of its inputs; the other, in a shortcut, stays plain."""
    _, c, h, w = node.inputs[0].shape
    (after,) = followers[id(node)]
    add = isinstance(after, Add) and after.inputs[0].creator_node is node
    relu = add or isinstance(after, ReLU)
    if add:
        assert all(isinstance(follower, ReLU) for follower in followers[id(after)])
    yield operations.batch_norm((batch, h, w, c), dtype, relu=relu, add=add)
    yield operations.batch_norm_backward((batch, h, w, c), dtype, relu=relu, add=add)
