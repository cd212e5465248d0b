"""Whether anything that a plan for the batched update was made of has changed since."""

import itertools
import operator

_DATA, _UPDATE_RULE = operator.attrgetter("_data"), operator.attrgetter("update_rule")
_ENABLED, _T = operator.attrgetter("enabled"), operator.attrgetter("t")
_HYPERPARAM, _STATE = operator.attrgetter("hyperparam"), operator.attrgetter("_state")


class Changes:
    """Sees another array behind a parameter, a new rule, a hook, a hyperparameter of one rule, a state that was loaded.

    It looks at every parameter in every step, and therefore by iterators that run without bytecode. Hyperparameters
    that rules share with the optimizer are none of its business: they may change from step to step.

    Args:
        optimizer: Chainer's optimizer.
        masters: :class:`~mixprec.optimizer.masters.Masters`, its target.
        kept: names of attributes of rules that they compute with, as with hyperparameters.
    """

    def __init__(self, optimizer, masters, kept):
        self._masters = masters
        self._params = [param for _, param in masters.structure.namedparams]
        self._rules = [rule for rule in map(_UPDATE_RULE, self._params) if rule is not None]
        hookables = [optimizer._hookable, *(rule._hookable for rule in self._rules)]
        self._hooks = [hooks for each in hookables for hooks in (each._pre_update_hooks, each._post_update_hooks)]
        self._used_hooks = [hooks for hooks in self._hooks if hooks]
        self._hyperparams = [vars(rule.hyperparam) for rule in self._rules]
        states = [rule.state for rule in self._rules if rule.state]
        self._states = [state for state in states for _ in state]
        self._state_names = [name for state in states for name in state]
        self._kept = [(vars(rule), name) for rule in self._rules for name in kept if name in vars(rule)]
        self._things = list(self._look())
        self._hyperparams_before = [dict(values) for values in self._hyperparams]
        self._values_before = self._values()
        self.expect()

    def none(self):
        """Whether all is as it was."""
        return (
            not self._masters.structure.refresh()
            and all(map(operator.is_, self._look(), self._things))
            and self._values() == self._values_before
            and self._hyperparams == self._hyperparams_before
            and self._counters() == self._counters_before
        )

    def expect(self):
        """Takes the counters of the rules as they are now, after a step."""
        self._counters_before = self._counters()

    def _look(self):
        return itertools.chain(
            [data[0] for data in map(_DATA, self._params)],
            self._masters.arrays_of(self._params),
            map(_UPDATE_RULE, self._params),
            map(_HYPERPARAM, self._rules),
            map(_STATE, self._rules),
            map(dict.get, self._states, self._state_names),
        )

    def _values(self):
        hooks = [list(hooks.values()) for hooks in self._used_hooks]
        return list(map(_ENABLED, self._rules)), list(map(len, self._hooks)), hooks

    def _counters(self):
        return list(map(_T, self._rules)), [values[name] for values, name in self._kept]
