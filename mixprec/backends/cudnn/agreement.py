"""Comparison of engines: a fast engine with deviating results is not chosen."""

import functools
import logging
from typing import NamedTuple

from mixprec.backends.cudnn.autotune import attempt

# Of the largest value of an output. Engines round once to the storage dtype, which is half a step of 2^-8 at most
# (bfloat16), and their float32 sums differ by far less; one that is wrong is off by the values themselves.
_RELATIVE = 2.0**-6
# Below that float16 has few digits: 4 times its smallest number.
_FLOORS = {"float16": 2.0**-22}
_REFERENCES = 3  # candidates that are tried as the reference of the comparison
_ANYTHING = 0xFF  # bytes, which are NaN in every dtype, and negative integers
_log = logging.getLogger("mixprec")


class Memory(NamedTuple):
    """Memory that an engine writes.

    Attributes:
        address: int.
        size: bytes.
        name: name of the tensor; ``None`` if it is not an output.
        count: number of elements.
        dtype: as in :class:`~mixprec.backends.cudnn.operation.Tensor`.
    """

    address: int
    size: int
    name: str | None = None
    count: int = 0
    dtype: str | None = None


def agreeing(device, what, candidates, written, failed, wrong):
    """Returns the candidates whose results agree with the majority, at least one; the first of two that differ.

    Before each run, outputs and workspace are filled with NaN, to detect candidates that write nothing, or that depend
    on the contents of the workspace.

    Args:
        device: :class:`~mixprec.backends.cudnn.cupy_device.CupyDevice`.
        what: name of the computation, for messages.
        candidates: pairs of name and working callable, in the order of preference.
        written: :class:`Memory` of each output and of the workspace. Booleans are not compared: cuDNN may store
            them in any order.
        failed: called with the name and the exception of a candidate that fails due to the contents of the workspace.
        wrong: called with the name of a candidate that is left out for its results, and the reason.

    Raises:
        BrokenDevice: a candidate has left the device in an unusable state.
        RuntimeError: all candidates fail.
    """
    if len(candidates) < 2:
        return candidates
    compared = [memory for memory in written if memory.name is not None and memory.dtype != "boolean"]
    try:
        copies = [device.allocate(memory.size) for memory in compared]
    except MemoryError as error:
        _log.warning("%s: engines are not compared, there is no memory for a copy of the result: %s", what, error)
        return candidates

    def works(candidate):
        run = functools.partial(_run, device, candidate[1], written)
        return attempt(device, candidate[0], run, failed)

    for first in candidates[:_REFERENCES]:
        if not works(first):
            candidates = [candidate for candidate in candidates if candidate is not first]
            continue
        for copy, memory in zip(copies, compared, strict=True):
            device.copy(copy.ptr, memory.address, memory.size)
        off, working = {}, []
        for candidate in candidates:
            if candidate is first or works(candidate):
                working.append(candidate)
                why = _difference(device, copies, compared)
                if candidate is not first and why is not None:
                    off[candidate[0]] = f"{why} {first[0]}"
        candidates = working
        if len(candidates) == 2 and off:
            ((name, why),) = off.items()
            _log.warning("%s: %s is not used, it is not known which of two is wrong: %s", what, name, why)
            return [first]
        if 2 * len(off) < len(candidates):
            for name, why in off.items():
                wrong(name, why)
            return [candidate for candidate in candidates if candidate[0] not in off]
    if not candidates:
        raise RuntimeError("all engines fail with anything in their workspace")
    text = "%s: the results of %d engines differ, and none has the majority: none is left out"
    _log.warning(text, what, len(candidates))
    return candidates


def _run(device, function, written):
    for memory in written:
        device.fill(memory.address, _ANYTHING, memory.size)
    function()


def _difference(device, copies, compared):
    """Returns the beginning of a sentence about the first output that is off, or ``None``."""
    for copy, memory in zip(copies, compared, strict=True):
        largest, scale, unlike = device.difference(copy.ptr, memory.address, memory.count, memory.dtype)
        if unlike:
            return f"{unlike} elements of {memory.name} are not finite, unlike in"
        if largest > _RELATIVE * scale + _FLOORS.get(memory.dtype, 0.0):
            return f"{memory.name} differs by {largest:.3g}, of at most {scale:.3g}, from"
    return None
