"""Learning rates of parts of a model: factors on the optimizer's rate, by name patterns; 0 freezes.

The wrapper's argument ``rates`` goes through :func:`checked`, and :class:`~mixprec.optimizer.masters.Masters` asks the
:class:`Factors` of its model for each parameter.
"""

import fnmatch

import chainer
from chainer.optimizer import Hyperparameter

from mixprec.base import arguments
from mixprec.base.name_patterns import UnknownName

# The first of these hyperparameters that a rule has is scaled. The step of Adam and MSVAG, with its weight decay, is
# proportional to eta; alpha of RMSprop is not a rate, and RMSprop has lr.
_RATES = ("eta", "lr", "alpha")
_FROZEN = "_mixprec_frozen"  # attribute of a parameter that this module has frozen


class NothingToTrain(ValueError):
    """All parameters are frozen."""


def checked(rates):
    """Checks ``rates`` and returns a dict from patterns to float factors.

    Args:
        rates: ``None``, or a dict from patterns to factors, which are finite and 0 or more. A pattern matches whole
            names as in :func:`fnmatch.fnmatchcase`; ``*`` matches slashes, too.

    Raises:
        TypeError: ``rates``, a pattern or a factor has another type.
        ValueError: a factor is negative or not finite.
    """
    if rates is None:
        return {}
    arguments.instance("rates", rates, dict, "a dict from patterns to numbers, or None")
    for pattern in rates:
        arguments.instance("a pattern of rates", pattern, str, 'a string such as "/fc/*"')
    return {pattern: arguments.number(f"rates[{pattern!r}]", factor, 0.0) for pattern, factor in rates.items()}


class Factors:
    """Looks up the factor on a parameter's learning rate: the factor of the last pattern that matches.

    For a parameter with several names, the last pattern that matches any of them is used. Parameters may be added at
    any time. The model is walked only for a parameter that is new.

    Args:
        model: the link with the parameters.
        rates: dict from patterns to factors, from :func:`checked`.

    Raises:
        UnknownName: a pattern matches none of the parameters.
        NothingToTrain: all of them are frozen.
    """

    def __init__(self, model, rates):
        self._model, self._rates = model, rates
        self._known = {}  # id(parameter) -> (parameter, factor); the parameter is held so that its id stays its own
        self._shared = {}  # (id of hyperparameters, factor) -> ScaledRate, which holds the hyperparameters
        if not rates:
            return
        names = [name for name, _ in model.namedparams()]
        for pattern in rates:
            if not fnmatch.filter(names, pattern):
                raise UnknownName("rates", "parameter", pattern, names)
        if all(self(param) == 0 for param in model.params()):
            raise NothingToTrain("rates: all parameters are frozen, and there is nothing to train")

    def __getstate__(self):
        return {**self.__dict__, "_known": {}, "_shared": {}}  # a copy has its own parameters

    def __call__(self, param):
        """Returns the factor of ``param``, 1.0 if no pattern matches."""
        if not self._rates:
            return 1.0
        if id(param) not in self._known:
            names = {}
            for name, own in self._model.namedparams():
                names.setdefault(id(own), (own, []))[1].append(name)
            self._known = {key: (own, self._factor(own_names)) for key, (own, own_names) in names.items()}
            self._known.setdefault(id(param), (param, 1.0))
        return self._known[id(param)][1]

    def _factor(self, names):
        fitting = [factor for pattern, factor in self._rates.items() if fnmatch.filter(names, pattern)]
        return fitting[-1] if fitting else 1.0

    def apply(self, param):
        """Gives the update rule of a parameter its rate; a parameter without a rule stays as it is.

        The factor applies to the rate that the rule inherits from its optimizer, which a schedule changes. A learning
        rate that was set for the rule itself is not scaled.

        Raises:
            ValueError: the rule has no learning rate.
        """
        factor, rule = self(param), param.update_rule
        if rule is not None and factor == 0:
            rule.enabled = False
        elif rule is not None and (parent := rule.hyperparam.parent) is not None:
            parent = parent.parent if isinstance(parent, ScaledRate) else parent
            rule.hyperparam._parent = parent if factor == 1 else self._scaled(parent, factor, rule)

    def _scaled(self, parent, factor, rule):
        """Returns one object for all rules of a factor, so that they are updated together."""
        key = id(parent), factor
        if key not in self._shared:
            rate = next((name for name in _RATES if hasattr(parent, name)), None)
            if rate is None:
                raise ValueError(f"rates: {type(rule).__name__} has no learning rate; only 0 can be a factor")
            self._shared[key] = ScaledRate(parent, rate, factor)
        return self._shared[key]

    def set_gradient(self, param):
        """Sets ``requires_grad`` of a frozen parameter to false, so that no backward pass computes its gradient."""
        frozen = self(param) == 0
        if frozen and param.requires_grad:
            param.__dict__[_FROZEN] = True
            param.cleargrad()
        elif frozen or not param.__dict__.pop(_FROZEN, False):
            return
        # Chainer has no setter; the node of a parameter lives as long as the parameter.
        param._requires_grad = param.node._requires_grad = not frozen


class ScaledRate(Hyperparameter):
    """The hyperparameters of an optimizer, with its current learning rate multiplied by a factor.

    Args:
        parent: :class:`chainer.optimizer.Hyperparameter` of the optimizer.
        rate: name of the learning rate.
        factor: the factor.
    """

    def __init__(self, parent, rate, factor):
        super().__init__(parent)
        self._rate, self._factor = rate, factor

    def __getattr__(self, name):
        value = super().__getattr__(name)
        return value * self._factor if name == self._rate else value

    def get_dict(self):
        """Returns all hyperparameters, a dict."""
        values = self._parent.get_dict()
        return {name: value * self._factor if name == self._rate else value for name, value in values.items()}


def factors_of(optimizer):
    """Returns ``{name: (parameter, factor)}`` of the model of a :class:`~mixprec.MixedPrecisionOptimizer`."""
    masters = optimizer._masters
    return {name: (param, masters.factors(param)) for name, param in masters.model.namedparams()}


def is_frozen(param: chainer.Parameter) -> bool:
    """Returns whether a parameter has no gradient because its factor is 0."""
    return _FROZEN in param.__dict__
