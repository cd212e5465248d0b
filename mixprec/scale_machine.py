"""The state machine of a loss scale: declared once, run in Python and by the CUDA kernel ``update``.

A class of loss scales (:mod:`mixprec.loss_scale`, :mod:`mixprec.fixed_scales`) declares its state, its settings and its
rules. From them come the step on the host and on a device, the C++ of the kernel, and the names in a snapshot.
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from chainer import AbstractSerializer, Deserializer, backend, get_array_types

from mixprec import arguments
from mixprec.backends.transfers import stored, to_host
from mixprec.bounds import INT32

_DTYPES = {float: np.dtype(np.float64), int: np.dtype(np.int32)}
_OF_STATE, _OF_SETTINGS = {float: "double", int: "int"}, {float: "double", int: "long long"}  # in C++
# With Python's numbers: in the way of arrays, steps on the host would take a tenth of an update.
_ON_HOST = {"where": lambda condition, a, b: a if condition else b, "at_least": max, "at_most": min}
_IN_CUDA = """
template <class A, class B> __device__ __forceinline__ auto where(bool c, A a, B b) { return c ? a : b; }
template <class A, class B> __device__ __forceinline__ auto at_least(A a, B b) { return a > b ? a : b; }
template <class A, class B> __device__ __forceinline__ auto at_most(A a, B b) { return a < b ? a : b; }
"""


class ScaleMachine:
    """What all loss scales have: a state, which each step moves by rules. All count overflows in a row.

    The state is a handful of arrays of shape () that live where the gradients are checked, so that a step on a GPU
    moves them, and the host need not read them.

    A rule is a line ``name = expression``, in Python and in C++. It may use the state, the settings, ``overflow``, the
    names of lines before it, ``where(condition, a, b)``, ``at_least(a, b)`` and ``at_most(a, b)``.

    Args:
        patience: number of overflows in a row after which :attr:`exhausted` is true; ``None`` switches that off.

    Attributes:
        state: names of the arrays that a step moves, and ``float`` (float64 there) or ``int`` (int32).
        settings: names of the attributes that the rules use, and the number that stands for ``None``.
        rules: the lines.
        is_searching: whether an overflow in the next step lets its backward pass run again, at a smaller scale.
    """

    state: ClassVar[dict[str, type]] = {"overflows_in_row": int}
    settings: ClassVar[dict[str, float]] = {}
    rules: tuple[str, ...] = ("overflows_in_row = where(overflow, overflows_in_row + 1, 0)",)
    is_searching: bool = False

    def __init__(self, patience: int | None) -> None:
        self.patience: int | None = None if patience is None else arguments.whole("patience", patience, 1, INT32)
        self._set()

    @property
    def overflows_in_row(self) -> int:
        """Number of steps in a row, up to the last one, that overflowed; read from the device if it is there."""
        return int(to_host(self._state["overflows_in_row"]))

    @property
    def exhausted(self) -> bool:
        """Whether the last ``patience`` steps all overflowed."""
        return self.patience is not None and self.overflows_in_row >= self.patience

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays of :attr:`state`."""
        return tuple(self._state.values())

    def numbers(self) -> dict[str, float]:
        """Returns the settings by name, as the rules take them."""
        found = {name: getattr(self, name) for name in self.settings}
        return {name: self.settings[name] if number is None else number for name, number in found.items()}

    def factor(self, device: backend.Device) -> Any:
        """Returns what to multiply the loss by.

        Args:
            device: a :class:`chainer.backend.Device`.

        Returns:
            The scale, a float32 array of shape () on the device; ``None`` if nothing is to be multiplied.
        """
        check_device(device)
        value = self._state.get("value")
        return None if value is None else device.send(value).astype(np.float32)

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
        xp, count = np, self._state["overflows_in_row"]
        if is_array or type(count) is not np.ndarray:
            device = backend.get_device_from_array(overflow if is_array else count)
            xp = device.xp
            functions = {"where": xp.where, "at_least": xp.maximum, "at_most": xp.minimum}
            names = {name: device.send(array) for name, array in self._state.items()}
        else:
            functions, names = _ON_HOST, {name: array.item() for name, array in self._state.items()}
        names |= self.numbers()
        names["overflow"] = overflow
        exec(_compiled(self.rules), {"__builtins__": {}, **functions}, names)
        self._state = {name: xp.asanyarray(names[name], _DTYPES[kind]) for name, kind in self.state.items()}

    def reset(self) -> None:
        """Goes back to the first step: no overflow in a row."""
        self._set()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or loads the state (the settings come from the program)."""
        arguments.instance("serializer", serializer, AbstractSerializer, "a chainer.AbstractSerializer")
        state = {name: kind(stored(serializer, name, self._state[name])) for name, kind in self.state.items()}
        if isinstance(serializer, Deserializer):  # what is saved stays where it is: a graph may hold it
            self._set(**state)

    def held_by(self, hold: Callable[[Any], Any]) -> None:
        """Hands the state to the batched update on a device, which advances it in place.

        Args:
            hold: puts an array of shape () where it is needed.
        """
        self._state = {name: hold(array) for name, array in self._state.items()}

    @classmethod
    def kernel_arguments(cls, scaler: "ScaleMachine | None") -> tuple[list[Any], list[float]]:
        """Returns what a kernel with :meth:`kernel_code` gets of a loss scale, which may have less than this class.

        Returns:
            An array of the state for each name, ``None`` for those that ``scaler`` does not have; and the settings.
        """
        arrays = {} if scaler is None else scaler._state
        numbers = cls.settings if scaler is None else cls.settings | scaler.numbers()
        return [arrays.get(name) for name in cls.state], [numbers[name] for name in cls.settings]

    @classmethod
    def kernel_code(cls) -> str:
        """Returns CUDA C++ that defines ``advance_scale(overflow, SCALE_ARGUMENTS)``, and the macros of its lists.

        An array may be missing (a null pointer); the rest advances.
        """
        parameters = [f"{_OF_STATE[kind]}* {name}_" for name, kind in cls.state.items()]
        parameters += [f"{_OF_SETTINGS[type(number)]} {name}" for name, number in cls.settings.items()]
        lines = [
            f"#define SCALE_PARAMETERS {', '.join(parameters)}",
            f"#define SCALE_ARGUMENTS {', '.join([*(f'{name}_' for name in cls.state), *cls.settings])}",
            _IN_CUDA,
            "__device__ __forceinline__ void advance_scale(bool overflow, SCALE_PARAMETERS) {",
        ]
        lines += [f"{_OF_STATE[kind]} {name} = {name}_ ? *{name}_ : 0;" for name, kind in cls.state.items()]
        for rule in cls.rules:
            is_state = rule.split(" = ")[0] in cls.state
            lines.append(f"{rule};" if is_state else f"const auto {rule};")
        lines += [f"if ({name}_) *{name}_ = {name};" for name in cls.state]
        return "\n".join([*lines, "}"])

    def _set(self, **state):
        """Takes a state of the host; numbers that are not given are 0."""
        self._state = {name: np.array(state.get(name, 0), _DTYPES[kind]) for name, kind in self.state.items()}


@functools.cache
def _compiled(rules):
    return compile("\n".join(rules), "rules of a loss scale", "exec")


def check_device(device):
    """Raises TypeError unless it is one."""
    if not isinstance(device, backend.Device):
        raise arguments.not_a("device", device, "a chainer.backend.Device")
