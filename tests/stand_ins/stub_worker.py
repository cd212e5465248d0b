"""A worker whose process is that of the test."""

from benchmarks import processes


class StubWorker:
    """In place of :class:`benchmarks.processes.Worker`: what a row keeps in its module is of its own.

    Args:
        module: whose ``_warm_step`` that is.
        events: list in which it is noted that a worker starts and ends.

    Attributes:
        limits: name of the function and limit of each attempt.
    """

    def __init__(self, module, events=None):
        self._module, self._events, self._warm_step = module, [] if events is None else events, []
        self.limits = []
        self._events.append("start")
        self._has_ended = False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.end()

    def call(self, function, *arguments):
        assert not self._has_ended
        others, self._module._warm_step = self._module._warm_step, self._warm_step
        try:
            return function(*arguments)
        finally:
            self._module._warm_step = others

    def attempt(self, function, *arguments, limit=None):
        self.limits.append((function.__name__, limit))
        try:
            return self.call(function, *arguments), ""
        except Exception as error:
            return None, processes.reason_of(error)

    def end(self, grace=0.0):
        if not self._has_ended:
            self._warm_step.clear()
            self._events.append("end")
        self._has_ended = True
