"""The weights for evaluating a model, where they differ from the weights in training (schedule-free SGD).

``MixedPrecisionOptimizer`` has an :class:`Evaluation`.
"""

import contextlib

from mixprec.base.dtypes import is_half
from mixprec.base.scoped import scoped
from mixprec.optimizer.batch.saved_arrays import overwritten
from mixprec.optimizer.rules.own_rules import OwnRule
from mixprec.precision.master_arrays import master_of


class Evaluation:
    """Temporarily gives a model its weights for evaluation.

    Attributes:
        has_averages: whether the model has them now.
    """

    def __init__(self):
        self.has_averages = False

    def refuse(self, method):
        """Raises :class:`RuntimeError`: ``method`` would mistake averages for the weights of training."""
        raise RuntimeError(f"{method}() was called inside of evaluated(), where the model has averages of its weights")

    @contextlib.contextmanager
    def of(self, model):
        """Returns a context in which masters and parameters hold the averages of their update rules, if these have any.

        Afterwards everything is restored bit for bit. A nested block does nothing.

        Args:
            model: the link; its parameters have update rules.
        """
        if self.has_averages:
            yield
            return
        with overwritten(_averages(model)) as has_averages, scoped(self, has_averages=has_averages):
            yield


def _averages(model):
    """Yields ``(array, average)`` for each array of a master or a parameter that has an average."""
    for param in {id(param): param for param in model.params(include_uninit=False)}.values():
        rule = param.update_rule
        has_average = isinstance(rule, OwnRule) and rule.optimizer_class.has_average
        if not has_average or rule.state is None or not rule.enabled:
            continue  # a frozen parameter stays as it is
        master = master_of(param) if is_half(param.dtype) else param.array
        if master is None:  # no step yet
            continue
        x = rule.average(master)
        yield master, x
        if master is not param.array:
            yield param.array, x
