"""cuDNN on one device: plans for operations, and the choice between candidates. The CUDA primitives call it."""

import dataclasses
import logging
import threading

from mixprec.backends.capture_error import CaptureError
from mixprec.backends.cudnn import settings
from mixprec.backends.cudnn.autotune import Failures, fastest
from mixprec.backends.cudnn.choices import Choices
from mixprec.backends.cudnn.cupy_device import CupyDevice
from mixprec.backends.cudnn.engines import Engines
from mixprec.backends.cudnn.errors import BrokenDevice, NoEngine
from mixprec.backends.cudnn.executor import Executor
from mixprec.backends.cudnn.plans import Plan
from mixprec.backends.cudnn.search import text_of
from mixprec.backends.cudnn.search_time import SEARCH_TIME
from mixprec.backends.stored import Stored
from mixprec.base import cudnn_library

_log = logging.getLogger("mixprec")


class CudnnContext:
    """Plans of one device, built at their first use and kept for good: CUDA graphs may hold them.

    The current settings, :func:`mixprec.backends.cudnn.settings.current`, are a part of a plan's key. Callers may store
    plans under cheaper keys than operations, if these include the settings.

    Args:
        device_id: number of the CUDA device.
        frontend: module of cuDNN's frontend, instead of the installed one.
        device: object like :class:`~mixprec.backends.cudnn.cupy_device.CupyDevice`, instead of one for ``device_id``.

    Raises:
        CudnnMissing: cuDNN or its frontend is not installed.
    """

    def __init__(self, device_id, *, frontend=None, device=None):
        self._frontend = cudnn_library.load() if frontend is None else frontend
        self._device = CupyDevice(device_id) if device is None else device
        self._executor = Executor(self._frontend, self._device)
        self._lock = threading.RLock()
        self._plans = {}  # Plan, or the text of a NoEngine, by (operation, settings)
        self._chosen = {}  # names by (key, settings)
        self._choices = {}  # Choices by folder

    @property
    def capability(self):
        """The device's compute capability, 90 for 9.0."""
        return self._device.capability

    def plan(self, operation):
        """Returns the :class:`~mixprec.backends.cudnn.plans.Plan` of an operation under the current settings.

        Raises:
            NoEngine: there is no engine for it.
            RuntimeError: a temporary failure, such as a lack of memory.
            CaptureError: it is not built yet, and the current stream is capturing a CUDA graph.
        """
        key = operation, settings.current()
        plan = self._plans.get(key)
        if plan is None:
            with self._lock:
                plan = self._plans.get(key)
                if plan is None:
                    plan = self._plans[key] = self._build(*key)
        if type(plan) is str:
            raise NoEngine(plan)
        return plan

    def supports(self, operation):
        """Whether there is an engine for an operation under the current settings; it is built to find out."""
        try:
            self.plan(operation)
        except NoEngine:
            return False
        return True

    def measures(self):
        """Whether :meth:`choose` measures candidates now: the settings ask for it, and there is time left."""
        now = settings.current()
        return now.autotune == "measure" and SEARCH_TIME.is_left(now.search_seconds)

    def known(self, key):
        """Returns the name that was chosen for a key before, or ``None``; nothing is built or measured to find out."""
        now = settings.current()
        if now.autotune != "measure":
            return None
        return self._chosen.get((key, now)) or self._choices_in(now.cache).get(
            f"{key} {now.restrictions}", now.compile_seconds
        )

    def choose(self, key, candidates):
        """Chooses between implementations of the same computation.

        Args:
            key: the computation, with everything that its speed depends on; its text is stored on disk.
            candidates: pairs of name and callable without arguments. If :meth:`measures` is true, the first request
                calls each several times on the current stream; otherwise none is called, and the first is chosen.

        Returns:
            the name of one candidate.

        Raises:
            CaptureError: they have not been measured, and the current stream is capturing a CUDA graph.
        """
        now = settings.current()
        if len(candidates) == 1 or not self.measures():
            return candidates[0][0]
        name = self._chosen.get((key, now))
        if name is None:
            with self._lock, SEARCH_TIME.spending():
                name = self._chosen[key, now] = self._measured(key, candidates, now)
        return name

    def plans(self):
        """Returns all plans that were built, in a list."""
        return [plan for plan in self._plans.values() if type(plan) is not str]

    def _build(self, operation, now):
        try:
            with self._device.current():
                if self._device.capturing():
                    raise CaptureError(
                        f"cuDNN: {operation} is not built yet, and cannot be while a CUDA graph captures: run the step "
                        "eagerly first"
                    )
                handle = self._executor.handles.on(self._device.stream())
                choices, text = self._choices_in(now.cache), text_of(operation, now)
                is_late = now.autotune == "measure" and not SEARCH_TIME.is_left(now.search_seconds)
                if is_late and choices.get(text, now.compile_seconds) is None:
                    SEARCH_TIME.skip(operation, now.search_seconds)
                    now = dataclasses.replace(now, autotune="heuristic")
                engines = Engines(
                    self._frontend,
                    operation,
                    now,
                    stored=Stored(settings.folder("plans"), "compiled engines of cuDNN", str(self._environment())),
                    never=choices.never(text),
                    handle=handle,
                    sm_version=self._device.capability,
                )
                return Plan(operation, now, engines, self._executor, choices)
        except NoEngine as error:
            version = self._frontend.backend_version_string()
            gpu = f"{self._device.name} (sm_{self._device.capability})"
            layout = operation.inputs[0].layout
            return f"cuDNN {version} has no engine on {gpu} for {operation}, layout {layout}: {error}"

    def _measured(self, key, candidates, now):
        choices, text = self._choices_in(now.cache), f"{key} {now.restrictions}"
        name = choices.get(text, now.compile_seconds)
        if name in dict(candidates):
            return name
        if self._device.capturing():
            raise CaptureError(
                f"cuDNN: the candidates for {key} have not been measured, and cannot be while a CUDA graph captures: "
                "run the step eagerly first"
            )
        never = choices.never(text)
        candidates = [candidate for candidate in candidates if candidate[0] not in never] or candidates
        failures = Failures(key)
        try:
            name, milliseconds, first = fastest(self._device, candidates, failures.add)
        except BrokenDevice:
            if failures.reasons:  # otherwise it was an engine that a candidate has searched
                name, reason = list(failures.reasons.items())[-1]
                choices.ban(text, name, f"it failed: {reason}")
            raise
        if not failures.lacking:  # otherwise the next process tries all of them again
            choices.put(text, name, milliseconds, now.compile_seconds)
        _log.info(
            "%s: %s, %.4f ms; %s takes %.4f ms",
            *(key, name, milliseconds, candidates[0][0], first),
            extra={"choice": (key, name, milliseconds, first)},
        )
        return name

    def _choices_in(self, folder):
        if folder not in self._choices:
            self._choices[folder] = Choices(folder, self._environment())
        return self._choices[folder]

    def _environment(self):
        """Returns the environment that measurements and compiled engines depend on."""
        return {
            "device": self._device.name,
            "sm": self._device.capability,
            "driver": self._device.driver,
            "cudnn": self._frontend.backend_version_string(),
            "frontend": self._frontend.__version__,
        }
