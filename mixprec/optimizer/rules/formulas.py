"""Update rules and hooks, each declared once, in CUDA C++.

A file of this folder declares a :class:`RuleFormula` for each update rule, of Chainer's or of this package, and
``hook_formulas.py`` a :class:`HookFormula` for each hook. The plan of a step looks them up by :func:`rule_formula_of`
and :func:`hook_formula_of`; rules and hooks without a formula run in Chainer's own loop. On a device the batched update
compiles formulas into a kernel (:mod:`~mixprec.optimizer.batch.kernel_program`). On the host it uses the native
library, which is compiled from C++ code that :mod:`~mixprec.optimizer.rules.generate` makes from them.
"""

import dataclasses
import functools
import math
import re
import types
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from mixprec.optimizer.no_decay import DecayOfSome

CARRIED = "carried"  # the name of the state for RuleFormula.carried
_FUNCTIONS = {"__builtins__": {}, "min": min, "max": max, "pow": math.pow, "sqrt": math.sqrt}
_FLUSHED = 2.0**-150  # half of the smallest number of float32

RULES = {}  # each RuleFormula by its name, in the order of declaration
HOOKS = {}  # each HookFormula by its name
_BY_RULE = {}  # {class of an update rule: (names of its switches, {their values: RuleFormula})}
_BY_HOOK = {}  # {class of a hook: HookFormula}


def numbers(*names, **formulas):
    """Returns the formulas of the numbers of a step: hyperparameters by name, and others by formula."""
    return {**{name: name for name in names}, **formulas}


class _Formula:
    powers: Mapping[str, str] = types.MappingProxyType({})  # hooks have no powers and no carried numbers
    carried: Mapping[str, str] = types.MappingProxyType({})

    @property
    def counts(self):
        """Whether the numbers of a step depend on the number of steps so far."""
        return any(uses(text, "t") for text in self.numbers.values())

    @property
    def moves(self):
        """Whether the numbers of a step change by themselves: with the steps, or with a carried number."""
        return bool(self.counts or self.powers)


