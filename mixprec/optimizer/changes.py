"""Whether anything that a plan for the batched update was made of has changed since."""

import itertools
import operator

_UPDATE_RULE, _DATA = operator.attrgetter("update_rule"), operator.attrgetter("_data")
_NOTE, _GRAD, _GRAD_VAR = (operator.attrgetter(name) for name in ("_loss_scale", "_grad", "_grad_var"))
_ENABLED, _HYPERPARAM, _STATE = (operator.attrgetter(name) for name in ("enabled", "hyperparam", "_state"))


class Changes:
    """Sees another array behind a parameter, a new rule, a hook, a hyperparameter of one rule, a state that was loaded.

    It looks at every parameter in every step, and therefore by iterators that run without bytecode and make few objects
    for the garbage collector, and also at what a step needs of a parameter. Numbers that rules share with the optimizer
    are none of its business: they may change from step to step. Switches among them, such as ``amsgrad``, must not, nor
    may an array take the place of a number.

    Args:
        optimizer: Chainer's optimizer.
        masters: :class:`~mixprec.optimizer.masters.Masters`, its target.
        kept: ``[(rule, name of an attribute of it)]`` that rules compute with, as with hyperparameters.
        batched: the rules in the batch. All others may put new arrays into their states in every step.

    Attributes:
        params: the parameters of the model, uninitialized ones among them.
        notes: what :mod:`~mixprec.optimizer.scaled_loss` has noted on each of them when :meth:`none` looked last;
            nothing after a step, as they hold the loss scale of that step.
        gradients: their gradients at that time, an array or ``None``; nothing after a step.
    """

    def __init__(self, optimizer, masters, kept, batched):
        self._masters = masters
        self._namedparams = masters.structure.namedparams
        self.params = masters.structure.params
        self._rules = [param.update_rule for param in self.params if param.update_rule is not None]
        hookables = [optimizer._hookable, *(rule._hookable for rule in self._rules)]
        hooks = [hooks for each in hookables for hooks in (each._pre_update_hooks, each._post_update_hooks)]
        self._used_hooks, self._unused_hooks = [each for each in hooks if each], [each for each in hooks if not each]
        self._hyperparams = [vars(rule.hyperparam) for rule in self._rules]
        parents = {id(rule.hyperparam.parent): rule.hyperparam.parent for rule in self._rules}
        self._shared = [vars(parent) for parent in parents.values() if parent is not None]
        self._batched = batched
        states = [rule.state for rule in batched if rule.state]
        self._states = [state for state in states for _ in state]
        self._state_names = [name for state in states for name in state]
        self._kept = [(vars(rule), name) for rule, name in kept]
        self.expect()
        self._objects = list(self._look())
        self._values_before = self._values()
        self._hyperparams_before = [dict(values) for values in self._hyperparams]

    def none(self):
        """Whether all is as it was."""
        self._masters.structure.refresh()
        return (
            self._same_params(self._masters.structure.namedparams)
            and all(map(operator.is_, self._look(), self._objects))
            and not any(self._unused_hooks)
            and self._values() == self._values_before
            and self._same_hyperparams()
            and [values[name] for values, name in self._kept] == self._kept_before
        )

    def expect(self):
        """Takes the attributes that rules compute with as they are now, after a step."""
        self._kept_before = [values[name] for values, name in self._kept]
        self.notes = self.gradients = ()

    def _same_params(self, namedparams):
        """Whether there are the same parameters under the same names, whoever has refreshed the structure meanwhile."""
        before = self._namedparams
        return namedparams is before or (
            len(namedparams) == len(before)
            and all(
                name == old and param is known for (name, param), (old, known) in zip(namedparams, before, strict=True)
            )
        )

    def _same_hyperparams(self):
        try:
            return self._hyperparams == self._hyperparams_before
        except ValueError:  # another array in the place of one
            return False

    def _look(self):
        """What must be the same objects, compared by identity alone: arrays, and what holds arrays."""
        self.notes = list(map(_NOTE, self.params))
        self.gradients = list(map(_GRAD, self.params))
        if any(map(operator.is_not, map(_GRAD_VAR, self.params), itertools.repeat(None))):  # that of a backward pass
            self.gradients = [param.grad for param in self.params]
        return itertools.chain(
            [array for (array,) in map(_DATA, self.params)],
            map(_STATE, self._batched),
            map(dict.get, self._states, self._state_names),
        )

    def _values(self):
        """What must be equal, for most of it the same objects again."""
        return (
            list(map(_UPDATE_RULE, self.params)),
            list(map(_ENABLED, self._rules)),
            list(map(_HYPERPARAM, self._rules)),
            [_kind(value) for values in self._shared for value in values.values()],
            [list(hooks.values()) for hooks in self._used_hooks],
        )


def _kind(value):
    return value if isinstance(value, bool) else type(value)
