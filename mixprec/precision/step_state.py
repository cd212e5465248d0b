"""State that each step advances: declared once, and run in Python and by the CUDA kernel ``update``.

The classes of loss scales (:mod:`mixprec.precision.loss_scale`, :mod:`mixprec.precision.fixed_scales`), and the counter
of skipped steps, declare their state, their settings and their rules. The step on the host and on a device, the C++
code of the kernel, and the names in a snapshot derive from these.
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from chainer import AbstractSerializer, Deserializer, backend, get_array_types

from mixprec.backends.transfers import stored, to_host
from mixprec.base import arguments
from mixprec.base.bounds import INT32

_IN_C = {"float64": "double", "int32": "int", "int64": "long long", "bool": "bool"}
_OF_HOST = {"float64": float, "int32": int, "int64": int, "bool": bool}
_FUNCTIONS = ("where", "at_least", "at_most")
# For Python's numbers: with arrays, these rules would take a tenth of an update on the host.
_ON_HOST = (lambda condition, a, b: a if condition else b, max, min)
_FUNCTIONS_IN_C = """
template <class A, class B> __device__ __forceinline__ auto where(bool c, A a, B b) { return c ? a : b; }
template <class A, class B> __device__ __forceinline__ auto at_least(A a, B b) { return a > b ? a : b; }
template <class A, class B> __device__ __forceinline__ auto at_most(A a, B b) { return a < b ? a : b; }
"""


class StepState:
    """A few arrays of shape () on the device where the gradients are checked.

    A step on a GPU advances them there, and the host need not read them.

    A rule is a line ``name = expression``, in Python and in C++. It may use the state, the settings, ``overflow``, the
    names of lines before it, ``where(condition, a, b)``, ``at_least(a, b)`` and ``at_most(a, b)``.

    Attributes:
        state: names of the arrays, which begin with 0, and their dtypes.
        settings: names of the attributes that the rules use, and the number that represents ``None``.
        rules: the lines.
    """

    state: ClassVar[dict[str, str]] = {}
    settings: ClassVar[dict[str, float]] = {}
    rules: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._set()

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays of :attr:`state`."""
        return tuple(self._state.values())

    def numbers(self) -> dict[str, float]:
        """Returns the settings by name, as the rules take them."""
        return {
            name: if_none if (own := getattr(self, name)) is None else own for name, if_none in self.settings.items()
        }

    def adjust(self, overflow: Any) -> None:
        """Advances the state by one step.

        Args:
            overflow: whether a gradient of the step was not finite: a bool, or a boolean array of shape (). The state
                moves to the device of the array, and nothing is read. The new state takes effect on the next step.

        Raises:
            TypeError: ``overflow`` is neither.
        """
        is_array = isinstance(overflow, get_array_types())
        if (overflow.shape != () or overflow.dtype != bool) if is_array else not isinstance(overflow, (bool, np.bool_)):
            raise TypeError(f"overflow must be True, False or a boolean array; found {arguments.found(overflow)}")
        advance, state, numbers = _python(type(self)), self._state, self.numbers().values()
        first = next(iter(state.values()))
        if not is_array and type(first) is np.ndarray:
            before = [array.item() for array in state.values()]
            after = advance(*_ON_HOST, overflow, *before, *numbers)
            changes = zip(self.state, after, before, strict=True)
            self._state = state | {name: np.array(new, self.state[name]) for name, new, old in changes if new != old}
            return
        device = backend.get_device_from_array(overflow if is_array else first)
        xp = device.xp
        overflow = overflow if is_array else xp.asarray(overflow)  # CuPy's where takes no bool
        after = advance(xp.where, xp.maximum, xp.minimum, overflow, *map(device.send, state.values()), *numbers)
        changes = zip(self.state.items(), after, strict=True)
        self._state = {name: xp.asanyarray(new, dtype) for (name, dtype), new in changes}

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or loads the state (the settings come from the program)."""
        arguments.instance("serializer", serializer, AbstractSerializer, "a chainer.AbstractSerializer")
        kinds = {name: _OF_HOST[dtype] for name, dtype in self.state.items()}
        state = {name: kind(stored(serializer, name, self._state[name])) for name, kind in kinds.items()}
        if isinstance(serializer, Deserializer):  # saving must not move the state: a graph may hold it
            self._set(**state)

    def held_by(self, hold: Callable[[Any], Any]) -> None:
        """Hands the state to the batched update on a device, which advances it in place.

        Args:
            hold: puts an array of shape () where it is needed.
        """
        self._state = {name: hold(array) for name, array in self._state.items()}

    def _set(self, **state):
        """Sets the state on the host; anything not given is 0."""
        self._state = {name: np.array(state.get(name, 0), dtype) for name, dtype in self.state.items()}


class ScaleState(StepState):
    """The base of all loss scales, constant or not: counts overflows in a row.

    The optimizer reads the count rarely, and ends training when patience has run out.

    Args:
        patience: number of overflows in a row after which :attr:`exhausted` is true; ``None`` for no limit.

    Attributes:
        is_searching: whether an overflow in the next step makes its backward pass run again, at a smaller scale.
    """

    state: ClassVar[dict[str, str]] = {"overflows_in_row": "int32"}
    rules = ("overflows_in_row = where(overflow, overflows_in_row + 1, 0)",)
    is_searching: bool = False

    def __init__(self, patience: int | None) -> None:
        self.patience: int | None = None if patience is None else arguments.whole("patience", patience, 1, INT32)
        super().__init__()

    @property
    def overflows_in_row(self) -> int:
        """Number of steps in a row, up to the last one, that overflowed; read from the device if it is there."""
        return int(to_host(self._state["overflows_in_row"]))

    @property
    def exhausted(self) -> bool:
        """Whether the last ``patience`` steps all overflowed."""
        return self.patience is not None and self.overflows_in_row >= self.patience

    def factor(self, device: backend.Device) -> Any:
        """Returns the factor on the loss.

        Args:
            device: a :class:`chainer.backend.Device`.

        Returns:
            The scale, a float32 array of shape () on the device; ``None`` for no factor.
        """
        check_device(device)
        value = self._state.get("value")
        return None if value is None else device.send(value).astype(np.float32)

    def reset(self) -> None:
        """Resets the count of overflows in a row."""
        self._set()


def check_device(device):
    """Raises TypeError if ``device`` is not a :class:`chainer.backend.Device`."""
    if not isinstance(device, backend.Device):
        raise arguments.not_a("device", device, "a chainer.backend.Device")


def kernel_code(**classes):
    """Returns CUDA C++ that advances states.

    Args:
        classes: ``name=cls`` for ``advance_name(overflow, NAME_ARGUMENTS)`` with ``NAME_PARAMETERS``: the arrays of the
            state, of which some may be missing (null pointers), and the settings.
    """
    return "\n".join([_FUNCTIONS_IN_C, *(line for name, cls in classes.items() for line in _advance(name, cls))])


def kernel_arguments(cls, owner, address):
    """Returns the arguments of a kernel for ``NAME_PARAMETERS``.

    Args:
        cls: as for :func:`kernel_code`.
        owner: :class:`StepState`, which may have only a part of that state, or ``None``.
        address: function from an array, or ``None``, to its address.

    Raises:
        TypeError: ``owner`` is of a subclass with other rules.
    """
    if owner is not None:
        _check_known(type(owner), cls)
    arrays, numbers = ({}, {}) if owner is None else (owner._state, owner.numbers())
    settings = [type(if_none)(numbers.get(name, if_none)) for name, if_none in cls.settings.items()]
    return [*(address(arrays.get(name)) for name in cls.state), *settings]


@functools.cache
def _check_known(own, cls):
    if not set(own.rules) <= set(cls.rules):
        raise TypeError(f"{own.__name__} has rules that the kernels of a GPU do not support")


def _advance(name, cls):
    parameters = [f"{_IN_C[dtype]}* {array}_" for array, dtype in cls.state.items()]
    kinds = {float: "double", int: "long long"}
    parameters += [f"{kinds[type(number)]} {setting}" for setting, number in cls.settings.items()]
    yield f"#define {name.upper()}_PARAMETERS {', '.join(parameters)}"
    yield f"#define {name.upper()}_ARGUMENTS {', '.join([*(f'{array}_' for array in cls.state), *cls.settings])}"
    yield f"__device__ __forceinline__ void advance_{name}(bool overflow, {name.upper()}_PARAMETERS) {{"
    for array, dtype in cls.state.items():
        yield f"{_IN_C[dtype]} {array} = {array}_ ? *{array}_ : 0;"
    for rule in cls.rules:
        yield f"{rule};" if rule.split(" = ")[0] in cls.state else f"const auto {rule};"
    for array in cls.state:
        yield f"if ({array}_) *{array}_ = {array};"
    yield "}"


@functools.cache
def _python(cls):
    """Returns a function from where, at_least, at_most, overflow, the state and the settings to the state after it."""
    names = {}
    rules = "".join(f"    {rule}\n" for rule in cls.rules)
    parameters = ", ".join([*_FUNCTIONS, "overflow", *cls.state, *cls.settings])
    exec(f"def advance({parameters}):\n{rules}    return {', '.join(cls.state)},", names)
    return names["advance"]
