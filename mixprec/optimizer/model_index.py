"""The links and parameters of a model, and whether any has changed since the last step.

Each step asks before it begins. In most of them nothing has changed: :class:`ModelIndex` then spares a walk through the
model, and :class:`Changes` a new plan.
"""

import itertools
import operator

import chainer
from chainer import ChainList, Link

_WALKS = ("params", "namedparams", "links", "children")
_CHAINERS = [{getattr(kind, name) for kind in (Link, chainer.Chain, ChainList)} for name in _WALKS]
_UPDATE_RULE, _DATA = operator.attrgetter("update_rule"), operator.attrgetter("_data")
_SCALE, _GRAD, _GRAD_VAR = (operator.attrgetter(name) for name in ("_loss_scale", "_grad", "_grad_var"))
_ENABLED, _HYPERPARAM, _STATE = (operator.attrgetter(name) for name in ("enabled", "hyperparam", "_state"))


class ModelIndex:
    """What ``model.links()`` and ``model.namedparams()`` give, walked anew only if it may be something else by now.

    A walk through a ResNet-50 takes as long as the whole batched update of its parameters on the host. What such a walk
    looks at are the registered names of every link and what is behind them; whether these are the same is asked in a
    fraction of that time. A link with a walk of its own (a user's ``namedparams``) is walked every time.

    Args:
        model: the link.

    Attributes:
        model: the same.
        namedparams: ``[(name, parameter)]`` of the model at the last :meth:`refresh`, uninitialized ones among them, a
            shared one as often as Chainer would give it.
        params: the parameters of :attr:`namedparams`.
        links: the links of the model at that time, itself among them; a new list if they were walked anew.
    """

    def __init__(self, model):
        self.model = model
        self._walk()

    def refresh(self):
        """Looks whether parameters were added, removed or replaced; returns whether they were. Called at every step."""
        if self._unchanged():
            return False
        before = self.params
        self._walk()
        return len(before) != len(self.params) or not all(map(operator.is_, before, self.params))

    def _unchanged(self):
        return (
            not self._walks_its_own_way
            and self._names == self._names_before
            and all(map(operator.is_, map(dict.get, self._attributes, self._attribute_names), self._values))
        )

    def _walk(self):
        self.links = list(self.model.links())
        self.namedparams = list(self.model.namedparams())
        self.params = [param for _, param in self.namedparams]
        self._walks_its_own_way = any(
            getattr(type(link), name) not in known
            for link in self.links
            for name, known in zip(_WALKS, _CHAINERS, strict=True)
        )
        self._names, self._attributes, self._attribute_names = [], [], []
        for link in self.links:
            by_name = set(link._params)
            self._names.append(link._params)
            if (children := getattr(link, "_children", None)) is not None:
                self._names.append(children)
                if not isinstance(link, ChainList):
                    by_name |= children
            self._attributes += [link.__dict__] * len(by_name)
            self._attribute_names += by_name
        self._names_before = [names.copy() for names in self._names]
        self._values = [values[name] for values, name in zip(self._attributes, self._attribute_names, strict=True)]


class Changes:
    """Sees whether anything that a plan was made of has changed since; made with the plan, and asked at every step.

    That is another array behind a parameter, a new rule, a hook, a hyperparameter of one rule, a state that was loaded.

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
    """

    def __init__(self, optimizer, masters, entries):
        self._index = masters.index
        self._namedparams = masters.index.namedparams
        self.params = masters.index.params
        self._rules = [param.update_rule for param in self.params if param.update_rule is not None]
        hookables = [optimizer._hookable, *(rule._hookable for rule in self._rules)]
        hooks = [hooks for each in hookables for hooks in (each._pre_update_hooks, each._post_update_hooks)]
        self._used_hooks, self._unused_hooks = [each for each in hooks if each], [each for each in hooks if not each]
        self._hyperparams = [vars(rule.hyperparam) for rule in self._rules]
        parents = {}
        for rule in self._rules:
            parent = rule.hyperparam.parent
            while parent is not None and id(parent) not in parents:  # a ScaledRate has one, too
                parents[id(parent)] = parent
                parent = parent.parent
        self._shared = [vars(parent) for parent in parents.values()]
        updated = [entry for entry in entries if entry.rule is not None]
        states = [(entry.rule, name) for entry in updated for name in entry.rule.state or ()]
        self._rules_of_states, self._state_names = [rule for rule, _ in states], [name for _, name in states]
        kept = [(vars(entry.rule), name) for entry in updated for name in entry.formula.kept(entry.rule)]
        self._kept, self._kept_names = [values for values, _ in kept], [name for _, name in kept]
        own = [(vars(entry.rule), name) for entry in updated for name in entry.formula.hyperparameters]
        own = [(values, name) for values, name in own if name not in values]
        self._own, self._own_names = [values for values, _ in own], [name for _, name in own]
        self.expect()
        self._arrays, self._states = map(list, self._held())
        self._values_before = self._values()
        self._hyperparams_before = [dict(values) for values in self._hyperparams]

    def none(self):
        """Whether all is as it was."""
        self._index.refresh()
        return (
            self._same_params(self._index.namedparams)
            and self._same_objects()
            and self._values() == self._values_before
            and self._same_hyperparams()
            and not any(self._unused_hooks)
            and not any(map(dict.__contains__, self._own, self._own_names))
            and list(map(dict.get, self._kept, self._kept_names)) == self._kept_before
        )

    def look(self):
        """Looks at what a step needs of each parameter.

        Returns:
            ``scales, gradients``: by what each gradient is scaled (:mod:`~mixprec.precision.grad_scales`), and the
            gradient, an array or ``None``; lists in the order of :attr:`params`.
        """
        scales, gradients = list(map(_SCALE, self.params)), list(map(_GRAD, self.params))
        if any(map(operator.is_not, map(_GRAD_VAR, self.params), itertools.repeat(None))):  # that of a backward pass
            gradients = [param.grad for param in self.params]
        return scales, gradients

    def expect(self):
        """Takes the attributes that rules compute with as they are now, after a step."""
        self._kept_before = list(map(dict.get, self._kept, self._kept_names))

    def _same_params(self, namedparams):
        """Whether there are the same parameters under the same names, also if the index was refreshed meanwhile."""
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
        except TypeError:  # the user has taken the state away from a rule
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
