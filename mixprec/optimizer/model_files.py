"""Saves, loads and broadcasts models with the FP32 master in place of each FP16 or BF16 parameter."""

import functools
import threading

import chainer
import numpy as np

from mixprec.base.dtypes import is_half
from mixprec.compat import multi_node
from mixprec.compat.registry import patch_around
from mixprec.optimizer import running_statistics
from mixprec.precision import weight_copies
from mixprec.precision.lost_weights import path_of, warn_of_lost
from mixprec.precision.master_arrays import OWNER, master_of


def install():
    """Patches links, once, to save, load and broadcast the FP32 master in place of an FP16 or BF16 parameter."""
    # Processes that received only the rounded weights would start from other masters than the sending process.
    multi_node.send_in_place_of_parameters(_master_array)
    _saving_masters.apply()
    weight_copies.install()


@patch_around("chainer.link:Link.serialize", when="setup")
def _saving_masters(original, self, serializer):
    """Without it files have FP16 or BF16 parameters in place of their FP32 masters, which would be lost.

    A file of a wrapped model looks like one of plain FP32 Chainer, under the same names, and either loads into the
    other without a loss. ``convert`` replaces the method, too: either may come first.
    """
    if id(self) in _under_way.links:  # nested replacements: the values loaded by the inner one would be rounded
        original(self, serializer)
        return

    loads = isinstance(serializer, chainer.Deserializer)

    def through_master(name, value):
        param = self.__dict__[name] if name in self._params else None
        masters = getattr(param, OWNER, None)
        if param is not None and master_of(param) is not None and (masters is None or not masters.hold(param)):
            return _unowned(param, functools.partial(serializer, name))
        if masters is None or not is_half(param.dtype):
            return serializer(name, value)
        if param.array is None:
            return _initialize(path_of(serializer, name), param, masters, serializer(name, None))
        if not masters.hold(param):
            return serializer(name, value)
        master = masters.current(name, param)
        if masters.in_step:
            return serializer(name, master.array)
        loaded = serializer(name, master.array)
        if loaded is not None and loaded is not master.array:
            master.array[...] = master.device.send(loaded)
        if loads:
            warn_of_lost(path_of(serializer, name), master.array, param.dtype)
        with np.errstate(over="ignore"):
            param.array[...] = master.array
        return param.array

    _under_way.links.add(id(self))
    try:
        if loads:
            original(self, _Loading(through_master, path_of(serializer, "")))
            running_statistics.loaded(self)
        else:
            original(self, _Saving(through_master))
    finally:
        _under_way.links.discard(id(self))


class _UnderWay(threading.local):
    """Attribute ``links``: ids of the links that this thread saves or loads now."""

    def __init__(self):
        self.links = set()


_under_way = _UnderWay()


def _master_array(param):
    masters = getattr(param, OWNER, None)
    if masters is None or not is_half(param.dtype) or not masters.hold(param):
        return None
    return masters.current(param.name or "a parameter", param).array


class _Saving(chainer.Serializer):
    """A function as a serializer: a link may ask whether it is being saved or loaded."""

    def __init__(self, function, path=""):
        self._function = function
        self.path = path

    def __call__(self, key, value):
        return self._function(key, value)


class _Loading(chainer.Deserializer):
    """The same for loading."""

    __init__ = _Saving.__init__
    __call__ = _Saving.__call__


def _unowned(param, serialize):
    """Saves or loads a parameter whose master belongs to no optimizer, as in a copy, or before the first step."""
    loaded = serialize(weight_copies.exact(param))
    if loaded is not None:
        weight_copies.write(param, loaded)
    return param.array


def _initialize(path, param, masters, loaded):
    """Initializes a parameter from a file; its master keeps the bits that the parameter cannot hold."""
    if loaded is not None:
        param.initialize(loaded.shape)
        warn_of_lost(path, loaded, param.dtype)
        master = masters.of(param)
        master.array[...] = master.device.send(loaded)
        with np.errstate(over="ignore"):
            param.array[...] = master.array
    return param.array
