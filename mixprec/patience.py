"""How many steps in a row may be skipped: what all loss scales count, whether they move or not."""

from collections.abc import Callable
from typing import Any

import numpy as np
from chainer import AbstractSerializer, Deserializer, backend, get_array_types

from mixprec import arguments
from mixprec.backends.transfers import stored, to_host
from mixprec.bounds import INT32


class Patience:
    """Counts overflows in a row, where the gradients are checked: nothing is read to count.

    The count is an array of shape () that moves to the device of the first outcome that it is given. The optimizer
    looks at it rarely, and ends training when patience has run out.

    Args:
        patience: number of overflows in a row after which :attr:`exhausted` is true; ``None`` switches that off.

    Attributes:
        state: names of the arrays of shape () that a step moves.
    """

    state: tuple[str, ...] = ("overflows_in_row",)

    def __init__(self, patience: int | None) -> None:
        self.patience: int | None = None if patience is None else arguments.whole("patience", patience, 1, INT32)
        self._forget_count()

    @property
    def overflows_in_row(self) -> int:
        """Number of steps in a row, up to the last one, that overflowed; read from the device if it is there."""
        return int(to_host(self._overflows_in_row))

    @property
    def exhausted(self) -> bool:
        """Whether the last ``patience`` steps all overflowed."""
        return self.patience is not None and self.overflows_in_row >= self.patience

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays of :attr:`state`."""
        return tuple(getattr(self, f"_{name}") for name in self.state)

    def held_by(self, hold: Callable[[Any], Any]) -> dict[str, Any]:
        """Hands the state to the batched update on a device, which advances it in place.

        Args:
            hold: puts an array of shape () where it is needed.

        Returns:
            The arrays of :attr:`state` by name.
        """
        held = dict(zip(self.state, map(hold, self.arrays), strict=True))
        for name, array in held.items():
            setattr(self, f"_{name}", array)
        return held

    def _count(self, overflow):
        """Counts a step.

        Args:
            overflow: a bool, or a boolean array of shape (), which is not read.

        Returns:
            The same as an array.

        Raises:
            TypeError: it is neither.
        """
        is_array = isinstance(overflow, get_array_types())
        if (overflow.shape != () or overflow.dtype != bool) if is_array else not isinstance(overflow, (bool, np.bool_)):
            raise TypeError(f"overflow must be True, False or a boolean array; found {arguments.found(overflow)}")
        if not is_array:
            overflow = backend.get_array_module(self._overflows_in_row).asarray(overflow)
        device = backend.get_device_from_array(overflow)
        row = device.xp.where(overflow, device.send(self._overflows_in_row) + 1, 0)
        self._overflows_in_row = row.astype(np.int32, copy=False)
        return overflow

    def _is_clean_on_host(self, overflow):
        """Whether this is what most steps on the host are; in the general way they would take a tenth of an update."""
        is_clean = isinstance(overflow, (bool, np.bool_)) and not overflow
        return is_clean and type(self._overflows_in_row) is np.ndarray

    def _forget_count(self):
        self._overflows_in_row: Any = np.array(0, np.int32)

    def _serialize_count(self, serializer):
        """Saves or loads the count."""
        count = int(stored(serializer, "overflows_in_row", self._overflows_in_row))
        if isinstance(serializer, Deserializer):  # what is saved stays where it is: a graph may hold it
            self._overflows_in_row = np.array(count, np.int32)


def check_serializer(serializer):
    """Raises TypeError unless it is one."""
    arguments.instance("serializer", serializer, AbstractSerializer, "a chainer.AbstractSerializer")
