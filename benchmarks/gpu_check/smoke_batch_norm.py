"""Checks of cuDNN's batch normalization: the form of its mask, its variance, statistics moved in place."""

import math

import numpy as np

from mixprec import backends
from mixprec.backends.cuda import batch_norm, operations
from mixprec.backends.geometry import BatchNorm

_SMALL = (2, 3, 3, 16)
LARGE = (256, 56, 56, 64)  # (N, H, W, C), for statistics in place
RUNS = 50
_DECAY, _EPS = 0.25, 1e-3


def answer(xp):
    """Returns a line of answers.

    Args:
        xp: CuPy.

    Raises:
        AssertionError: one is not what mixprec counts on.
    """
    answers = {}
    for name, find in (("mask", _mask), ("variance", _variance)):
        answers[name] = find(xp)
        print(f"{name}: {answers[name][0]}", flush=True)  # in case that the next one is the end
    answers["in place"] = _in_place(xp, LARGE, RUNS)
    text = "; ".join(f"{name}: {found}" for name, (found, _) in answers.items())
    if not all(good for _, good in answers.values()):
        raise AssertionError(text)
    return text


def _mask(xp):
    """``(text, good)``: in which form the mask of a ReLU after an addition is."""
    rng = np.random.default_rng(0)
    x, add = (rng.normal(size=_SMALL).astype(np.float16) for _ in range(2))
    found = []
    for filling in (0x00, 0xFF):
        room = np.full(8 * x.size + 4096, filling, np.uint8)
        y, *_, mask = _run(xp, x, BatchNorm(relu=True), (x, *_ones(4), room), add=add)
        found.append(mask)
    written = (found[0] == found[1]).nonzero()[0]
    size = int(written.max()) + 1 if len(written) else 0
    fits = 0 < size <= x.size * batch_norm.CUDNN_MASK_DTYPE.itemsize
    is_open = (y.astype(np.float32) > 0).reshape(-1)
    packed = {name: np.packbits(is_open, bitorder=name) for name in ("little", "big")}
    form = next(
        (
            f"a bit for each element, {name}-endian"
            for name, bits in packed.items()
            if size == len(bits) and np.array_equal(found[0][:size], bits)
        ),
        "of another form",
    )
    return f"{size} bytes for {x.size} elements, {form}", fits


def _variance(xp):
    """``(text, good)``: whether the running variance is the unbiased one."""
    x = np.random.default_rng(0).normal(2.0, 2.0, size=_SMALL).astype(np.float16)
    exact, rows = x.astype(np.float64).reshape(-1, _SMALL[-1]), math.prod(_SMALL[:-1])
    *_, moved = _run(xp, x, BatchNorm(eps=_EPS, decay=_DECAY), (x, *_ones(4)))
    for name, unbiased in (("unbiased", True), ("biased", False)):
        variance = exact.var(axis=0) * rows / (rows - unbiased)
        if np.allclose(moved, _DECAY + (1 - _DECAY) * variance, rtol=1e-3):
            return name, unbiased == batch_norm.CUDNN_VARIANCE_IS_UNBIASED
    return f"{moved[:4]}, where it was {exact.var(axis=0)[:4]} before", False


def _in_place(xp, shape, runs):
    """``(text, good)``: whether statistics that are input and output at once are moved exactly once, in each run."""
    line = np.random.default_rng(0).normal(1.0, 2.0, size=(1, *shape[1:])).astype(np.float16)
    x = xp.asarray(np.concatenate([line] * min(shape[0], 8)))
    x = xp.concatenate([x] * -(-shape[0] // len(x)))[: shape[0]]
    attributes = BatchNorm(eps=_EPS, decay=_DECAY)
    gamma, beta, mean, invstd, *start = map(xp.asarray, _ones(6, shape[-1]))
    y, apart = xp.empty(shape, np.float16), [xp.empty_like(start[0]) for _ in range(2)]
    primitives = backends.primitives_of(x)
    plan = primitives.cudnn.plan(operations.batch_norm(shape, x.dtype, attributes, add=False))

    def run(before, after):
        plan.run(*map(primitives._address, (x, gamma, beta, *before, y, mean, invstd, *after)))
        return [xp.asnumpy(array) for array in after]

    expected = run(start, apart)
    wrong = 0
    for _ in range(runs):
        own = [xp.asarray(np.ones(shape[-1], np.float32)) for _ in range(2)]
        wrong += not all(np.allclose(*pair, rtol=1e-4, atol=1e-5) for pair in zip(run(own, own), expected, strict=True))
    copied = "" if plan.works_in_place else ", with copies: the engine cannot write where it reads"
    return f"{runs - wrong} of {runs} runs at {shape} are right{copied}", not wrong


def _run(xp, x, attributes, outputs, add=None):
    """Runs cuDNN's operation with statistics apart; returns the outputs as NumPy's arrays."""
    inputs = (x, *_ones(4)) + (() if add is None else (add,))
    inputs, outputs = ([xp.asarray(array) for array in arrays] for arrays in (inputs, outputs))
    primitives = backends.primitives_of(inputs[0])
    plan = primitives.cudnn.plan(operations.batch_norm(x.shape, x.dtype, attributes, add=add is not None))
    plan.run(*map(primitives._address, (*inputs, *outputs)))
    return [xp.asnumpy(array) for array in outputs]


def _ones(count, channels=_SMALL[-1]):
    return np.ones((count, channels), np.float32)
