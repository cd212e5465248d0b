"""Entries that the same numbers update: what is common to those that NumPy and those that the native library updates.

:class:`~mixprec.optimizer.host_form.HostForm` makes groups for a plan, and goes through them in each step.
"""

import abc
import operator

from mixprec.optimizer.rules.formulas import CARRIED


class Group(abc.ABC):
    """Entries of one dtype with the same hooks and the same rule, by the same hyperparameters.

    Args:
        members: ``[(number of the entry, entry)]``.
        count: how many entries there are in all groups.
    """

    def __init__(self, members, count):
        self._rules = [entry.rule for _, entry in members]
        self._formula, self._hooks = members[0][1].formula, members[0][1].hooks
        self._numbers = self._carried = None
        numbers = [number for number, _ in members]
        self._pick = list if numbers == list(range(count)) else picker(numbers)

    @property
    def updates(self):
        """Whether the parameters are updated, and not only checked."""
        return self._formula is not None

    @abc.abstractmethod
    def load(self, gradients, inverses):
        """Takes a list of the gradients of all entries, and what to multiply them by: a float, or a list of floats.

        The axes of a gradient are in the order of its parameter's memory.
        """

    @abc.abstractmethod
    def follow(self):
        """Takes over what was written into rounded parameters since the last step."""

    @abc.abstractmethod
    def is_finite(self):
        """Whether the unscaled gradients are finite; to be asked after :meth:`follow`."""

    def look(self):
        """Takes the hyperparameters of the rule as they are now, for this step.

        Raises:
            ValueError: a hyperparameter is refused, as in Chainer.
        """
        self._numbers = self._formula.numbers_of(self._rules[0], self._rules[0].t + 1)
        self._carried = self._formula.carried_after(self._rules[0])

    @abc.abstractmethod
    def is_finite_after_hooks(self):
        """Whether the gradients are finite after hooks, which run in scratch memory."""

    def update(self):
        """Runs hooks and rule, rounds masters into the parameters, and counts."""
        self._update()
        for rule in self._rules:
            rule.t += 1
            if self._carried:
                rule.state[CARRIED][...] = self._carried
        for power, base in self._formula.powers.items():
            for rule in self._rules:
                setattr(rule, power, getattr(rule, power) * getattr(rule.hyperparam, base))

    @abc.abstractmethod
    def _update(self):
        """Runs hooks and rule, and rounds masters into the parameters."""

    @abc.abstractmethod
    def forget(self):
        """Lets go of the gradients, whose memory the next backward pass may want."""

    def _hook_numbers(self):
        return tuple(hook.formula.hyperparameters_of(hook.hook) for hook in self._hooks)


def picker(numbers):
    """Returns a function that picks the elements with these numbers from a list, as a sequence."""
    if len(numbers) == 1:
        (number,) = numbers
        return operator.itemgetter(slice(number, number + 1))
    return operator.itemgetter(*numbers)
