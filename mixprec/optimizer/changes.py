"""Whether anything that a plan for the batched update was made of has changed since."""

import itertools
import operator

import numpy as np

_PARAM = operator.attrgetter("update_rule", "_data", "_loss_scale", "_grad", "_grad_var")
_RULE = operator.attrgetter("enabled", "hyperparam", "t")
_STATE = operator.attrgetter("_state")


class Changes:
    """Sees another array behind a parameter, a new rule, a hook, a hyperparameter of one rule, a state that was loaded.

    It looks at every parameter in every step, and therefore by iterators that run without bytecode, and at all that a
    step needs of a parameter at once. Hyperparameters that rules share with the optimizer are none of its business:
    they may change from step to step.

    Args:
        optimizer: Chainer's optimizer.
        masters: :class:`~mixprec.optimizer.masters.Masters`, its target.
        kept: names of attributes of rules that they compute with, as with hyperparameters.

    Attributes:
        params: the parameters of the model, uninitialized ones among them.
        notes: what :mod:`~mixprec.optimizer.scaled_loss` has noted on each of them when :meth:`none` looked last.
        gradients: their gradients at that time, an array or ``None``.
    """

    def __init__(self, optimizer, masters, kept):
        self._masters = masters
        self.params = masters.structure.params
        self._halves = [param for param in self.params if param.array is not None and param.dtype == np.float16]
        self._rules = [param.update_rule for param in self.params if param.update_rule is not None]
        hookables = [optimizer._hookable, *(rule._hookable for rule in self._rules)]
        hooks = [hooks for each in hookables for hooks in (each._pre_update_hooks, each._post_update_hooks)]
        self._used_hooks, self._unused_hooks = [each for each in hooks if each], [each for each in hooks if not each]
        self._hyperparams = [vars(rule.hyperparam) for rule in self._rules]
        states = [rule.state for rule in self._rules if rule.state]
        self._states = [state for state in states for _ in state]
        self._state_names = [name for state in states for name in state]
        self._kept = [(vars(rule), name) for rule in self._rules for name in kept if name in vars(rule)]
        self._objects = list(self._look())
        self._hyperparams_before = [dict(values) for values in self._hyperparams]
        self._hooks_before = self._hooks()
        self.expect()

    def none(self):
        """Whether all is as it was."""
        return (
            not self._masters.structure.refresh()
            and all(map(operator.is_, self._look(), self._objects))
            and list(map(_RULE, self._rules)) == self._rules_before
            and not any(self._unused_hooks)
            and self._hooks() == self._hooks_before
            and self._hyperparams == self._hyperparams_before
            and [values[name] for values, name in self._kept] == self._kept_before
        )

    def expect(self):
        """Takes the counters of the rules as they are now, after a step."""
        self._rules_before = list(map(_RULE, self._rules))
        self._kept_before = [values[name] for values, name in self._kept]

    def _look(self):
        rules, data, self.notes, gradients, variables = zip(*map(_PARAM, self.params), strict=True)
        if any(map(operator.is_not, variables, itertools.repeat(None))):  # a gradient that has a graph of its own
            gradients = [param.grad for param in self.params]
        self.gradients = gradients
        return itertools.chain(
            rules,
            [array for (array,) in data],
            self._masters.arrays_of(self._halves),
            map(_STATE, self._rules),
            map(dict.get, self._states, self._state_names),
        )

    def _hooks(self):
        return [list(hooks.values()) for hooks in self._used_hooks]
