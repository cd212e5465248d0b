"""Bases of the optimizers of this package, which are Chainer's like any other; a file of this folder has one of them.

Such a file declares the optimizer with its hyperparameters, the update rule with the update in NumPy, and the formula
of the rule. From these come what the wrapper runs, and what Chainer runs without it.
"""

import inspect
import math
import typing
from typing import Any, Generic, TypeVar

import chainer
from chainer import optimizer

from mixprec.base import arguments
from mixprec.optimizer.rules.formulas import CARRIED, rule_formula_of
from mixprec.optimizer.rules.offers import offer
from mixprec.optimizer.rules.single_update import update_on_gpu

RuleT = TypeVar("RuleT", bound="OwnRule")
OptimizerT = TypeVar("OptimizerT", bound="OwnOptimizer[Any]")


class Hyperparameter:
    """A hyperparameter of an optimizer: an alias of the one in ``hyperparam``, as Chainer has them.

    Attributes:
        default: a number or a bool.
        range: from where, and to below what; empty for anything finite.
    """

    def __init__(self, default, *range):
        self.default, self.range = default, range

    def __set_name__(self, owner, name):
        self._name = name

    def __get__(self, instance, owner=None):
        return self.default if instance is None else getattr(instance.hyperparam, self._name)

    def __set__(self, instance, value):
        hyperparam = instance.hyperparam
        if self._name not in vars(hyperparam):  # by the constructor; later values are taken as they are, as in Chainer
            value = self.checked(value)
        setattr(hyperparam, self._name, value)

    def checked(self, value):
        """Returns a value for it, as Python's number or bool.

        Raises:
            TypeError: it is not a bool, and the default is one.
            ValueError: it is not a number, or out of range.
        """
        if isinstance(self.default, bool):
            return arguments.flag(self._name, value)
        return arguments.number(self._name, value, *self.range)


def hyperparameter(default: Any, *range: float) -> Any:
    """Declares a hyperparameter in the class of an optimizer.

    Args:
        default: a number or a bool.
        range: the smallest value, and where it must stay below; anything finite without.
    """
    return Hyperparameter(default, *range)


POSITIVE = (0.0, math.inf)
SHARE = (0.0, 1.0)  # without 1


class OwnRule(optimizer.UpdateRule):
    """An update rule of this package; its formula names the states, its optimizer the hyperparameters.

    Args:
        parent_hyperparam: hyperparameters that provide the default values.
        values: hyperparameters that differ from these, in the order of the optimizer's.
        given: others by name.
    """

    optimizer_class: Any = None  # the optimizer that is declared with it, which users' subclasses follow

    def __init__(self, parent_hyperparam: Any = None, *values: Any, **given: Any) -> None:
        declared = self.optimizer_class.declared()
        given = inspect.signature(self.optimizer_class).bind_partial(*values, **given).arguments
        if parent_hyperparam is None:
            parent_hyperparam = optimizer.Hyperparameter()
            vars(parent_hyperparam).update({name: each.default for name, each in declared.items()})
        super().__init__(parent_hyperparam)
        for name, value in given.items():
            if value is not None:
                setattr(self.hyperparam, name, declared[name].checked(value))

    @property
    def formula(self):
        """What the rule does to an element, with its hyperparameters as they are."""
        return rule_formula_of(self, self.optimizer_class.rule_class)

    def init_state(self, param):
        """Puts the states of the formula into the state, all zeros."""
        xp, formula = param.device.xp, self.formula
        for name in formula.states:
            self.state[name] = xp.zeros_like(param.array)
        if formula.carried:
            self.state[CARRIED] = xp.zeros_like(param.array, "float64", shape=len(formula.carried))

    def update_core_cpu(self, param):
        """Updates the parameter on the CPU."""
        if param.grad is not None:
            self.update_on_cpu(param.array, param.grad)

    def update_core_gpu(self, param):
        """Updates the parameter on a GPU. Nothing is read from it."""
        if param.grad is not None:
            update_on_gpu(self, param.array, param.grad)

    def update_on_cpu(self, p: Any, grad: Any) -> None:
        """Updates an array of NumPy and the state in place: the formula in NumPy, which the native library must match.

        Args:
            p: the parameter.
            grad: its gradient, which stays as it is.
        """
        raise NotImplementedError


class OwnOptimizer(chainer.GradientMethod, Generic[RuleT]):
    """An optimizer of this package, made of ``OwnOptimizer[its rule]`` by ``dataclass(eq=False, repr=False)``.

    The fields are hyperparameters.

    Attributes:
        rule_class: class of its update rules.
        keys: hyperparameters, beside ``lr`` and ``weight_decay``, that are keys of the section ``optimizer`` in YAML.
        is_decoupled: whether ``weight_decay`` is a share of the parameter that follows the learning rate.
        has_average: whether models are evaluated at an average of their weights, ``average`` of the rule.
    """

    rule_class: typing.ClassVar[Any]
    keys: typing.ClassVar[tuple[str, ...]] = ()
    is_decoupled: typing.ClassVar[bool] = False
    has_average: typing.ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__bases__[0] is not OwnOptimizer:  # a user's subclass of one that is declared
            return
        (cls.rule_class,) = typing.get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]
        cls.rule_class.optimizer_class = cls
        offer(
            cls.__name__,
            module=cls.__module__,
            decay="weight_decay" if "weight_decay" in cls.declared() else None,
            keys=cls.keys,
            is_decoupled=cls.is_decoupled,
            has_average=cls.has_average,
        )

    def __new__(cls: type[OptimizerT], *args: Any, **kwargs: Any) -> OptimizerT:
        """Makes room for hyperparameters, which the ``__init__`` of a dataclass sets."""
        self = object.__new__(cls)
        chainer.GradientMethod.__init__(self)
        return self

    @classmethod
    def declared(cls) -> dict[str, Hyperparameter]:
        """Returns the hyperparameters of the class, and of those that it is a subclass of, by name."""
        found = {name: each for base in reversed(cls.__mro__) for name, each in vars(base).items()}
        return {name: each for name, each in found.items() if isinstance(each, Hyperparameter)}

    def create_update_rule(self) -> RuleT:
        """Returns a new update rule."""
        return typing.cast(RuleT, self.rule_class(self.hyperparam))
