"""Counts launches of forward and backward pass of :mod:`benchmarks.resnet_by_hand` on the stand-in for a device."""

import collections
import dataclasses

import chainer
import numpy as np

from benchmarks import resnet_by_hand
from benchmarks.recording_device import null_device
from benchmarks.step.counts import LAUNCHES
from mixprec import functions
from mixprec.backends.device_log import recording

NETWORKS = {
    "resnet18": resnet_by_hand.resnet18,
    "resnet50": resnet_by_hand.resnet50,
    "resnext50": resnet_by_hand.resnext50,
}
OTHERS = "of Chainer: "


@dataclasses.dataclass(frozen=True)
class Launches:
    """All launches of a forward and backward pass.

    Attributes:
        launches: number of them by primitive, and by function where Chainer computes by itself, such as the sums of
            gradients where a network branches.
        reads: number of values that the host would have waited for.
    """

    launches: dict
    reads: int

    @property
    def total(self):
        """Number of all launches."""
        return sum(self.launches.values())


def count(name, *, batch=32, size=224):
    """Counts launches of a network in float16, from images (N, 3, size, size) on.

    The batch is as a loader hands it over, float32 and NCHW. Nothing is computed. Memory for all arrays has to be
    there, but is not touched.

    Args:
        name: one of :data:`NETWORKS`.
        batch: images in a batch.
        size: height and width of an image in pixels.

    Returns:
        Launches
    """
    network, x, t = _stand_ins(name, batch, size, "float16")
    with recording() as notes:
        _step(network, x, t)
    launches = collections.Counter(note.primitive or OTHERS + note.name for note in notes if note.kind in LAUNCHES)
    return Launches(dict(launches), sum(note.kind == "read" for note in notes))


def calls(name, *, batch=32, size=224, dtype="float16"):
    """Returns the calls of primitives that :func:`count` would count.

    They are :class:`~benchmarks.recording_device.primitive_calls.Call`.
    """
    network, x, t = _stand_ins(name, batch, size, dtype)
    with null_device.calls() as found:
        _step(network, x, t)
    return found


def _stand_ins(name, batch, size, dtype):
    null_device.install()
    launcher = null_device.Launcher()
    x, t = launcher.empty((batch, 3, size, size), np.float32), launcher.full((batch,), 0, np.int32)
    return null_device.send(NETWORKS[name](1000, dtype)), x, t


def _step(network, x, t):
    network.cleargrads()
    dtype = network.fc.W.dtype
    images = functions.to_nhwc(chainer.Variable(x, requires_grad=False), dtype, channels=4)
    functions.softmax_cross_entropy(network(images), t).backward()
