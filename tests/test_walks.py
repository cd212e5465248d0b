"""The files of mixprec that a reader has to enter to follow a forward pass, an update, a training step.

Calls of Python functions of mixprec count: how many files there are, and how often a call lies in another file than the
call before, the first one included.
"""

import gc
import multiprocessing
import sys

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec

ROOT = mixprec.__path__[0]
# Files and changes on NumPy, by the native library. A change of the code may lower them.
MOST = {"forward": (17, 62), "update": (9, 24), "step": (34, 230), "captured": (38, 230)}
# Counted in the same way at commit 81e9f995, before each thing was declared once.
BEFORE = {"forward": (23, 86), "update": (11, 28), "step": (48, 302), "captured": (52, 315)}


def _walk(work, prepare=lambda: None):
    """Returns the files that a third call enters, and its changes of file: the first two of a model are traced."""
    for _ in range(2):
        prepare()
        work()
    prepare()
    gc.collect()  # not within the call: finalizers are no part of the work
    calls = []
    gc.disable()
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_filename) if event == "call" else None)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    calls = [file.removeprefix(ROOT) for file in calls if file.startswith(ROOT)]
    return sorted(set(calls)), sum(file != before for before, file in zip([None, *calls], calls, strict=False))


def _block():
    return chainer.Sequential(L.Convolution2D(3, 8, 3, pad=1, nobias=True), L.BatchNormalization(8), F.relu)


def _walks():
    block, model = _block(), L.Classifier(chainer.Sequential(_block(), L.Linear(8 * 8 * 8, 10)))
    mixprec.convert(block)
    mixprec.convert(model)
    scale = mixprec.DynamicLossScale(init=2.0**10)
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(1e-4), scale).setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-4))
    x, t = np.ones((4, 3, 8, 8), np.float32), np.arange(4, dtype=np.int32)
    captured = mixprec.capture(optimizer)

    def give_gradients():
        model.cleargrads()
        optimizer.scale_loss(model(x, t)).backward()

    return {
        "forward": _walk(lambda: block(x)),
        "step": _walk(lambda: optimizer.update(model, x, t)),
        "update": _walk(optimizer.update, give_gradients),
        "captured": _walk(lambda: captured(x, t)),
    }


@pytest.mark.slow
def test_a_step_enters_few_files(capsys):
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # here other tests have replaced more of Chainer
        found = pool.apply(_walks)
    with capsys.disabled():
        for name, (files, changes) in found.items():
            counted = f"{len(files)} files, {changes} changes"
            print(f"\n{name}: {counted}; at most {MOST[name]}, before {BEFORE[name]}", end="")
    for name, (files, changes) in found.items():
        assert (len(files) <= MOST[name][0], changes <= MOST[name][1]) == (True, True), (name, changes, files)
