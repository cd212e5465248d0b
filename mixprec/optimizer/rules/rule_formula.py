"""An update rule is written down here once for NumPy and once for CUDA, side by side.

Gradient descent with and without momentum is at the end, as an example; the other rules are in files beside this one.
The batched update runs a formula on the host (:mod:`~mixprec.optimizer.host_form`), or makes a kernel of it
(:mod:`~mixprec.optimizer.batch.kernel_program`).
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

_FUNCTIONS = {"__builtins__": {}, "min": min, "pow": math.pow, "sqrt": math.sqrt}
_FLUSHED = 2.0**-150  # half of the smallest number of float32


@dataclasses.dataclass(frozen=True)
class RuleFormula:
    """What an update rule does to one element of a parameter.

    The numbers of a step (``1 - beta1``, the bias-corrected learning rate) are computed in float64 and then rounded to
    the dtype of the masters, as NumPy rounds a Python number that meets an array. Their formulas are texts that mean
    the same in Python and in CUDA C++.

    Attributes:
        states: names of the state arrays, Chainer's own, of the shape and dtype of the master.
        hyperparameters: names of the numbers that the formulas may use beside ``t``: of the rule's ``hyperparam``, or
            of the rule itself.
        numbers: formulas of the numbers of a step by their name.
        host: ``host(p, g, states, numbers, a, b)`` updates master ``p`` and ``states`` (a tuple) in place. ``g`` is the
            gradient, unscaled, after hooks; it and the scratch arrays ``a``, ``b`` may be overwritten. All arrays have
            one dtype and one dimension. ``numbers`` is a tuple of floats in the order of :attr:`numbers`. Operations
            and their order are those of Chainer's ``update_core_cpu``, so that results are the same bit for bit.
            ``None`` if it takes more than one element to know: NumPy then runs the rule itself.
        device: statements in CUDA C++ on ``float`` variables: ``param``, ``grad``, states and numbers by their names.
        norms: whether :attr:`device` may also use ``param_norm`` and ``grad_norm``, the L2 norms of the whole master
            before the update and of its whole gradient, unscaled, after hooks (LARS).
        step: statements that change the states and declare ``float step`` from ``param``, ``grad``, states and
            numbers; :attr:`device` may then use ``step``, ``param_norm`` and ``step_norm``, the L2 norm of the whole
            step, and :attr:`step` must leave ``param`` alone (LAMB). It runs twice from the same states: once for the
            norm, which discards what it did to them, and once right before :attr:`device`.
        not_flushed: names of the hyperparameters that float32 must be able to hold: a positive one that it takes for 0
            is an error, as in Chainer.
        powers: attributes of the rule, among :attr:`hyperparameters`, that it multiplies by another hyperparameter
            after each update, by their names: ``{"beta_power": "beta"}``.
    """

    states: tuple[str, ...]
    hyperparameters: tuple[str, ...]
    numbers: dict[str, str]
    host: Callable | None
    device: str
    norms: bool = False
    step: str = ""
    not_flushed: tuple[str, ...] = ()
    powers: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "_formulas", [compile(text, name, "eval") for name, text in self.numbers.items()])

    def kept(self, rule):
        """Returns the names of the attributes of the rule itself that the numbers of a step depend on."""
        names = [name for name in self.hyperparameters if name in vars(rule)]
        return [*names, "t"] if self.counts else names

    @property
    def counts(self):
        """Whether the numbers of a step depend on how many steps there have been."""
        return any("t" in formula.co_names for formula in self._formulas)

    def hyperparameters_of(self, rule):
        """Returns the values of :attr:`hyperparameters` of an update rule of Chainer's, as a tuple of floats."""
        hyperparam, own = rule.hyperparam, rule.__dict__
        for name in self.not_flushed:
            if 0 < getattr(hyperparam, name) <= _FLUSHED:
                kind = type(rule).__name__
                raise ValueError(f"{name} of {kind} is too small for float32 ({getattr(hyperparam, name)})")
        return tuple(float(own[name] if name in own else getattr(hyperparam, name)) for name in self.hyperparameters)

    def numbers_of(self, rule, t):
        """Returns the numbers of an update as a tuple of floats.

        Args:
            rule: update rule of Chainer's.
            t: how many updates it has made with this one.
        """
        values = dict(zip(self.hyperparameters, self.hyperparameters_of(rule), strict=True), t=t)
        return tuple(eval(formula, _FUNCTIONS, values) for formula in self._formulas)


def _sgd(p, g, states, numbers, a, b):
    (lr,) = numbers
    np.multiply(g, lr, out=g)
    np.subtract(p, g, out=p)


SGD = RuleFormula(
    states=(),
    hyperparameters=("lr",),
    numbers={"lr": "lr"},
    host=_sgd,
    device="""
        param -= lr * grad;
    """,
)


def _momentum_sgd(p, g, states, numbers, a, b):
    (v,) = states
    lr, momentum = numbers
    np.multiply(v, momentum, out=v)
    np.multiply(g, lr, out=g)
    np.subtract(v, g, out=v)
    np.add(p, v, out=p)


MOMENTUM_SGD = RuleFormula(
    states=("v",),
    hyperparameters=("lr", "momentum"),
    numbers={"lr": "lr", "momentum": "momentum"},
    host=_momentum_sgd,
    device="""
        v = momentum * v - lr * grad;
        param += v;
    """,
)


def _corrected_momentum_sgd(p, g, states, numbers, a, b):
    (v,) = states
    lr, momentum = numbers
    np.multiply(v, momentum, out=v)
    np.subtract(v, g, out=v)
    np.multiply(v, lr, out=a)
    np.add(p, a, out=p)


# Goyal et al. 2017, "Accurate, Large Minibatch SGD", equation (9): a new learning rate does not reach into old steps.
CORRECTED_MOMENTUM_SGD = RuleFormula(
    states=("v",),
    hyperparameters=("lr", "momentum"),
    numbers={"lr": "lr", "momentum": "momentum"},
    host=_corrected_momentum_sgd,
    device="""
        v = momentum * v - grad;
        param += lr * v;
    """,
)


def _nesterov_ag(p, g, states, numbers, a, b):
    (v,) = states
    lr, momentum, momentum_squared, lr_now = numbers
    np.multiply(v, momentum, out=v)
    np.multiply(g, lr, out=a)
    np.subtract(v, a, out=v)
    np.multiply(v, momentum_squared, out=a)
    np.add(p, a, out=p)
    np.multiply(g, lr_now, out=g)
    np.subtract(p, g, out=p)


# Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning".
NESTEROV_AG = RuleFormula(
    states=("v",),
    hyperparameters=("lr", "momentum"),
    numbers={
        "lr": "lr",
        "momentum": "momentum",
        "momentum_squared": "momentum * momentum",
        "lr_now": "(1 + momentum) * lr",
    },
    host=_nesterov_ag,
    device="""
        v = momentum * v - lr * grad;
        param += momentum_squared * v;
        param -= lr_now * grad;
    """,
)
