"""Selects parameters without weight decay, by their kind and never by their name, and takes their decay away."""

import chainer
from chainer.optimizer_hooks import WeightDecay

from mixprec.base import arguments

_FEW_DIMENSIONS = "ndim <= 1"
# Hyperparameters of a rule that are reset for these parameters: its own weight decay and, as in MLPerf's LARS, the
# trust ratio.
_SWITCHED_OFF = {"weight_decay_rate": 0.0, "weight_decay": 0.0, "adapt": False}


class NoDecay:
    """The kinds of parameters that are excluded from weight decay.

    Args:
        kinds: ``None`` for none; ``"ndim <= 1"`` for parameters of at most one dimension (biases, scales and shifts of
            normalizations); a link class for the parameters that its links have themselves, not in their children; or a
            tuple of such strings and classes, of which one must match.

    Raises:
        TypeError: ``kinds`` is none of these.
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
        """Returns the :class:`Excluded` for the parameters of a model."""
        return Excluded(model, few_dimensions=self._few_dimensions, links=self._links)

    def hook(self, hook):
        """Returns the hook to register in place of a hook of an optimizer.

        This is :class:`DecayOfSome` for Chainer's ``WeightDecay``; any other hook is returned as it is.
        """
        return DecayOfSome(hook) if self and isinstance(hook, WeightDecay) else hook

    @staticmethod
    def apply(rule):
        """Removes weight decay, and the trust ratio of LARS and LAMB, from the update rule of an excluded parameter.

        The hyperparameters of the rule itself are set; the optimizer, from which it inherits them, does not change.
        """
        for name, value in _SWITCHED_OFF.items():
            if hasattr(rule.hyperparam, name):
                setattr(rule.hyperparam, name, value)


class Excluded:
    """Decides whether a parameter of a model is excluded from weight decay.

    Parameters may be added, replaced and initialized at any time. The model is walked only for a parameter that is new,
    and only if classes of links are given.

    Args:
        model: the link with the parameters.
        few_dimensions: whether parameters of at most one dimension are excluded.
        links: classes of links whose own parameters are excluded.
    """

    def __init__(self, model, *, few_dimensions, links):
        self._model = model
        self._few_dimensions = few_dimensions
        self._links = links
        self._known = {}  # id(parameter) -> (parameter, answer); the parameter is held so that its id stays its own

    def __getstate__(self):
        return {**self.__dict__, "_known": {}}  # a copy has its own parameters

    def __call__(self, param):
        """Returns whether ``param`` is excluded; for an uninitialized parameter only its links decide."""
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
    """``WeightDecay`` for the parameters whose attribute ``no_decay`` is not true.

    Args:
        hook: Chainer's hook, whose name and timing this hook takes.
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
