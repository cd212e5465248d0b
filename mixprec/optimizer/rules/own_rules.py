"""Base classes of this package's optimizers, which are ordinary Chainer optimizers; each is in a file of this folder.

Such a file declares the optimizer with its hyperparameters, the update rule with its NumPy code, and the formula of the
rule. These define the update both inside the wrapper and in plain Chainer.
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
    """A hyperparameter of an optimizer: an alias of the entry in ``hyperparam``, as in Chainer.

    Attributes:
        default: a number or a bool.
        range: the smallest value, and an exclusive upper bound; empty for any finite number.
    """

    def __init__(self, default, *range):
        self.default, self.range = default, range

    def __set_name__(self, owner, name):
        self._name = name

    def __get__(self, instance, owner=None):
        return self.default if instance is None else getattr(instance.hyperparam, self._name)

    def __set__(self, instance, value):
        hyperparam = instance.hyperparam
        if self._name not in vars(hyperparam):  # set by the constructor; later values are not checked, as in Chainer
            value = self.checked(value)
        setattr(hyperparam, self._name, value)

    def checked(self, value):
        """Checks a value and returns it as a Python number or bool.

        Raises:
            TypeError: the default is a bool, and the value is not.
            ValueError: the value is not a number, or out of range.
        """
        if isinstance(self.default, bool):
            return arguments.flag(self._name, value)
        return arguments.number(self._name, value, *self.range)


def hyperparameter(default: Any, *range: float) -> Any:
    """Declares a hyperparameter in the class of an optimizer.

    Args:
        default: a number or a bool.
        range: the smallest value, and an exclusive upper bound; without it any finite number is allowed.
    """
    return Hyperparameter(default, *range)


POSITIVE = (0.0, math.inf)
SHARE = (0.0, 1.0)  # excluding 1


class OwnRule(optimizer.UpdateRule):
    """An update rule of this package; its formula names the states, its optimizer the hyperparameters.

    Args:
        parent_hyperparam: hyperparameters that provide the default values.
        values: hyperparameters that differ from the defaults, in the order of the optimizer's.
        given: other hyperparameters by name.
    """

    optimizer_class: Any = None  # the optimizer of this rule; users' subclasses inherit it

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
        """The formula of the rule with its current hyperparameters."""
        return rule_formula_of(self, self.optimizer_class.rule_class)

    def init_state(self, param):
        """Initializes the states of the formula to zeros."""
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
        """Updates the parameter on a GPU; nothing is read from there."""
        if param.grad is not None:
            update_on_gpu(self, param.array, param.grad)

    def update_on_cpu(self, p: Any, grad: Any) -> None:
        """Updates a NumPy array and the state in place: the reference that the native library must match.

        Args:
            p: the parameter.
            grad: its gradient, which is not modified.
        """
        raise NotImplementedError


class OwnOptimizer(chainer.GradientMethod, Generic[RuleT]):
    """An optimizer of this package: a subclass of ``OwnOptimizer[its rule]`` and ``dataclass(eq=False, repr=False)``.

    The fields are hyperparameters.

    Attributes:
        rule_class: class of its update rules.
        keys: hyperparameters besides ``lr`` and ``weight_decay`` that are keys of the section ``optimizer`` in YAML.
        is_decoupled: whether ``weight_decay`` multiplies the parameter, in proportion to the learning rate.
        has_average: whether models are evaluated at an average of their weights, ``average`` of the rule.
    """

    rule_class: typing.ClassVar[Any]
    keys: typing.ClassVar[tuple[str, ...]] = ()
    is_decoupled: typing.ClassVar[bool] = False
    has_average: typing.ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__bases__[0] is not OwnOptimizer:  # a user's subclass of a declared optimizer
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
        """Creates the storage of hyperparameters, which the ``__init__`` of a dataclass sets."""
        self = object.__new__(cls)
        chainer.GradientMethod.__init__(self)
        return self

    @classmethod
    def declared(cls) -> dict[str, Hyperparameter]:
        """Returns the hyperparameters of the class and its base classes, by name."""
        found = {name: each for base in reversed(cls.__mro__) for name, each in vars(base).items()}
        return {name: each for name, each in found.items() if isinstance(each, Hyperparameter)}

    def create_update_rule(self) -> RuleT:
        """Returns a new update rule."""
        return typing.cast(RuleT, self.rule_class(self.hyperparam))
