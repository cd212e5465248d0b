"""How an update rule is written down here: once for NumPy, once for CUDA, side by side."""

import dataclasses
import math
from collections.abc import Callable

_FUNCTIONS = {"__builtins__": {}, "min": min, "pow": math.pow, "sqrt": math.sqrt}
_FLUSHED = 2.0**-150  # half of the smallest number of float32


@dataclasses.dataclass(frozen=True)
class Expression:
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
