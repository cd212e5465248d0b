"""The hyperparameters of rules and hooks in the table of parameters on the device.

:class:`~mixprec.optimizer.batch.table.Table` checks in each step, by :class:`Values`, whether one of them has changed.
"""

import operator

import numpy as np

_T, _HYPERPARAM = map(operator.attrgetter, ("t", "hyperparam"))


class Values:
    """``t`` and the hyperparameters of hooks and rule for every entry, in sequence.

    Most rules inherit hyperparameters from the optimizer, and are not read one by one; ``t`` is not read from rules
    that do not use it.

    Args:
        entries: tuple of :class:`~mixprec.optimizer.batch.entries.Entry`.
    """

    def __init__(self, entries):
        self._entries = entries
        self._rules = [entry.rule for entry in entries if entry.rule is not None]
        self._names = [frozenset(entry.formula.hyperparameters) for entry in entries if entry.rule is not None]
        self._counting = [entry.rule for entry in entries if _computes_with_t(entry)]
        self._looked = None
        self.look()

    def look(self):
        """Checks from which objects rules get hyperparameters; returns whether they are unchanged."""
        hyperparams = list(map(_HYPERPARAM, self._rules))
        own = list(map(vars, hyperparams))
        plain = list(map(frozenset.isdisjoint, self._names, map(vars, self._rules)))
        if self._looked is not None:
            hyperparams_before, own_before, plain_before = self._looked
            if (
                all(map(operator.is_, hyperparams, hyperparams_before))
                and plain == plain_before
                and list(map(_parent, own)) == own_before
            ):
                return True
        self._looked = hyperparams, list(map(_parent, own)), plain
        self._arrange(own, plain)
        return False

    def _arrange(self, own, plain):
        self._sources, self._positions = [], []
        first, known = len(self._counting), {}

        def add(key, owner, source):
            nonlocal first
            if key not in known:
                self._sources.append((owner, source))
                known[key] = range(first, first + len(owner.hyperparameters))
                first += len(owner.hyperparameters)
            self._positions.extend(known[key])

        number = counting = 0
        for entry in self._entries:
            if _computes_with_t(entry):
                self._positions.append(counting)
                counting += 1
            else:
                self._positions.append(-1)
            for hook in entry.hooks:
                add((id(hook.hook), id(hook.formula)), hook.formula, hook.hook)
            if entry.rule is not None:
                shared = plain[number] and len(own[number]) == 1
                key = id(own[number]["_parent"]) if shared else id(entry.rule)
                add((key, id(entry.formula)), entry.formula, entry.rule)
                number += 1
        self._positions = np.array(self._positions, np.intp)

    @property
    def size(self):
        """The number of values."""
        return len(self._positions)

    def now(self):
        """Returns the distinct values, with 0 at the end."""
        values = list(map(_T, self._counting))
        for owner, source in self._sources:
            values += owner.hyperparameters_of(source)
        values.append(0)
        return values

    def put(self, values, target):
        """Writes the values from :meth:`now` into an array, for every entry."""
        target[...] = np.array(values, np.float64)[self._positions]


def owners(entry):
    """Returns the hooks and the update rule of an entry that have hyperparameters, in the order of their numbers."""
    return [hook.formula for hook in entry.hooks] + ([] if entry.rule is None else [entry.formula])


def _computes_with_t(entry):
    return entry.rule is not None and any(owner.counts for owner in owners(entry))


def _parent(own):
    """Returns the object from which all hyperparameters are inherited; otherwise their own object."""
    return own["_parent"] if len(own) == 1 else None
