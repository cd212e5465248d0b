"""The files of mixprec that a reader has to enter to follow a forward pass, an update, a training step."""

import gc
import sys

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec

ROOT = mixprec.__path__[0]
# Files on NumPy, by the native library. A change of the code may lower them.
MOST = {"forward": 16, "update": 12, "step": 38, "captured": 42}


def _files(work):
    """Returns the files of mixprec whose functions a third call runs: the first two of a converted model are traced."""
    work()
    work()
    gc.collect()  # not within the call: finalizers are no part of the work
    entered = set()
    sys.setprofile(lambda frame, event, _: entered.add(frame.f_code.co_filename))
    try:
        work()
    finally:
        sys.setprofile(None)
    return sorted(file for file in entered if file.startswith(ROOT))


def _block():
    return chainer.Sequential(L.Convolution2D(3, 8, 3, pad=1, nobias=True), L.BatchNormalization(8), F.relu)


@pytest.mark.slow
def test_a_step_enters_few_files():
    block, model = _block(), L.Classifier(chainer.Sequential(_block(), L.Linear(8 * 8 * 8, 10)))
    mixprec.convert(block)
    mixprec.convert(model)
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(1e-4), 2.0**10).setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-4))
    x, t = np.ones((4, 3, 8, 8), np.float32), np.arange(4, dtype=np.int32)
    captured = mixprec.capture(optimizer)
    found = {
        "forward": _files(lambda: block(x)),
        "step": _files(lambda: optimizer.update(model, x, t)),
        "update": _files(optimizer.update),
        "captured": _files(lambda: captured(x, t)),
    }
    for name, files in found.items():
        assert len(files) <= MOST[name], (name, files)
