"""How many launches a forward and backward pass of a network needs, counted on a stand-in for the device."""

import collections
import dataclasses

import chainer
import numpy as np

from benchmarks import recording, resnet
from mixprec import functions
from mixprec.backends.notes import taking

NETWORKS = {"resnet18": resnet.resnet18, "resnet50": resnet.resnet50, "resnext50": resnet.resnext50}
BOUND = 300  # for ResNet-50
OTHERS = "of Chainer: "
LAUNCHES = ("kernel", "cudnn", "array")  # kinds of notes


@dataclasses.dataclass(frozen=True)
class Counts:
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
    """Counts launches of a network of :mod:`benchmarks.resnet` in float16, from images (N, 3, size, size) on.

    The batch is as a loader hands it over, float32 and NCHW. Nothing is computed; memory for all arrays has to be
    there, but is not touched.

    Args:
        name: one of :data:`NETWORKS`.
        batch: images in a batch.
        size: height and width of an image in pixels.

    Returns:
        Counts
    """
    network, x, t = _stand_ins(name, batch, size, "float16")
    with taking() as notes:
        _step(network, x, t)
    launches = collections.Counter(note.primitive or OTHERS + note.name for note in notes if note.kind in LAUNCHES)
    return Counts(dict(launches), sum(note.kind == "read" for note in notes))


def calls(name, *, batch=32, size=224, dtype="float16"):
    """Returns the calls of primitives, :class:`~benchmarks.recording.Call`, that :func:`count` would count."""
    network, x, t = _stand_ins(name, batch, size, dtype)
    with recording.calls() as found:
        _step(network, x, t)
    return found


def table(counts):
    """Returns counts as an aligned text table."""
    lines = [f"  {name:34}{launches:8}" for name, launches in counts.launches.items()]
    return "\n".join([*lines, f"  {'all':34}{counts.total:8}", f"  {'values read by the host':34}{counts.reads:8}"])


def _stand_ins(name, batch, size, dtype):
    recording.install()
    launcher = recording.Launcher()
    x, t = launcher.empty((batch, 3, size, size), np.float32), launcher.full((batch,), 0, np.int32)
    return recording.send(NETWORKS[name](1000, dtype)), x, t


def _step(network, x, t):
    network.cleargrads()
    dtype = network.fc.W.dtype
    images = functions.to_nhwc(chainer.Variable(x, requires_grad=False), dtype, channels=4)
    functions.softmax_cross_entropy(network(images), t).backward()