@dataclasses.dataclass(frozen=True)
class RuleFormula(_Formula):
    """The formula of an update rule for one element of a parameter; creating an instance declares it.

    The numbers of a step (``1 - beta1``, the bias-corrected learning rate) are computed in float64 and then rounded to
    float32, as NumPy rounds a Python number in an operation with an array. Their formulas are strings with the same
    meaning in Python and in CUDA C++.

    Attributes:
        name: name in the native library.
        rule: class of the update rule.
        switches: values of the rule's hyperparameters for which this formula holds, if the rule has several formulas.
        states: names of the state arrays, as in Chainer, with the shape and dtype of the master.
        numbers: formulas of the numbers of a step by name, see :func:`numbers`. They may use ``t`` and numeric
            attributes of the rule's ``hyperparam``, or of the rule itself.
        device: statements in CUDA C++ on ``float`` variables: ``param``, ``grad``, states and numbers by name. The
            NumPy code of the rule has the same operations in the same order, so that the native library's results are
            the same bit for bit. Literals and functions have the suffix ``f``.
        norms: whether :attr:`device` may also use ``param_norm`` and ``grad_norm``, the L2 norms of the whole master
            before the update and of its whole gradient, unscaled, after hooks (LARS).
        step: statements that change the states and declare ``float step`` from ``param``, ``grad``, states and numbers;
            :attr:`device` may then use ``step``, ``param_norm`` and ``step_norm``, the L2 norm of the whole step, and
            :attr:`step` must leave ``param`` alone (LAMB). It runs twice from the same states: once for the norm, after
            which the states are discarded, and once right before :attr:`device`.
        not_flushed: names of the hyperparameters that must not become 0 in float32: a positive value that does is an
            error, as in Chainer.
        powers: attributes of the rule, among :attr:`hyperparameters`, that it multiplies by another hyperparameter
            after each update: ``{"beta_power": "beta"}``.
        hyperparameters: names of the hyperparameters in :attr:`numbers` and :attr:`carried`.
        carried: numbers of a parameter that are carried from one update to the next, initially 0, each with the formula
            of its new value, from hyperparameters and carried numbers. :attr:`numbers` may use their values from before
            the update. They are stored in the state ``"carried"``, a float64 array on the device of the master.
    """

    name: str
    rule: type
    states: tuple[str, ...]
    numbers: dict[str, str]
    device: str
    switches: dict[str, bool] = dataclasses.field(default_factory=dict)
    norms: bool = False
    step: str = ""
    not_flushed: tuple[str, ...] = ()
    powers: dict[str, str] = dataclasses.field(default_factory=dict)
    carried: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for name, texts in (("_formulas", self.numbers), ("_carrying", self.carried)):
            object.__setattr__(self, name, [compile(text, name, "eval") for text in texts.values()])
        object.__setattr__(self, "hyperparameters", _variables({**self.numbers, **self.carried}, *self.carried))
        RULES[self.name] = self
        _, formulas = _BY_RULE.setdefault(self.rule, (tuple(self.switches), {}))
        formulas[tuple(self.switches.values())] = self

    @property
    def is_elementwise(self):
        """Whether an element does not depend on others; the native library has only such formulas."""
        return not (self.norms or self.step)

    def kept(self, rule):
        """Returns the names of the rule's own attributes that the numbers of a step depend on."""
        names = [name for name in self.hyperparameters if name in vars(rule)]
        return [*names, "t"] if self.counts else names

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
            t: number of updates, including this one.
        """
        values = self._values(rule) | {"t": t}
        return tuple(float(eval(formula, _FUNCTIONS, values)) for formula in self._formulas)

    def carried_of(self, rule):
        """Returns the carried numbers of a rule on the host, as a tuple of floats."""
        return tuple(rule.state[CARRIED].tolist()) if self.carried else ()

    def carried_after(self, rule):
        """Returns the carried numbers after an update with the current hyperparameters."""
        values = self._values(rule)
        return tuple(eval(formula, _FUNCTIONS, values) for formula in self._carrying)

    def _values(self, rule):
        names, values = (*self.hyperparameters, *self.carried), (*self.hyperparameters_of(rule), *self.carried_of(rule))
        return dict(zip(names, values, strict=True))


@dataclasses.dataclass(frozen=True)
class HookFormula(_Formula):
    """The formula of a hook for one element of a gradient; creating an instance declares it.

    Attributes:
        hook: class of the hook, whose name is the formula's.
        numbers: formulas of the float32 numbers of a step, in Python and in CUDA C++, from numeric attributes of the
            hook; ``t`` is ``rule.t`` as the hook sees it: without the step at optimizer level, including it at rule
            level.
        hyperparameters: names of these attributes.
        device: statements in CUDA C++ on ``param``, ``grad`` and the numbers by name; with :attr:`norms` also on
            ``param_norm`` and ``grad_norm``; with :attr:`noise` on ``noise``. The operations are the same as in the
            hook.
        norms: ``"each"`` for the L2 norms of every parameter and its gradient, ``"all"`` for the L2 norm of all
            gradients (``grad_norm`` only), computed before the hook; or ``None``.
        noise: whether the hook needs a standard normal random number for each element.
        holds_for: function that tells whether the formula holds for a hook of the class; ``None`` for all.
    """

    hook: type
    numbers: dict[str, str]
    device: str
    norms: str | None = None
    noise: bool = False
    holds_for: Callable[[Any], bool] | None = None

    def __post_init__(self):
        object.__setattr__(self, "hyperparameters", _variables(self.numbers))
        HOOKS[self.name] = _BY_HOOK[self.hook] = self

    @property
    def name(self):
        """The name in the native library."""
        return self.hook.__name__

    @property
    def is_elementwise(self):
        """Whether an element needs no other elements and no noise; the native library has only such formulas."""
        return self.norms is None and not self.noise

    def hyperparameters_of(self, hook):
        """Returns the values of :attr:`hyperparameters` of a hook, as a tuple of floats."""
        return tuple(float(getattr(hook, name)) for name in self.hyperparameters)


def _variables(texts, *others):
    """Returns the names in formulas that are neither functions, nor ``t``, nor ``others``, in order."""
    names = dict.fromkeys(name for text in texts.values() for name in re.findall(r"\b[a-z_]\w*", text))
    return tuple(name for name in names if name not in {*_FUNCTIONS, *others, "t"})


def rule_formula_of(rule, kind=None):
    """Returns the :class:`RuleFormula` of an update rule, ``None`` for an unknown one.

    Args:
        rule: the update rule.
        kind: class to look up; by default the rule's own class, so that a subclass of a known class is unknown.
    """
    switches, formulas = _BY_RULE.get(kind or type(rule), ((), {}))
    return formulas.get(tuple(bool(getattr(rule.hyperparam, name)) for name in switches))


def hook_formula_of(hook):
    """Returns the :class:`HookFormula` of a hook; ``None`` if it is unknown, or has attributes that are not numbers."""
    if isinstance(hook, DecayOfSome):
        hook = hook.hook
    formula = _BY_HOOK.get(type(hook))
    if formula is None or (formula.holds_for is not None and not formula.holds_for(hook)):
        return None
    is_known = all(isinstance(getattr(hook, name), Real) for name in formula.hyperparameters)
    return formula if is_known else None


def elementwise(formulas):
    """Returns the formulas of a dict that the native library has."""
    return {name: formula for name, formula in formulas.items() if formula.is_elementwise}


@functools.cache
def may_count(kind):
    """Whether update rules or hooks of a class may compute with ``t``, or with numbers of their own that change.

    Unknown ones may: the bias correction of Adam, the annealed ``GradientNoise``, whatever users write.
    """
    if kind is DecayOfSome:
        return False
    formulas = [_BY_HOOK[kind]] if kind in _BY_HOOK else [*_BY_RULE.get(kind, ((), {}))[1].values()]
    return not formulas or any(formula.moves for formula in formulas)


def uses(text, name):
    """Whether a formula or a piece of code has a variable of this name."""
    return re.search(rf"\b{name}\b", text) is not None
