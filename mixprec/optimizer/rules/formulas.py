"""Update rules and hooks, each written down once, in CUDA C++.

Gradient descent with and without momentum, and Chainer's hooks, are here; the other rules are in files beside this one.
The plan of a step looks a rule up by :func:`mixprec.optimizer.rules.rule_formula_of` and a hook by
:func:`hook_formula_of`; one without a formula makes Chainer's own loop run. On a device the batched update makes a
kernel of formulas (:mod:`~mixprec.optimizer.batch.kernel_program`). On the host it runs what the native library was
compiled from: C++ code that :mod:`~mixprec.optimizer.batch.native_source` has made of them.
"""

import dataclasses
import math
import numbers

from chainer import optimizer_hooks
from chainer.optimizer_hooks.gradient_noise import exponential_decay_noise

from mixprec.optimizer.no_decay import DecayOfSome

CARRIED = "carried"  # the name of a state: what RuleFormula.carried says
_FUNCTIONS = {"__builtins__": {}, "min": min, "max": max, "pow": math.pow, "sqrt": math.sqrt}
_FLUSHED = 2.0**-150  # half of the smallest number of float32


@dataclasses.dataclass(frozen=True)
class RuleFormula:
    """What an update rule does to one element of a parameter.

    The numbers of a step (``1 - beta1``, the bias-corrected learning rate) are computed in float64 and then rounded to
    float32, as NumPy rounds a Python number that meets an array. Their formulas are texts that mean the same in Python
    and in CUDA C++.

    Attributes:
        states: names of the state arrays, Chainer's own, of the shape and dtype of the master.
        hyperparameters: names of the numbers that the formulas may use beside ``t``: of the rule's ``hyperparam``, or
            of the rule itself.
        numbers: formulas of the numbers of a step by their name.
        device: statements in CUDA C++ on ``float`` variables: ``param``, ``grad``, states and numbers by their names.
            Operations and their order are those of Chainer's ``update_core_cpu``, so that the native library's results
            are the same bit for bit.
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
        carried: numbers of a parameter that go on from one update to the next, 0 at first, each with the formula of
            what it becomes, of hyperparameters and of carried numbers. :attr:`numbers` may use them, as they are before
            the update. They are the state ``"carried"``, a float64 array, which is on the device where the master is.
    """

    states: tuple[str, ...]
    hyperparameters: tuple[str, ...]
    numbers: dict[str, str]
    device: str
    norms: bool = False
    step: str = ""
    not_flushed: tuple[str, ...] = ()
    powers: dict[str, str] = dataclasses.field(default_factory=dict)
    carried: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for name, texts in (("_formulas", self.numbers), ("_carrying", self.carried)):
            object.__setattr__(self, name, [compile(text, name, "eval") for name, text in texts.items()])

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
        values = self._values(rule) | {"t": t}
        return tuple(float(eval(formula, _FUNCTIONS, values)) for formula in self._formulas)

    def carried_of(self, rule):
        """Returns the carried numbers of a rule on the host, as a tuple of floats."""
        return tuple(rule.state[CARRIED].tolist()) if self.carried else ()

    def carried_after(self, rule):
        """Returns what they are after an update with the hyperparameters as they are now."""
        values = self._values(rule)
        return tuple(eval(formula, _FUNCTIONS, values) for formula in self._carrying)

    def _values(self, rule):
        names, values = (*self.hyperparameters, *self.carried), (*self.hyperparameters_of(rule), *self.carried_of(rule))
        return dict(zip(names, values, strict=True))


