"""The search for the fastest engine of an operation, on the arrays of its first run."""

import functools
import logging
import math
import time

from mixprec.backends.cudnn.agreement import Memory, agreeing
from mixprec.backends.cudnn.autotune import Failures, fastest
from mixprec.backends.cudnn.errors import BrokenDevice

# How many engines are measured, as by default in PyTorch (torch.backends.cudnn.benchmark_limit). cuDNN lists about 45
# for a convolution of float16, the presumably fast ones first.
_CANDIDATES = 10
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "boolean": 1}
_log = logging.getLogger("mixprec")


def search(operation, settings, engines, executor, choices, addresses):
    """Measures engines; stores the fastest in the choices, and engines that fail or have deviating results.

    Args:
        operation: :class:`~mixprec.backends.cudnn.operation.Operation`.
        settings: :class:`~mixprec.backends.cudnn.settings.Settings`.
        engines: :class:`~mixprec.backends.cudnn.engines.Engines` of the operation, at least one of which can be used.
        executor: :class:`~mixprec.backends.cudnn.executor.Executor`.
        choices: :class:`~mixprec.backends.cudnn.choices.Choices`.
        addresses: int of each tensor. Outputs are overwritten, except outputs in the memory of an input.

    Returns:
        the name of the fastest engine.

    Raises:
        BrokenDevice: an engine has left the device in an unusable state.
        RuntimeError: all engines have failed.
    """
    device, text = executor.device, text_of(operation, settings)
    outputs = operation.tensors[len(operation.inputs) :]
    scratch = in_place(operation, addresses, device)
    places = {uid: scratch[uid].ptr if uid in scratch else place for uid, place in enumerate(addresses, start=1)}
    names, workspace = _candidates(engines, settings.compile_seconds, device)
    candidates = [
        (name, functools.partial(executor.run, *engines.place(name), places, workspace=workspace.ptr)) for name in names
    ]
    written = [
        Memory(places[uid], size_of(tensor), tensor.name, math.prod(tensor.shape), tensor.dtype)
        for uid, tensor in enumerate(outputs, start=len(operation.inputs) + 1)
    ]
    written.append(Memory(workspace.ptr, max(map(engines.size, names))))

    failures = Failures(operation)

    def ban(name):
        if name not in failures.lacking:
            choices.ban(text, name, f"it failed: {failures.reasons[name]}")

    def wrong(name, why):
        _log.warning("%s: %s has deviating results, and is not used: %s", operation, name, why)
        choices.ban(text, name, why)

    check = functools.partial(agreeing, device, operation, written=written, failed=failures.add, wrong=wrong)
    try:
        name, milliseconds, first = fastest(device, candidates, failures.add, check)
    except BrokenDevice:
        ban(list(failures.reasons)[-1])
        raise
    # Only now: if all fail, the engines are not the cause.
    for failing in failures.reasons:
        ban(failing)
    choices.put(text, name, milliseconds, settings.compile_seconds)
    _log.info(
        "%s: %s is the fastest of %d, %.4f ms; the first takes %.4f ms",
        *(operation, name, len(names), milliseconds, first),
        extra={"choice": (f"{operation.kind} {operation.inputs[0]}", name, milliseconds, first)},
    )
    return name


def text_of(operation, settings):
    """Returns the key of the choices for an operation."""
    return f"{operation} {settings.restrictions}"


def in_place(operation, addresses, device):
    """Returns memory for outputs that share the memory of an input, by uid: a second run would find a changed input."""
    count = len(operation.inputs)
    inputs = set(addresses[:count])
    outputs = enumerate(zip(operation.outputs, addresses[count:], strict=True), start=count + 1)
    return {uid: device.allocate(size_of(tensor)) for uid, (tensor, address) in outputs if address in inputs}


def size_of(tensor):
    """Returns the bytes of a tensor."""
    return math.prod(tensor.shape) * _BYTES[tensor.dtype]


def _candidates(engines, seconds, device):
    """Returns the names of engines to measure, and memory for each of them in turn."""
    names = list(built(engines, seconds))
    while True:
        size = max(map(engines.size, names))
        try:
            # Not in the shared workspace, which would keep the size of the largest of them.
            return names, device.allocate(max(1, size))
        except MemoryError as error:
            modest = [name for name in names if engines.size(name) < size]
            if not modest:
                raise
            _log.info("%d engines are out, no memory for %d bytes: %s", len(names) - len(modest), size, error)
            names = modest


def built(engines, seconds):
    """Builds engines and yields the names of usable ones: as many as are worth measuring, and the first."""
    spent, found = 0.0, 0
    for name in engines.names:
        is_compiled = engines.is_compiled(name)
        if found == _CANDIDATES:
            return
        if found and is_compiled and spent >= seconds:
            continue
        start = time.monotonic()
        if engines.build(name):
            found += 1
            yield name
        spent += (time.monotonic() - start) * is_compiled
