"""The first questions to a GPU, each in a process of its own: what hangs or crashes costs only its own answer.

python -m benchmarks.gpu_check.smoke NAME

The last line that is printed is the answer; the exit status is 1 if it is not what mixprec counts on.
"""

import contextlib
import functools
import sys
import time
from unittest import mock

import mixprec

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from benchmarks.gpu_check import smoke_batch_norm, smoke_nccl
from mixprec import backends
from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.cudnn import settings as cudnn
from mixprec.backends.geometry import Convolution

_STEPS = 8


class Three(chainer.Chain):
    """Three layers; the second one is beside a connection that skips it, so that two gradients are added."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = L.Convolution2D(3, 16, 3, pad=1, nobias=True)
            self.norm = L.BatchNormalization(16)
            self.second = L.Convolution2D(16, 16, 3, pad=1, nobias=True)
            self.norm2 = L.BatchNormalization(16)
            self.last = L.Linear(16, 10)

    def forward(self, x):
        h = F.relu(self.norm(self.first(x)))
        h = F.relu(self.norm2(self.second(h)) + h)
        return self.last(F.average(h, axis=(2, 3)))


def kernel(xp):
    """NVRTC compiles an own kernel, and it computes what NumPy does."""
    x = np.random.default_rng(0).normal(size=(4, 16, 16, 64)).astype(np.float16)
    begun = time.perf_counter()
    array = xp.asarray(x)
    y = backends.primitives_of(array).relu(array)
    seconds = time.perf_counter() - begun
    _equal(xp.asnumpy(y), PRIMITIVES.relu(x))
    return f"an own kernel is right; compiled and loaded in {seconds:.2f} s"


def convolution(xp):
    """One convolution of cuDNN."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 28, 28, 64)).astype(np.float16)
    w = rng.normal(size=(64, 3, 3, 64)).astype(np.float16) / np.float16(24)
    three = Convolution((1, 1), (1, 1))
    begun = time.perf_counter()
    device = xp.asarray(x)
    primitives = backends.primitives_of(device)
    y = xp.asnumpy(primitives.conv_fprop(device, xp.asarray(w), three)).astype(np.float32)
    seconds = time.perf_counter() - begun
    error = float(np.abs(y - PRIMITIVES.conv_fprop(x, w, three).astype(np.float32)).max())
    plans = ", ".join(plan.engine for plan in primitives.cudnn.plans()) or "no plan"
    if not error < 2**-6:
        raise AssertionError(f"a convolution is off by {error:.3g}: {plans}")
    return f"a convolution is right to {error:.1g}; cuDNN loaded and built {plans} in {seconds:.2f} s"


def batch_norm(xp):
    """What is not proven of cuDNN's batch normalization."""
    return smoke_batch_norm.answer(xp)


def capture(xp):
    """A step of three layers is captured, and launched; the losses are those of eager steps."""
    eager, _ = _losses(xp)
    found, replays = _losses(xp, captured=True)
    if found != eager:
        raise AssertionError(f"{replays} launches of a graph: losses {found}, eager {eager}")
    return f"{replays} launches of a captured step, losses as in eager ones: {found[-1]:.4f} at last"


def sums(xp):
    """In which order CuPy writes a sum of two NHWC arrays, and how many conversions of layout a step has for it."""
    one, two = (xp.zeros((2, 4, 4, 8), np.float16).transpose(0, 3, 1, 2) for _ in range(2))
    kept = (one + two).strides == one.strides
    model, optimizer = _trained(xp)
    x, t = _batch(xp)
    optimizer.update(model, x, t)
    with _conversions(backends.primitives_of(x)) as found:
        optimizer.update(model, x, t)
    text = f"CuPy's sum of two NHWC views is in {'their' if kept else 'C'} order; conversions of layout in a step of"
    text = f"{text} a net with a sum of gradients: {len(found)}"
    if len(found) > 1:  # the images
        raise AssertionError(f"{text}, where only that of the images should be: {', '.join(found)}")
    return f"{text}, that of the images"


def nccl(xp):
    """One process of NCCL: its calls, in a graph as well; steps with a communicator are steps without, bit for bit."""
    communicator = smoke_nccl.Alone()
    text = f"calls are right, {smoke_nccl.calls(xp, communicator)} launches of graphs with them, too"
    print(text, flush=True)
    without, _ = _losses(xp)
    with smoke_nccl.without_mpi():
        for captured in (False, True):
            found, replays = _losses(xp, captured=captured, communicator=communicator)
            if found != without:
                kind = f"{replays} launches of a graph" if captured else "eager steps"
                raise AssertionError(f"{text}; {kind} with a communicator: losses {found}, without {without}")
    return f"{text}; steps with a communicator, {replays} of them launches, have the losses of steps without"


CHECKS = {check.__name__: check for check in (kernel, convolution, batch_norm, capture, sums, nccl)}


def main(name):
    """Runs one check on the first GPU and prints what it has found; returns the exit status."""
    chainer.get_device("@cupy:0").use()
    import cupy

    cudnn.configure(autotune="off", deterministic=True)  # the same bits in a graph and without
    try:
        print(CHECKS[name](cupy))
    except AssertionError as error:
        print(f"wrong: {error}")
        return 1
    return 0


def _losses(xp, captured=False, **settings):
    """Trains for some steps; returns losses, and the number of launches of a graph."""
    model, optimizer = _trained(xp, **settings)
    step = mixprec.capture(optimizer) if captured else functools.partial(optimizer.update, model)
    x, t = _batch(xp)
    found = []
    for _ in range(_STEPS):
        step(x, t)
        found.append(float(_received(model.loss.array)))
    if captured and (step.why_not is not None or not step.replays):
        raise AssertionError(f"no graph was launched: {step.report()}")
    return found, step.replays if captured else 0


def _trained(xp, **settings):
    """A converted network on the device and its optimizer, both always the same."""
    np.random.seed(0)
    model = L.Classifier(Three())
    mixprec.convert(model, np.zeros((2, 3, 16, 16), np.float32))
    model = _sent(model)
    inner = chainer.optimizers.MomentumSGD(0.01)
    return model, mixprec.MixedPrecisionOptimizer(inner, 128.0, **settings).setup(model)


def _sent(model):
    return model.to_device(chainer.get_device("@cupy:0"))


def _received(array):
    return chainer.cuda.to_cpu(array)


def _batch(xp):
    images = np.random.default_rng(1).normal(size=(8, 3, 16, 16)).astype(np.float32)
    return xp.asarray(images), xp.asarray(np.arange(8, dtype=np.int32))


@contextlib.contextmanager
def _conversions(primitives):
    """Gives a list of the conversions of layout inside of the block."""
    found = []

    def noting(name):
        function = getattr(primitives, name)
        return lambda x, *arguments, **keywords: (
            found.append(f"{name} of {x.shape}") or function(x, *arguments, **keywords)
        )

    with contextlib.ExitStack() as stack:
        for name in ("to_nhwc", "to_nchw"):
            stack.enter_context(mock.patch.object(primitives, name, noting(name), create=True))
        yield found


def _equal(found, expected):
    if not np.array_equal(found, expected):
        raise AssertionError(f"{int((found != expected).sum())} of {expected.size} elements are wrong")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
