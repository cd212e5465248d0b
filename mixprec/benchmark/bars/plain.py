"""The rows of plain Chainer: what a program gets that knows nothing of mixprec, in FP32 (no TF32)."""

import contextlib
import functools

import chainer
import chainer.functions as F
import numpy as np
from chainer import optimizers
from chainer.backends import cuda

from mixprec import environment
from mixprec.benchmark.bars.contestant import Bar

NUMPY = "plain Chainer FP32"
NO_CUDNN, CUDNN = "plain Chainer FP32, no cuDNN", "plain Chainer FP32, cuDNN"
CLASSES = 1000
_LR = 0.01


def bars(specifier):
    """Returns the list of :class:`~mixprec.benchmark.bars.contestant.Bar` for a device, the one to compare with first.

    Args:
        specifier: of the device.
    """
    if specifier == "@numpy":
        return [Bar(NUMPY, functools.partial(step, use_cudnn="never")), Bar(CUDNN, reason="needs a GPU")]
    without = Bar(NO_CUDNN, functools.partial(step, use_cudnn="never"))
    if not cuda.cudnn_enabled:
        return [without, Bar(CUDNN, reason=_why_no_cudnn())]
    return [without, Bar(CUDNN, functools.partial(step, use_cudnn="auto", autotune=True))]


def step(network, device, batch, size, **config):
    """Makes a step of plain Chainer: forward, softmax cross entropy, backward, momentum SGD, on one batch of noise.

    Args:
        network: callable from the number of classes to a Chainer link from images (N, 3, size, size) to logits.
        device: where model and data are.
        batch: images in a batch.
        size: height and width of an image in pixels.
        **config: entries of ``chainer.config`` that are in force in a step.

    Returns:
        callable without arguments
    """
    images = np.random.RandomState(0).normal(size=(batch, 3, size, size)).astype(np.float32)
    x, t = map(device.send, (images, np.arange(batch, dtype=np.int32) % CLASSES))
    with chainer.using_config("dtype", np.float32):
        model = network(CLASSES)
    model.to_device(device)
    optimizer = optimizers.CorrectedMomentumSGD(lr=_LR).setup(model)

    def loss():  # L.Classifier would hold it, and all activations with it, until the next step
        return F.softmax_cross_entropy(model(x), t)

    def run():
        with _using(config):
            optimizer.update(loss)

    return run


def _why_no_cudnn():
    notes = {component.name: component.note for component in environment.components()}
    return notes["Chainer's cuDNN"]


def _using(config):
    stack = contextlib.ExitStack()
    for name, value in config.items():
        stack.enter_context(chainer.using_config(name, value))
    return stack
