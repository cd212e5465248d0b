"""Parameters without weight decay: which, by their kind and never by their name, and how they go without."""

import chainer
from chainer.optimizer_hooks import WeightDecay

from mixprec.base import arguments

_FEW_DIMENSIONS = "ndim <= 1"
# What goes without in the hyperparameters of a rule: its own weight decay and, as MLPerf has it for LARS, the trust
# ratio of the same parameters.
_SWITCHED_OFF = {"weight_decay_rate": 0.0, "weight_decay": 0.0, "adapt": False}


class NoDecay:
    """The kinds of parameters that are left out of weight decay.

    Args:
        kinds: ``None`` for none; ``"ndim <= 1"`` for parameters of at most one dimension (biases, scales and shifts of
            normalizations); a link class for the parameters that its links have themselves, not in their children; or
            a tuple of such texts and classes, of which one is enough.

    Raises:
        TypeError: it is something else.
    """

    def __init__(self, kinds=None):
        several = () if kinds is None else kinds if isinstance(kinds, tuple) else (kinds,)
        for kind in several:
            if not _is_link_class(kind) and not (isinstance(kind, str) and kind == _FEW_DIMENSIONS):
                raise TypeError(
                    f'no_decay must be "{_FEW_DIMENSIONS}", a link class such as L.BatchNormalization, a tuple of '
                    f"these, or None; found {arguments.found(kind)}"
                )
        self._few_dimensions = _FEW_DIMENSIONS in several
        self._links = tuple(kind for kind in several if kind != _FEW_DIMENSIONS)

    def __bool__(self):
        return self._few_dimensions or bool(self._links)

    def of(self, model):
        """Returns :class:`Excluded`, which answers for the parameters of a model."""
        return Excluded(model, few_dimensions=self._few_dimensions, links=self._links)

    def hook(self, hook):
        """Returns what to register in place of a hook of an optimizer.

        That is :class:`DecayOfSome` for Chainer's ``WeightDecay``, and any other hook itself.
        """
        return DecayOfSome(hook) if self and isinstance(hook, WeightDecay) else hook

    @staticmethod
    def apply(rule):
        """Takes the weight decay from the update rule of an excluded parameter, and the trust ratio of LARS and LAMB.

        The hyperparameters of the rule itself are set, not those of the optimizer that it has them from.
        """
        for name, value in _SWITCHED_OFF.items():
            if hasattr(rule.hyperparam, name):
                setattr(rule.hyperparam, name, value)


class Excluded:
    """Says of a parameter of a model whether it goes without weight decay.

    Parameters may be added, replaced and initialized at any time. The model is walked only for one that has not been
    asked for before, and only if links count.

    Args:
        model: the link with the parameters.
        few_dimensions: whether parameters of at most one dimension are excluded.
        links: classes of links whose own parameters are.
    """

    def __init__(self, model, *, few_dimensions, links):
        self._model = model
        self._few_dimensions = few_dimensions
        self._links = links
        self._known = {}  # id(parameter) -> (parameter, answer); the parameter is held so that its id stays its own

    def __getstate__(self):
        return {**self.__dict__, "_known": {}}  # a copy has other parameters

    def __call__(self, param):
        """Returns whether ``param`` is excluded; of one without a shape yet its links alone decide."""
        if self._few_dimensions and param.array is not None and param.ndim <= 1:
            return True
        return bool(self._links) and self._of_links(param)

    def _of_links(self, param):
        if id(param) not in self._known:
            self._known = {id(own): (own, False) for own in self._model.params()}
            for link in self._model.links():
                if isinstance(link, self._links):
                    self._known.update((id(own), (own, True)) for own in chainer.Link.params(link))
            self._known.setdefault(id(param), (param, False))
        return self._known[id(param)][1]


class DecayOfSome:
    """``WeightDecay`` of the parameters that have no true attribute ``no_decay``.

    Args:
        hook: Chainer's hook, whose name and timing this one has.
    """

    call_for_each_param = True

    def __init__(self, hook):
        self.hook = hook
        self.name = hook.name
        self.timing = hook.timing

    def __call__(self, rule, param):
        if not getattr(param, "no_decay", False):
            self.hook(rule, param)


def _is_link_class(kind):
    return isinstance(kind, type) and issubclass(kind, chainer.Link)
