"""Operations that are ready to run."""

import functools
import logging
import math
import operator

from mixprec.backends.capture_error import CaptureError
from mixprec.backends.cudnn.search import in_place, search, size_of, text_of
from mixprec.backends.cudnn.search_time import SEARCH_TIME
from mixprec.backends.device_log import record

_ALIGNMENT = 16  # of addresses, in bytes: the frontend declares it to cuDNN for each tensor
# Test whether an engine may write an output in the memory of an input: number of trials, byte in the input (as float32,
# 12.08), and tolerance relative to the largest result.
_TRIES, _BYTE, _APART = 8, 0x41, 2.0**-16
_log = logging.getLogger("mixprec")


class Plan:
    """An operation with its engine, made by :meth:`mixprec.backends.cudnn.context.CudnnContext.plan`.

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
        works_in_place: whether outputs may share the memory of inputs; ``None`` until a run has tried that.

    Raises:
        NoEngine: no engine can be used; the text is only the reason.
        RuntimeError: cuDNN has failed.
    """

    def __init__(self, operation, settings, engines, executor, choices):
        self.operation = operation
        self._settings, self._engines, self._executor, self._choices = settings, engines, executor, choices
        self._announced = False
        self._uids = tuple(range(1, len(operation.tensors) + 1))
        self.works_in_place = None
        self._measured = settings.autotune != "measure"
        known = None if self._measured else choices.get(text_of(operation, settings), settings.compile_seconds)
        if known is not None and engines.build(known, load=True):
            self._measured = True
            self._take(known)
            return
        # Engines to be measured are built here: a failing file is not the fault of an engine.
        first = next(engines.usable(load=self._measured), None)
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
            why = f"cuDNN needs arrays that begin at multiples of {_ALIGNMENT} bytes"
            self._run_copies(addresses, [address % _ALIGNMENT != 0 for address in addresses], why)
            return
        count = len(self.operation.inputs)
        if not self.works_in_place and not set(addresses[:count]).isdisjoint(addresses[count:]):
            if self.works_in_place is None:
                self.works_in_place = self._try_in_place(addresses)
            if not self.works_in_place:
                inputs = addresses[:count]
                of_outputs = [address in inputs for address in addresses[count:]]
                why = f"{self.engine} of cuDNN cannot write where it reads"
                self._run_copies(addresses, [False] * count + of_outputs, why)
                return
        record("cudnn", self.operation.kind, self.operation, *addresses)
        if not self._measured:
            self._measure(addresses)
        self._run(dict(zip(self._uids, addresses, strict=True)))

    def _run(self, places):
        try:
            self._executor.run(*self._place, places, size=self.workspace)
        except CaptureError:
            raise
        except RuntimeError as error:
            if self._executor.device.capturing() or not self._engines.compile_anew(self.engine, error):
                raise
            self._take(self.engine)
            self._executor.run(*self._place, places, size=self.workspace)

    def _run_copies(self, addresses, are_copied, why):
        """Runs with copies of some arrays, and announces that once."""
        device, replaced, copied = self._executor.device, list(addresses), []
        tensors = zip(self.operation.tensors, addresses, are_copied, strict=True)
        for place, (tensor, address, is_copied) in enumerate(tensors):
            if is_copied:
                memory = device.allocate(size_of(tensor))
                replaced[place] = memory.ptr
                copied.append((place, tensor, address, memory))
        if not self._announced:
            self._announced = True
            names = ", ".join(tensor.name for _, tensor, _, _ in copied)
            _log.warning("%s: %s; %s is copied in each run", self.operation, why, names)
        count = len(self.operation.inputs)
        for place, tensor, address, memory in copied:
            if place < count:
                device.copy(memory.ptr, address, size_of(tensor))
        self.run(*replaced)
        for place, tensor, address, memory in copied:
            if place >= count:
                device.copy(address, memory.ptr, size_of(tensor))

    def _take(self, name):
        if self._measured:
            self._engines.keep(name)
        self.engine, self._place, self.workspace = name, self._engines.place(name), self._engines.size(name)

    def _measure(self, addresses):
        self._need_no_capture("the engines for", "measured")
        settings, engines = self._settings, self._engines
        with SEARCH_TIME.spending(operations=1):
            name = search(self.operation, settings, engines, self._executor, self._choices, addresses)
        self._measured = True
        self._take(name)

    def _try_in_place(self, addresses):
        """Returns whether the engine is right if outputs share memory with inputs, as running statistics do.

        cuDNN does not promise that. An engine that reads what another of its blocks has written would move a statistic
        twice; this is tried with our own memory instead of these inputs.
        """
        if not self._measured:
            self._measure(addresses)
        self._need_no_capture("the engines for", "tried in place")
        device = self._executor.device
        outputs = in_place(self.operation, addresses, device)
        tensors = dict(zip(self._uids, self.operation.tensors, strict=True))
        places = dict(zip(self._uids, addresses, strict=True))
        inputs = {}
        for uid in outputs:
            of_input = next(other for other in self._uids if places[other] == places[uid])
            inputs[uid] = of_input, device.allocate(size_of(tensors[uid]))
        places.update({of_input: memory.ptr for of_input, memory in inputs.values()})

        def run(outputs):
            for uid, (_, memory) in inputs.items():
                device.fill(memory.ptr, _BYTE, size_of(tensors[uid]))
            self._run({**places, **{uid: memory.ptr for uid, memory in outputs.items()}})

        run(outputs)
        for _ in range(_TRIES):
            run({uid: memory for uid, (_, memory) in inputs.items()})
            for uid, (_, memory) in inputs.items():
                tensor = tensors[uid]
                count = math.prod(tensor.shape)
                largest, scale, unlike = device.difference(outputs[uid].ptr, memory.ptr, count, tensor.dtype)
                if unlike or largest > _APART * scale:
                    return False
        return True

    def _need_no_capture(self, what, done):
        if self._executor.device.capturing():
            raise CaptureError(
                f"cuDNN: {what} {self.operation} have not been {done}, and cannot be while a CUDA graph captures: run "
                "the step eagerly first"
            )
