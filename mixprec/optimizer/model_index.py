"""Tracks the links and parameters of a model, and whether any of them has changed since the last step.

Each step checks before it begins. In most steps nothing has changed: :class:`ModelIndex` then saves a walk through the
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
    """A cache of ``model.links()`` and ``model.namedparams()``; walks again only if they may have changed.

    A walk through a ResNet-50 takes as long as the whole batched update of its parameters on the host. The walk depends
    on the registered names of every link and the objects behind them; comparing these takes a fraction of that time. A
    link with a walk of its own (a user's ``namedparams``) is walked every time.

    Args:
        model: the link.

    Attributes:
        model: the link.
        namedparams: ``[(name, parameter)]`` of the model at the last :meth:`refresh`, uninitialized ones among them, a
            shared one as often as Chainer would give it.
        params: the parameters of :attr:`namedparams`.
        links: the links of the model at that time, itself among them; a new list if they were walked again.
    """

    def __init__(self, model):
        self.model = model
        self._walk()

    def refresh(self):
        """Returns whether parameters were added, removed or replaced since the last call. Called at every step."""
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
    """Detects whether anything that a plan depends on has changed; made with the plan, and checked at every step.

    Changes are: a new array behind a parameter, a new rule, a hook, a hyperparameter of one rule, a loaded state. Every
    parameter is checked in every step, by iterators that run without bytecode and make few objects for the garbage
    collector. Numbers that rules share with the optimizer are not checked: they may change from step to step. Switches
    among them, such as ``amsgrad``, must not change, nor may an array replace a number.

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
            while parent is not None and id(parent) not in parents:  # a ScaledRate has a parent, too
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
        """Whether nothing has changed."""
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
        """Collects the scale and the gradient of each parameter, which a step needs.

        Returns:
            ``scales, gradients``: the scale of each gradient (:mod:`~mixprec.precision.grad_scales`), and the gradient,
            an array or ``None``; lists in the order of :attr:`params`.
        """
        scales, gradients = list(map(_SCALE, self.params)), list(map(_GRAD, self.params))
        if any(map(operator.is_not, map(_GRAD_VAR, self.params), itertools.repeat(None))):  # from a backward pass
            gradients = [param.grad for param in self.params]
        return scales, gradients

    def expect(self):
        """Records the current attributes that rules compute with, after a step."""
        self._kept_before = list(map(dict.get, self._kept, self._kept_names))

    def _same_params(self, namedparams):
        """Whether parameters and names are the same, even if the index was refreshed in between."""
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
        except ValueError:  # an array was replaced
            return False

    def _same_objects(self):
        arrays, states = self._held()
        try:
            return all(map(operator.is_, arrays, self._arrays)) and all(map(operator.is_, states, self._states))
        except TypeError:  # the user has removed the state of a rule
            return False

    def _held(self):
        """The objects that are compared by identity alone: arrays of parameters and of states."""
        return (
            itertools.chain.from_iterable(map(_DATA, self.params)),  # each array is in a list of its own
            map(dict.get, map(_STATE, self._rules_of_states), self._state_names),
        )

    def _values(self):
        """The values that must be equal; most of them are the same objects again."""
        return (
            list(map(_UPDATE_RULE, self.params)),
            list(map(_ENABLED, self._rules)),
            list(map(_HYPERPARAM, self._rules)),
            [_kind(value) for values in self._shared for value in values.values()],
            [list(hooks.values()) for hooks in self._used_hooks],
        )


def _kind(value):
    return value if isinstance(value, bool) else type(value)
