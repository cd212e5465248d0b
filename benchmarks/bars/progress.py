"""Counts the kernels, plans and engines that the preparation of a row takes, which on a new GPU lasts minutes."""

import contextlib
import sys
import time
from unittest import mock

from mixprec.backends import launch
from mixprec.backends.cudnn import autotune, context

_SECONDS = 5.0  # between two lines
_CUDNN = f"{autotune.__package__}."


class _Counts:
    """Counts calls that have ended, and says so."""

    def __init__(self, title, report):
        self._title, self._report = title, report
        self._counts = {"kernels compiled": 0, "plans of cuDNN built": 0, "engines measured": 0}
        self._start = self._said = time.monotonic()
        self.say(print_it=True)

    def counting(self, name, function):
        """Returns a function that does the same and is counted."""

        def counted(*arguments, **keywords):
            result = function(*arguments, **keywords)
            self._counts[name] += 1
            self.say(print_it=time.monotonic() - self._said > _SECONDS)
            return result

        return counted

    def say(self, *, print_it):
        text = ", ".join(["imports", *(f"{count} {name}" for name, count in self._counts.items())])
        self._report(text)
        if print_it and any(self._counts.values()) and not sys.stderr.isatty():  # there the turns have their line
            self._said = time.monotonic()
            print(f"{self._title}: {text}; {self._said - self._start:.0f} s", file=sys.stderr, flush=True)


@contextlib.contextmanager
def reporting(title, report):
    """Inside of the block says how far things are, also on standard error every few seconds.

    Args:
        title: what is prepared.
        report: called with a line after each kernel, plan and measurement.
    """
    counts = _Counts(title, report)
    with contextlib.ExitStack() as stack:
        searching = [module for name, module in sys.modules.items() if name.startswith(_CUDNN) and _searches(module)]
        for module, function, name in (
            (launch, "binary_of", "kernels compiled"),
            (context, "Plan", "plans of cuDNN built"),
            *((module, "fastest", "engines measured") for module in searching),
        ):
            counted = counts.counting(name, getattr(module, function))
            stack.enter_context(mock.patch.object(module, function, counted))
        yield
    counts.say(print_it=True)


def _searches(module):
    """Whether a module asks for the fastest engine by the name ``fastest``."""
    return module is not autotune and getattr(module, "fastest", None) is autotune.fastest
