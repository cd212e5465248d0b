"""A step is recorded, and planned in three ways: :func:`curves`, for ``scripts/benchmark.py memory-picture``."""

import numpy as np

import mixprec
from benchmarks import processes
from benchmarks.activations import residency
from benchmarks.activations.trial import giving_back
from benchmarks.activations.ways import KEPT, RECORDED, WAYS, Training
from mixprec.activation_memory.planning import DoesNotFit, least, plan
from mixprec.activation_memory.recording import Bus
from mixprec.backends.copies import copies_for

_SHARE = 0.25  # of the way from the least memory to that with all kept: the budget, if none is given
_AMPLE = 1 << 50  # bytes: more than any step takes


class PictureError(Exception):
    """There is nothing to draw; the message is one line."""


def curves(setting, size):
    """Returns the curves of memory of a step, and the budget of the last one.

    Args:
        setting: :class:`~benchmarks.activations.ways.Setting`; the budget may be ``None``.
        size: height and width of an image in pixels.

    Returns:
        ``(list, bytes)``: :class:`~benchmarks.activations.residency.Curve` if all is kept, if blocks are computed again
        and if arrays are offloaded within the budget; and the budget.

    Raises:
        PictureError: no plan meets the budget.
    """
    with giving_back(), processes.Worker() as worker:
        kept, bus = worker.call(recorded, WAYS["offload"], setting, size)
    with giving_back(), processes.Worker() as worker:
        blocks, _ = worker.call(recorded, WAYS["offload, recompute: blocks"], setting, size)
    every, budget = plan(kept, None, bus), setting.budget
    if budget is None:
        budget = int((1 - _SHARE) * least(kept) + _SHARE * every.peak)
    try:
        offloaded = plan(kept, budget, bus)
    except DoesNotFit as error:
        raise PictureError(str(error)) from None
    return [
        residency.curve(KEPT, kept, every, bus),
        residency.curve("recompute: blocks", blocks, plan(blocks, None, bus), bus),
        residency.curve("offload", kept, offloaded, bus),
    ], budget


def recorded(way, setting, size):
    """Returns the recording of a step in this process, and the bus by which it can be offloaded."""
    training = Training(way, setting, size)
    memory = mixprec.offload(_AMPLE, to=setting.folder)
    for _ in range(RECORDED):
        training.step(memory)
    return memory.recordings[0], Bus(*copies_for(np.empty(1), setting.folder).bus())
