"""Whether anything that a plan for the batched update was made of has changed since."""

import itertools
import operator

_UPDATE_RULE, _DATA = operator.attrgetter("update_rule"), operator.attrgetter("_data")
_NOTE, _GRAD, _GRAD_VAR = (operator.attrgetter(name) for name in ("_loss_scale", "_grad", "_grad_var"))
_ENABLED, _HYPERPARAM, _STATE = (operator.attrgetter(name) for name in ("enabled", "hyperparam", "_state"))


class Changes:
    """Sees another array behind a parameter, a new rule, a hook, a hyperparameter of one rule, a state that was loaded.

    It looks at every parameter in every step, and therefore by iterators that run without bytecode and make few objects
    for the garbage collector. Numbers that rules share with the optimizer are none of its business: they may change
    from step to step. Switches among them, such as ``amsgrad``, must not, nor may an array take the place of a number.

    Args:
        optimizer: Chainer's optimizer.
        masters: :class:`~mixprec.optimizer.masters.Masters`, its target.
        entries: the :class:`~mixprec.optimizer.batch.entries.Entry` of each parameter in the batch. The rules of
            all others may put new arrays into their states in every step.

    Attributes:
        params: the parameters of the model, uninitialized ones among them.
        notes: what :mod:`~mixprec.optimizer.scaled_loss` has noted on each of them when :meth:`look` looked last;
            nothing after a step, as they hold the loss scale of that step.
        gradients: their gradients at that time, an array or ``None``; nothing after a step.
    """

    def __init__(self, optimizer, masters, entries):
        self._structure = masters.structure
        self._namedparams = masters.structure.namedparams
        self.params = masters.structure.params
        self._rules = [param.update_rule for param in self.params if param.update_rule is not None]
        hookables = [optimizer._hookable, *(rule._hookable for rule in self._rules)]
        hooks = [hooks for each in hookables for hooks in (each._pre_update_hooks, each._post_update_hooks)]
        self._used_hooks, self._unused_hooks = [each for each in hooks if each], [each for each in hooks if not each]
        self._hyperparams = [vars(rule.hyperparam) for rule in self._rules]
        parents = {id(rule.hyperparam.parent): rule.hyperparam.parent for rule in self._rules}
        self._shared = [vars(parent) for parent in parents.values() if parent is not None]
        updated = [entry for entry in entries if entry.rule is not None]
        states = [(entry.rule, name) for entry in updated for name in entry.rule.state or ()]
        self._rules_of_states, self._state_names = [rule for rule, _ in states], [name for _, name in states]
        kept = [(vars(entry.rule), name) for entry in updated for name in entry.expression.kept(entry.rule)]
        self._kept, self._kept_names = [values for values, _ in kept], [name for _, name in kept]
        own = [(vars(entry.rule), name) for entry in updated for name in entry.expression.hyperparameters]
        own = [(values, name) for values, name in own if name not in values]
        self._own, self._own_names = [values for values, _ in own], [name for _, name in own]
        self.expect()
        self._arrays, self._states = map(list, self._held())
        self._values_before = self._values()
        self._hyperparams_before = [dict(values) for values in self._hyperparams]

    def none(self):
        """Whether all is as it was."""
        self._structure.refresh()
        return (
            self._same_params(self._structure.namedparams)
            and self._same_objects()
            and self._values() == self._values_before
            and self._same_hyperparams()
            and not any(self._unused_hooks)
            and not any(map(dict.__contains__, self._own, self._own_names))
            and list(map(dict.get, self._kept, self._kept_names)) == self._kept_before
        )

    def look(self):
        """Looks at what a step needs of each parameter."""
        self.notes = list(map(_NOTE, self.params))
        self.gradients = list(map(_GRAD, self.params))
        if any(map(operator.is_not, map(_GRAD_VAR, self.params), itertools.repeat(None))):  # that of a backward pass
            self.gradients = [param.grad for param in self.params]

    def expect(self):
        """Takes the attributes that rules compute with as they are now, after a step."""
        self._kept_before = list(map(dict.get, self._kept, self._kept_names))
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

    def _same_objects(self):
        arrays, states = self._held()
        try:
            return all(map(operator.is_, arrays, self._arrays)) and all(map(operator.is_, states, self._states))
        except TypeError:  # somebody has taken the state away from a rule
            return False

    def _held(self):
        """What must be the same objects, compared by identity alone: arrays, those of parameters and of states."""
        return (
            itertools.chain.from_iterable(map(_DATA, self.params)),  # each of them in a list of its own
            map(dict.get, map(_STATE, self._rules_of_states), self._state_names),
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
