"""A group of entries that the native library updates with the same numbers, in one call.

A table of the library refers to the arrays of parameters, masters and states, until the plan changes, and during a step
to the gradients. It is traversed twice: ``update_check`` looks for overflows before and after hooks, ``update_run``
does the rest. Intermediate results stay in the processor's cache.

:class:`~mixprec.optimizer.host_form.HostForm` makes groups for a plan, and runs them in each step.
"""

import operator

import numpy as np

from mixprec.backends.memory import flat
from mixprec.base.dtypes import BFLOAT16
from mixprec.native.native_library import is_stored, library, raw
from mixprec.optimizer.rules.formulas import CARRIED

MOST_HOOKS = 8
_FINITE, _FINITE_AFTER_HOOKS = 1, 2


def refused(param, master, rule=None):
    """Returns why the library does not support a parameter, or ``None`` if it does.

    Args:
        param: the parameter.
        master: its master, in float32.
        rule: its update rule, ``None`` if it is only checked.
    """
    if not is_stored(param.dtype):
        return f"it is in {param.dtype}"
    states = {} if rule is None or rule.state is None else rule.state
    for name, array in {"array": param.array, "master": master.array, **states}.items():
        if isinstance(array, np.ndarray) and not (array.flags.aligned and array.flags.writeable):
            return f"its {name} is read-only or not aligned in memory"
        if name in states and name != CARRIED and array.dtype != np.float32:
            return f"its state {name} is in {array.dtype}"
    return None


class NativeGroup:
    """Entries with the same hooks, the same rule and the same hyperparameters.

    Args:
        members: ``[(number of the entry, entry)]``.
        count: number of entries in all groups.
    """

    def __init__(self, members, count):
        entries = [entry for _, entry in members]
        self._rules = [entry.rule for entry in entries]
        self._formula, self._hooks = entries[0].formula, entries[0].hooks
        numbers = [number for number, _ in members]
        self._pick = list if numbers == list(range(count)) else _picker(numbers)
        rule = self._formula.name if self.updates else None
        hooks = tuple(hook.formula.name for hook in self._hooks)
        self._table = library().update_table(rule, hooks, list(map(_arrays, entries)))
        self._bfloats = [i for i, entry in enumerate(entries) if entry.param.dtype == BFLOAT16]
        self._numbers = self._carried = self._found = self._hooked_by = None

    @property
    def updates(self):
        """Whether the parameters are updated, and not only checked."""
        return self._formula is not None

    def load(self, gradients, inverses):
        """Sets the gradients of all entries, a list, and their factors: one float for all, or a list of floats.

        The axes of a gradient are in the order of its parameter's memory.
        """
        given = self._pick(gradients)
        if not isinstance(inverses, float):
            inverses = list(self._pick(inverses))
        self._found = None
        try:
            gradients = list(given)
            for i in self._bfloats:
                gradients[i] = raw(gradients[i])
            library().update_load(self._table, gradients, inverses)
        except ValueError:  # a gradient is not contiguous, or has another dtype
            library().update_load(self._table, [_stored(gradient) for gradient in given], inverses)

    def follow(self):
        """Updates masters with values written into rounded parameters since the last step.

        Returns:
            Whether the unscaled gradients are finite.
        """
        self._hooked_by = tuple([hook.formula.hyperparameters_of(hook.hook) for hook in self._hooks])
        self._found = library().update_check(self._table, self._hooked_by)
        return bool(self._found & _FINITE)

    def look(self):
        """Reads the current hyperparameters of the rule, for this step.

        Returns:
            Whether the gradients are finite after hooks, which change no array.

        Raises:
            ValueError: a hyperparameter is invalid, as in Chainer.
        """
        self._numbers = self._formula.numbers_of(self._rules[0], self._rules[0].t + 1)
        self._carried = self._formula.carried_after(self._rules[0])
        if not self._hooks:
            return True
        if self._found is None:  # gradients were loaded after follow()
            self.follow()
        return bool(self._found & _FINITE_AFTER_HOOKS)

    def finish(self, skip):
        """Ends a step: unless skipped, runs hooks and rule, rounds masters into the parameters, and counts."""
        if self.updates and not skip:
            self._update()
        self.forget()

    def _update(self):
        library().update_run(self._table, self._hooked_by, self._numbers)
        for rule in self._rules:
            rule.t += 1
            if self._carried:
                rule.state[CARRIED][...] = self._carried
        for power, base in self._formula.powers.items():
            for rule in self._rules:
                setattr(rule, power, getattr(rule, power) * getattr(rule.hyperparam, base))

    def forget(self):
        """Releases the gradients, whose memory the next backward pass may need."""
        library().update_load(self._table, None, None)


def _picker(numbers):
    """Returns a function that picks the elements with these numbers from a list, as a sequence."""
    if len(numbers) == 1:
        (number,) = numbers
        return operator.itemgetter(slice(number, number + 1))
    return operator.itemgetter(*numbers)


def _arrays(entry):
    """Returns the flat arrays of an entry for the table; the parameter in the dtype that the library accepts."""
    states = entry.formula.states if entry.formula is not None else ()
    rounded = flat(entry.param.array) if entry.is_rounded else None
    if rounded is not None and rounded.dtype == BFLOAT16:
        rounded = rounded.view(np.uint16)
    return (rounded, flat(entry.master.array), *(flat(entry.rule.state[name]) for name in states))


def _stored(gradient):
    """Returns a gradient in the dtype that the library accepts."""
    with np.errstate(over="ignore"):
        return raw(gradient if is_stored(gradient.dtype) else gradient.astype(np.float32))
