"""Checks that all ranks have the same parameters: sums of arrays of different sizes would hang, or be wrong.

:mod:`~mixprec.distributed.exchange` has the parameters compared in every step, by a sum of two numbers, and
:mod:`~mixprec.optimizer.ranks` at ``setup``.
"""

import itertools
import weakref
import zlib

import chainer
import numpy as np

from mixprec.backends import is_of_numpy
from mixprec.backends.memory import axes

_WHAT = "shape", "dtype", "order of axes in memory", "device", "number of replacements"


class Members:
    """The parameters whose gradients are averaged.

    Args:
        named: ``[(name, parameter)]``, each parameter once, including uninitialized ones.
        before: the previous :class:`Members`, or ``None``.

    Attributes:
        initialized: ``[(name, parameter)]`` of the initialized parameters.
        names: dict from ids of the initialized parameters to names.
        keys: for each of them its name, shape, and number of replacements by another parameter with this name.
        description: the properties that must be equal on all ranks: a tuple of ``(name, shape, dtype, order of axes in
            memory, NumPy or which of the rank's devices, number of replacements)``.
    """

    def __init__(self, named, before=None):
        self._named = list(named)
        self._arrays = [param.array for _, param in named]
        self.initialized = [(name, param) for name, param in named if param.array is not None]
        self.names = {id(param): name for name, param in self.initialized}
        self._replaced = {} if before is None else dict(before._replaced)  # name -> (parameter, number)
        for name, param in named:
            known, number = self._replaced.get(name, (lambda: None, -1))
            if known() is not param:
                self._replaced[name] = weakref.ref(param), number + 1
        self.keys = [(name, param.shape, self._replaced[name][1]) for name, param in self.initialized]
        devices = _DeviceNames()
        none, arrays = ("none yet", "", "", ""), self._arrays
        kinds = [none if a is None else (a.shape, a.dtype.name, axes(a), devices.of(a)) for a in arrays]
        described = zip(named, kinds, strict=True)
        self.description = tuple((name, *kind, self._replaced[name][1]) for (name, _), kind in described)
        self._number = zlib.crc32(repr(self.description).encode())

    def fingerprint(self, updates=0):
        """Returns two numbers for the description and the number of updates; see :func:`fingerprint`."""
        return fingerprint(self._number + updates)

    def check_device(self):
        """Checks that all parameters are on one device; ranks with the same description all raise, or none.

        Raises:
            ValueError: two parameters are on different devices; the message names them.
        """
        devices = {device: name for name, *_, device, _ in reversed(self.description) if device}
        if len(devices) > 1:
            (one, first), (other, second) = list(devices.items())[:2]
            raise ValueError(
                f"{first} is on {one} and {second} on {other}: with a communicator all parameters of a process must be "
                "on one device: call model.to_device(...)"
            )

    def are(self, named):
        """Whether names, parameters and arrays are the same."""
        return len(named) == len(self._named) and all(
            name == before and param is known and param.array is array
            for (name, param), (before, known), array in zip(named, self._named, self._arrays, strict=True)
        )


class _DeviceNames:
    """Names of devices, comparable between ranks: numbered by first occurrence, as each rank has another GPU."""

    def __init__(self):
        self._devices = []

    def of(self, array):
        if is_of_numpy(array):
            return "NumPy"
        device = chainer.backend.get_device_from_array(array)
        if device not in self._devices:
            self._devices.append(device)
        return ("a GPU", "another GPU", "a third GPU")[min(self._devices.index(device), 2)]


def fingerprint(number):
    """Returns two float64 numbers for an integer, to be summed over ranks.

    If each sum is the number of ranks times the rank's own number, all ranks have the same integer: the mean of squares
    equals the square of the mean only for equal numbers.
    """
    number %= 2**20  # the sum of 8,192 squares is exact
    return np.array([number, number * number], np.float64)


def check_same(descriptions):
    """Checks that the descriptions of all ranks are the same.

    Raises:
        ValueError: a description differs from rank 0's; the message names the first such parameter and rank.
    """
    first, *others = ({name: rest for name, *rest in description} for description in descriptions)
    for rank, other in enumerate(others, 1):
        for name in sorted(first.keys() ^ other.keys()):
            has, lacks = (0, rank) if name in first else (rank, 0)
            raise ValueError(f"rank {has} has a parameter {name}, rank {lacks} has not: all ranks need the same model")
        for name, values in first.items():
            for what, value, its in zip(_WHAT, values, other[name], strict=True):
                if value != its:
                    raise ValueError(
                        f"the {what} of {name} is {value} on rank 0, {its} on rank {rank}: all need the same model"
                    )


def check_updates(numbers):
    """Checks that all ranks have finished the same number of updates.

    Args:
        numbers: numbers of updates, one for each rank.

    Raises:
        RuntimeError: a number differs from rank 0's; the message names the first such rank.
    """
    for rank, number in enumerate(numbers):
        if number != numbers[0]:
            raise RuntimeError(
                f"rank 0 has done {numbers[0]} updates, rank {rank} {number}, and ranks are out of step: end the "
                "program when an update fails"
            )


def check_order(of_ranks):
    """Checks that all ranks have started the same sums, in the same order.

    Args:
        of_ranks: lists of str, the sums that each rank has started.

    Raises:
        RuntimeError: the lists differ; the message names the first difference from rank 0.
    """
    for rank, sums in enumerate(of_ranks):
        for one, other in itertools.zip_longest(of_ranks[0], sums, fillvalue="nothing more"):
            if one != other:
                raise RuntimeError(
                    f"ranks sum in different orders: rank 0 asked for {one}, rank {rank} for {other}. If only one "
                    "rank looks at results or has function hooks, let all do so, or use convert(fuse=False)"
                )


def check_settings(settings):
    """Checks that the settings of all ranks are the same.

    Args:
        settings: dicts of settings, one for each rank; their names may differ.

    Raises:
        ValueError: a setting differs from rank 0's; the message names the first such setting and rank.
    """
    first, *others = settings
    for rank, other in enumerate(others, 1):
        for name in first:
            if first[name] != other.get(name):
                raise ValueError(
                    f"{name} is {first[name]!r} on rank 0, {other.get(name)!r} on rank {rank}: give all ranks the same"
                )