@dataclasses.dataclass(frozen=True)
class HookFormula:
    """What a hook does to one element of a gradient.

    Attributes:
        hyperparameters: names of the attributes of the hook that the formulas may use, all numbers.
        numbers: formulas of the float32 numbers of a step, in Python and in CUDA C++; ``t`` is ``rule.t`` as the hook
            sees it: before the step at optimizer level, counting it at rule level.
        device: statements in CUDA C++ on ``param``, ``grad`` and the numbers by their names; with :attr:`norms` also on
            ``param_norm`` and ``grad_norm``; with :attr:`noise` on ``noise``. Operations are those of the hook.
        norms: ``"each"`` for the L2 norms of every parameter and its gradient, ``"all"`` for that of all gradients
            (``grad_norm`` only), as they are before the hook; or ``None``.
        noise: whether the hook needs a standard normal random number for each element.
    """

    hyperparameters: tuple[str, ...]
    numbers: dict[str, str]
    device: str
    norms: str | None = None
    noise: bool = False

    def hyperparameters_of(self, hook):
        """Returns the values of :attr:`hyperparameters` of a hook, as a tuple of floats."""
        return tuple(float(getattr(hook, name)) for name in self.hyperparameters)


SGD = RuleFormula(
    states=(),
    hyperparameters=("lr",),
    numbers={"lr": "lr"},
    device="""
        param -= lr * grad;
    """,
)


MOMENTUM_SGD = RuleFormula(
    states=("v",),
    hyperparameters=("lr", "momentum"),
    numbers={"lr": "lr", "momentum": "momentum"},
    device="""
        v = momentum * v - lr * grad;
        param += v;
    """,
)


WEIGHT_DECAY = HookFormula(
    hyperparameters=("rate",),
    numbers={"rate": "rate"},
    device="""
        grad += rate * param;
    """,
)


LASSO = HookFormula(
    hyperparameters=("rate",),
    numbers={"rate": "rate"},
    device="""
        grad += rate * (param > 0 ? 1.0f : param < 0 ? -1.0f : param == 0 ? 0.0f : param);
    """,
)


HARD_CLIPPING = HookFormula(
    hyperparameters=("lower_bound", "upper_bound"),
    numbers={"lower_bound": "lower_bound", "upper_bound": "upper_bound"},
    device="""
        grad = grad < lower_bound ? lower_bound : grad;
        grad = grad > upper_bound ? upper_bound : grad;
    """,
)

CLIPPING = HookFormula(
    hyperparameters=("threshold",),
    numbers={"threshold": "threshold"},
    norms="all",
    device="""
        const float rate = threshold / grad_norm;
        grad *= rate > 1 ? 1.0f : rate;
    """,
)

# You et al. 2017, "Large Batch Training of Convolutional Networks".
LARS_HOOK = HookFormula(
    hyperparameters=("threshold", "weight_decay", "eps"),
    numbers={"threshold": "threshold", "weight_decay": "weight_decay", "eps": "eps"},
    norms="each",
    device="""
        grad += weight_decay * param;
        grad *= param_norm > threshold ? param_norm / (eps + grad_norm + weight_decay * param_norm) : 1.0f;
    """,
)

# Neelakantan et al. 2015, "Adding Gradient Noise Improves Learning for Very Deep Networks".
NOISE = HookFormula(
    hyperparameters=("eta",),
    numbers={"std": "sqrt(eta / pow(1 + t, 0.55))"},
    noise=True,
    device="""
        grad += std * noise;
    """,
)

_HOOK_FORMULAS = {
    optimizer_hooks.WeightDecay: WEIGHT_DECAY,
    optimizer_hooks.Lasso: LASSO,
    optimizer_hooks.GradientHardClipping: HARD_CLIPPING,
    optimizer_hooks.GradientClipping: CLIPPING,
    optimizer_hooks.GradientLARS: LARS_HOOK,
    optimizer_hooks.GradientNoise: NOISE,
}


def hook_formula_of(hook):
    """Returns the :class:`HookFormula` of a hook; ``None`` if it is unknown, or has other things than numbers."""
    if isinstance(hook, DecayOfSome):
        hook = hook.hook
    formula = _HOOK_FORMULAS.get(type(hook))
    if formula is None or (formula is NOISE and hook.noise_func is not exponential_decay_noise):
        return None
    is_known = all(isinstance(getattr(hook, name), numbers.Real) for name in formula.hyperparameters)
    return formula if is_known else None
