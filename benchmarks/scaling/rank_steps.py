"""What runs in a rank: training steps of one program, in blocks that are timed."""

import time

import chainer
import chainer.links as L
import numpy as np
from chainer import optimizers

import mixprec

MIXPREC, PLAIN, WRAPPED = "mixprec", "plain Chainer", "mixprec in ChainerMN's optimizer"
_CLASSES, _SIZE = 10, 32
_LR = 1e-5  # so small that the images are not learnt by heart
_WARM = 4  # steps: the first ones look at the model, agree on buckets and allocate
_prepared = {}


def prepare(program, network, dtype, communicates):
    """Makes a model, its optimizer and images; the same model and other images on each rank.

    Args:
        program: :data:`MIXPREC`, :data:`PLAIN`, or :data:`WRAPPED`.
        network: callable, at the top of a module, from the number of classes to a Chainer link from images to logits.
        dtype: that mixprec computes in; plain Chainer computes in float32.
        communicates: whether gradients are averaged over all ranks.
    """
    chainer.config.dtype = np.float32
    np.random.seed(0)
    model = L.Classifier(network(_CLASSES))
    communicator = _communicator() if communicates else None
    optimizer = optimizers.MomentumSGD(lr=_LR)
    if program == PLAIN:
        optimizer = _in_chainermn(optimizer, communicator)
    else:
        own = {"communicator": communicator} if communicates and program == MIXPREC else {}
        optimizer = mixprec.MixedPrecisionOptimizer(optimizer, None if dtype == "float32" else "dynamic", **own)
        optimizer = _in_chainermn(optimizer, communicator if program == WRAPPED else None)
    optimizer.setup(model)
    if program != PLAIN:
        mixprec.convert(model, compute=dtype)
    np.random.seed(communicator.rank if communicates else 0)
    _prepared.update(model=model, optimizer=optimizer, batches={})


def warm_up(batch):
    """Returns the seconds of a step with so many images, after a few that are not timed."""
    block(batch, _WARM)
    return block(batch, 2) / 2


def block(batch, steps):
    """Returns the seconds of so many steps with so many images each."""
    model, optimizer = _prepared["model"], _prepared["optimizer"]
    x, t = _images(batch)
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.update(model, x, t)
    return time.perf_counter() - start


def _images(batch):
    """A batch of noise, the same one each time."""
    batches = _prepared["batches"]
    if batch not in batches:
        x = np.random.standard_normal((batch, 3, _SIZE, _SIZE)).astype(np.float32)
        batches[batch] = x, np.random.randint(0, _CLASSES, batch).astype(np.int32)
    return batches[batch]


def _communicator():
    import chainermn

    return chainermn.create_communicator("naive")


def _in_chainermn(optimizer, communicator):
    if communicator is None:
        return optimizer
    import chainermn

    return chainermn.create_multi_node_optimizer(optimizer, communicator)
