"""The weights that a model is to be evaluated with, where these are others than in training: of schedule-free SGD.

``MixedPrecisionOptimizer.evaluated`` is :func:`evaluated`.
"""

import contextlib

import numpy as np

from mixprec.backends.memory import in_order_of
from mixprec.dtypes import is_half
from mixprec.master_arrays import master_of
from mixprec.optimizer.rules.schedule_free import ScheduleFreeSGDRule, average


@contextlib.contextmanager
def evaluated(model):
    """Inside of the block masters and parameters have the averages of their update rules, if these have any.

    After it everything is, bit for bit, what it was: what was there is kept, and copied back. Arrays are written in
    place, so that graphs stay valid; the optimizer must not step meanwhile. Nothing is read from a device.

    Args:
        model: the link; its parameters have update rules.

    Yields:
        bool: whether anything has an average.
    """
    before = []
    try:
        for param in {id(param): param for param in model.params(include_uninit=False)}.values():
            rule = param.update_rule
            if not isinstance(rule, ScheduleFreeSGDRule) or rule.state is None or not rule.enabled:
                continue  # one that is frozen stays as it is
            master = master_of(param) if is_half(param.dtype) else param.array
            if master is None:  # no step yet
                continue
            x = average(rule, master)
            for array in (master,) if master is param.array else (master, param.array):
                before.append((array, in_order_of(array, array)))
                with np.errstate(over="ignore"):
                    array[...] = x
        yield bool(before)
    finally:
        for array, value in before:
            array[...] = value
