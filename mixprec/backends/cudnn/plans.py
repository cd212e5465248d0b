"""Operations that are ready to run."""

import functools
import itertools
import logging
import math
import operator
import time

from mixprec.backends.cudnn.autotune import fastest
from mixprec.backends.cudnn.errors import CaptureError
from mixprec.backends.notes import take

# How many engines are measured. cuDNN lists about 45 for a convolution of float16, those first that it thinks are fast.
_CANDIDATES = 24
_SECONDS = 3  # of building, after which no other engine is built; one of a batch normalization takes up to a second
_ALIGNMENT = 16  # bytes, of addresses: what the frontend tells cuDNN of each tensor
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "boolean": 1}
_log = logging.getLogger("mixprec")


class Plan:
    """An operation with the engine that computes it; :meth:`mixprec.backends.cudnn.dnn.Dnn.plan` makes one.

    With ``autotune="measure"`` the engine is chosen by the first :meth:`run`, on the arrays of that run, unless the
    choice is known from before.

    Args:
        operation: :class:`~mixprec.backends.cudnn.operation.Operation`.
        settings: :class:`~mixprec.backends.cudnn.settings.Settings`.
        engines: :class:`~mixprec.backends.cudnn.engines.Engines`.
        executor: :class:`~mixprec.backends.cudnn.executor.Executor`.
        choices: :class:`~mixprec.backends.cudnn.choices.Choices`.

    Attributes:
        operation: the operation.
        engine: cuDNN's name of the engine.
        workspace: bytes of temporary memory that it needs.

    Raises:
        NoEngine: no engine can be used; the text is only the reason.
        RuntimeError: cuDNN has failed.
    """

    def __init__(self, operation, settings, engines, executor, choices):
        self.operation = operation
        self._engines, self._executor, self._choices = engines, executor, choices
        self._announced = False
        self._graph = engines.graph
        self._uids = tuple(range(1, len(operation.tensors) + 1))
        self._text = f"{operation} {settings.restrictions}"
        self._measured = settings.autotune != "measure"
        known = None if self._measured else choices.get(self._text)
        if known is not None and engines.build(known):
            self._measured = True
            self._take(known)
            return
        first = next(engines.usable(), None)
        if first is None:
            raise engines.none()
        self._take(first)

    def run(self, *addresses):
        """Computes, on the device's current stream.

        Args:
            *addresses: int of each of ``operation.tensors``, in that order.

        Raises:
            CaptureError: the stream is capturing a CUDA graph, and the plan would first have to measure its engines,
                or to allocate.
        """
        if functools.reduce(operator.or_, addresses) % _ALIGNMENT:
            self._run_copies(addresses)
            return
        take("cudnn", self.operation.kind, self.operation, *addresses)
        if not self._measured:
            self._measure(addresses)
        self._executor.run(self._graph, self._index, dict(zip(self._uids, addresses, strict=True)), self.workspace)

    def _run_copies(self, addresses):
        """Runs with copies of what does not begin where cuDNN wants it."""
        device, aligned, copied = self._executor.device, list(addresses), []
        for place, (tensor, address) in enumerate(zip(self.operation.tensors, addresses, strict=True)):
            if address % _ALIGNMENT:
                memory = device.allocate(_size(tensor))
                aligned[place] = memory.ptr
                copied.append((place, tensor, address, memory))
        if not self._announced:
            self._announced = True
            names = ", ".join(tensor.name for _, tensor, _, _ in copied)
            _log.warning(
                "%s: cuDNN wants arrays to begin at multiples of %d bytes; %s is copied in each run",
                *(self.operation, _ALIGNMENT, names),
            )
        count = len(self.operation.inputs)
        for place, tensor, address, memory in copied:
            if place < count:
                device.copy(memory.ptr, address, _size(tensor))
        self.run(*aligned)
        for place, tensor, address, memory in copied:
            if place >= count:
                device.copy(address, memory.ptr, _size(tensor))

    def _take(self, name):
        self.engine, self._index, self.workspace = name, self._engines.index(name), self._engines.size(name)

    def _measure(self, addresses):
        device = self._executor.device
        if device.capturing():
            raise CaptureError(
                f"cuDNN: the engines for {self.operation} have not been measured, and cannot be while a CUDA graph "
                "captures: run the step eagerly first"
            )
        scratch = self._scratch(addresses)
        addresses = dict(zip(self._uids, addresses, strict=True))
        addresses.update({uid: memory.ptr for uid, memory in scratch.items()})
        names, workspace = self._candidates(device)
        candidates = [
            (name, functools.partial(self._executor.run_in, self._graph, index, addresses, workspace.ptr))
            for name, index in zip(names, map(self._engines.index, names), strict=True)
        ]
        name, milliseconds = fastest(device, candidates)
        self._take(name)
        self._measured = True
        self._choices.put(self._text, name, milliseconds)
        _log.info("%s: %s is the fastest of %d, %.4f ms", self.operation, name, len(names), milliseconds)

    def _candidates(self, device):
        """Returns the names of engines to measure, and memory for each of them in turn."""
        names, end = [], time.monotonic() + _SECONDS
        for name in itertools.islice(self._engines.usable(), _CANDIDATES):
            names.append(name)
            if time.monotonic() > end:
                break
        while True:
            size = max(map(self._engines.size, names))
            try:
                # Not in the shared workspace, which would stay as large as the hungriest of them.
                return names, device.allocate(max(1, size))
            except MemoryError as error:
                modest = [name for name in names if self._engines.size(name) < size]
                if not modest:
                    raise
                _log.info("%d engines are out, no memory for %d bytes: %s", len(names) - len(modest), size, error)
                names = modest

    def _scratch(self, addresses):
        """Returns memory for the outputs that lie where an input is, by uid: a second run would find another input."""
        count = len(self.operation.inputs)
        inputs = set(addresses[:count])
        outputs = zip(self._uids[count:], self.operation.outputs, addresses[count:], strict=True)
        return {
            uid: self._executor.device.allocate(_size(tensor)) for uid, tensor, address in outputs if address in inputs
        }


def _size(tensor):
    """Returns the bytes of a tensor."""
    return math.prod(tensor.shape) * _BYTES[tensor.dtype]
