"""Repeats ``chainer.report`` for launches of a graph.

A launch recomputes the values that the captured step gave to ``chainer.report``, but does not run the code that reports
them. :class:`~mixprec.graph_capture.specialization.Specialization` keeps the reported values, and reports them again
after each launch.
"""

import copy

import chainer
import numpy as np

from mixprec.backends.device_log import record
from mixprec.backends.transfers import on_host


class Reports(chainer.Reporter):
    """A reporter that keeps its values, for :meth:`repeat`.

    Args:
        passes_on: whether the previous reporter gets the values as well.
    """

    def __init__(self, passes_on=False):
        super().__init__()
        self._passes_on = passes_on
        self._told = []
        self._own = self.observation

    def __enter__(self):
        current = chainer.reporter._get_reporters()
        if current:
            self._observer_names = current[-1]._observer_names
        super().__enter__()
        return self

    def report(self, values, observer=None):
        """Keeps the values; variables without their graph."""
        if self.observation is not self._own:  # inside a report_scope of the step, which alone gets the values
            super().report(values, observer)
            return
        for name, value in values.items():
            if isinstance(value, chainer.Variable):
                is_deferred = "_node" not in vars(value)  # reading it would compute it
                value = None if is_deferred else value.array
            if on_host(value):  # computed by the host: a graph would repeat the value
                value = np.asarray(value)
                record("report", name, value.item() if value.size == 1 else value.tobytes())
        self._told.append(({name: _alone(value) for name, value in values.items()}, observer))
        if self._passes_on:
            self.__exit__(None, None, None)  # the previous reporter is current for a moment
            try:
                chainer.report(values, observer)
            finally:
                self.__enter__()

    @property
    def values(self):
        """``[(name, value)]``, in the order in which they were reported."""
        return [(name, value) for values, _ in self._told for name, value in values.items()]

    def repeat(self, copies=None):
        """Reports copies of the values to the current reporter: the next launch writes into the arrays.

        Args:
            copies: as for :func:`copied`.
        """
        copies = {} if copies is None else copies
        for values, observer in self._told:
            chainer.report({name: copied(value, copies) for name, value in values.items()}, observer)


def copied(value, copies=None):
    """Returns a result of a step with copies of its arrays, and variables without a graph.

    Args:
        value: array, variable, tuple, list or dict of these, or anything else.
        copies: dict of copies by the id of the array, so that each array is copied once; ``None`` for a new dict.
    """
    copies = {} if copies is None else copies
    if isinstance(value, chainer.Variable):
        return chainer.Variable(copied(value.array, copies), requires_grad=False)
    if isinstance(value, chainer.get_array_types()):
        if id(value) not in copies:
            copies[id(value)] = value.copy(order="K")
        return copies[id(value)]
    if type(value) in (tuple, list):
        return type(value)([copied(each, copies) for each in value])
    if type(value) is dict:
        return {name: copied(each, copies) for name, each in value.items()}
    return value


def _alone(value):
    if not isinstance(value, chainer.Variable):
        return value
    value = copy.copy(value)
    value.unchain()
    return value
