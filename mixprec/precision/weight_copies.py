"""Copies of 16-bit weights: the FP32 master is copied too, and a model that is copied alone becomes FP32.

However a model is copied or pickled, Chainer uses ``Parameter.__reduce__``. ``convert`` and ``setup`` patch it, and so
does a parameter that is unpickled in another process:

- The master of a parameter is copied with it.
- A parameter of a converted link becomes FP32. Its attribute :data:`COMPUTE` makes calls of the model cast it where it
  is used: results are the same bit for bit, and small steps that are added in place are not rounded away.
- If an optimizer, or ``ParallelUpdater``, is copied along, :func:`narrow` restores the 16 bits.
"""

import functools

import chainer
import numpy as np
from chainer import backend

from mixprec.backends import primitives_of
from mixprec.backends.memory import axes, turned_back
from mixprec.base.announcements import announce
from mixprec.base.dtypes import BFLOAT16, STORAGE_DTYPES, is_half
from mixprec.compat.registry import MISSING, patch
from mixprec.precision.master_arrays import MASTER, OWNER, master_of, written
from mixprec.precision.storage import Rounded

# Attribute of a parameter of a converted link: the dtype in which the link uses it.
COMPUTE = "_mixprec_compute"

# Attribute of a parameter: its dtype and initializer before it became FP32 in a copy.
_BEFORE = "_mixprec_before_copy"

_TRAINED_WIDE = (
    "%s in float32, as in any copy of a converted model, and cast to %s in each call: to train the copy as its source, "
    "call mixprec.convert on it after setup(), with the same arguments"
)

WHEN = "mixprec.convert, setup"


def install():
    """Applies the patches that this process has not applied yet."""
    for each in (reduce, setstate, copydata, addgrad, no_wide_replicas):
        each.apply()


def compute_in(param, dtype):
    """Records the dtype in which a link uses its parameter, which has, or will get, this dtype; ``None`` for FP32.

    Args:
        param: parameter of a link that is converted or reverted.
        dtype: a storage dtype, or ``None``.
    """
    param.__dict__.pop(_BEFORE, None)
    param.__dict__.pop(COMPUTE, None)
    if is_half(dtype):
        param.__dict__[COMPUTE] = dtype


def computes_in(param):
    """Returns the dtype from :func:`compute_in`, or ``None``."""
    return param.__dict__.get(COMPUTE)


def exact(param):
    """Returns the FP32 values of a 16-bit parameter: its master's, or values written into it since.

    Args:
        param: an initialized parameter in float16 or bfloat16.

    Returns:
        A new float32 array on the device of the parameter, with the same order of axes in memory.
    """
    master = master_of(param)
    with chainer.using_device(param.device):
        wide = param.array.astype(np.float32)
        if master is not None:
            master = param.device.send(master)
            wide[...] = param.xp.where(written(param.array, master), wide, master)
    return wide


def write(param, values):
    """Writes float32 values into a 16-bit parameter, rounded, and into its master, which is made if necessary."""
    master = master_of(param)
    with chainer.using_device(param.device), np.errstate(over="ignore"):
        if master is None or backend.get_device_from_array(master) != param.device:
            master = param.array.astype(np.float32)
            param.__dict__[MASTER] = id(param), master
        master[...] = param.device.send(values)
        param.array[...] = master


def rounded(array, dtype):
    """Returns an array in another storage dtype, with the same order of axes in memory."""
    if dtype == BFLOAT16:  # CuPy cannot cast to it
        order = axes(array)
        turned = array.transpose(order)
        return turned_back(primitives_of(array).cast(turned.copy(order="C"), BFLOAT16), order)
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False)


def narrow(params):
    """Gives parameters that became FP32 in a copy their original dtype again, bit for bit."""
    for param in params:
        if _BEFORE in param.__dict__:
            dtype, initializer = param.__dict__.pop(_BEFORE)
            _store(param, dtype, initializer)


def as_computed(scope, inputs):
    """Returns the inputs of a function in a converted model, with FP32 copies of 16-bit parameters cast to 16 bits."""
    return tuple(
        scope.cast(x, computes_in(x)) if isinstance(x, chainer.Parameter) and is_wide(x) else x for x in inputs
    )


def announce_wide(namedparams):
    """Announces once which of ``[(name, parameter)]`` are trained in FP32 although their links compute in 16 bits."""
    found = [(name, param) for name, param in namedparams if is_wide(param) and param.array is not None]
    found = [(name, param) for name, param in found if param.update_rule is not None and param.update_rule.enabled]
    if found:
        (name, param), *others = found
        which = f"{name} and {len(others)} more parameters are" if others else f"{name} is"
        announce(_TRAINED_WIDE, which, computes_in(param).name)


def is_wide(param):
    """Whether a copied parameter is in FP32 although its converted link computes in 16 bits."""
    return COMPUTE in param.__dict__ and param.dtype == np.float32


def _recover(recover, args, master, compute):
    """Makes a parameter from the values that :func:`reduce` gives to pickle or ``copy.deepcopy``."""
    param = recover(*args)
    if compute is not None:
        install()
        param.__dict__[COMPUTE] = compute
    dtype = getattr(param.initializer if param.array is None else param.array, "dtype", None)
    if not is_half(dtype):
        return param
    if master is not None:
        param.__dict__[MASTER] = id(param), master
    if compute is not None:
        param.__dict__[_BEFORE] = dtype, param.initializer
        _store(param, np.dtype(np.float32), Rounded(param.initializer, np.float32))
    return param


def _store(param, dtype, initializer):
    """Gives a parameter a new dtype: its array, its gradient, and its initializer."""
    array, gradient = param.array, param._grad
    param.initializer, param._grad_initializer = initializer, None
    param.cleargrad()
    if array is None or array.dtype == dtype:
        return
    wide = exact(param) if is_half(array.dtype) else array
    with chainer.using_device(param.device):
        param.array = rounded(wide, dtype)
        param.__dict__.pop(MASTER, None)
        if gradient is not None:
            param.grad = rounded(gradient, dtype)


@patch("chainer.variable:Parameter.__reduce__", when=WHEN)
def reduce(original):
    """Without it copies and pickles of a model have rounded weights, and stand still where small steps are added."""

    @functools.wraps(original)
    def __reduce__(self):
        master, compute = master_of(self), computes_in(self)
        if master is None and compute is None:
            return original(self)
        return _recover, (*original(self), master, compute)

    return __reduce__


@patch("chainer.optimizer:Optimizer.__setstate__", when=WHEN)
def setstate(original):
    """Without it a model that is copied together with its optimizer does not train on as it did."""

    def __setstate__(self, state):
        if original is MISSING:
            self.__dict__.update(state)
        else:
            original(self, state)
        target = state.get("target")
        if isinstance(target, chainer.Link) and "_params" in target.__dict__:  # otherwise the model holds its optimizer
            narrow(target.params())

    return __setstate__


@patch("chainer.variable:Variable.copydata", when=WHEN)
def copydata(original):
    """Without it copyparams takes rounded weights from a model with masters, and misses its target's masters."""

    @functools.wraps(original)
    def copydata(self, var):
        if self.array is None and var.array is None:
            return
        has_master = master_of(self) is not None or (self.array is None and OWNER in self.__dict__)
        if self.array is None:
            self.initialize(var.shape)
        elif var.array is None:
            var.initialize(self.shape)
        narrows = is_half(var.dtype) and var.dtype != self.dtype  # NumPy refuses some casts
        # Otherwise 16 bits are written into 16 bits: as with all writes, unchanged elements keep their master's bits.
        is_wider = master_of(var) is not None or narrows or (has_master and var.dtype != self.dtype)
        if not is_wider or not {self.dtype, var.dtype} <= STORAGE_DTYPES:
            original(self, var)
            return
        source = exact(var) if is_half(var.dtype) else var.array
        if has_master and is_half(self.dtype):
            write(self, source)
        else:
            with np.errstate(over="ignore"):
                self.array[...] = self.device.send(source)

    return copydata


@patch("chainer.variable:Parameter.addgrad", when=WHEN)
def addgrad(original):
    """Without it gradients of a copy in FP32 cannot be added to gradients of its model in 16 bits."""

    @functools.wraps(original)
    def addgrad(self, var):
        gradient = None if self.array is None else var.grad
        if gradient is None or gradient.dtype == self.dtype or not {gradient.dtype, self.dtype} <= STORAGE_DTYPES:
            original(self, var)
            return
        cast = chainer.Parameter(self.array)
        cast.grad = rounded(self.device.send(gradient), self.dtype)
        cast._loss_scale = var._loss_scale
        original(self, cast)

    return addgrad


@patch("chainer.training.updaters.parallel_updater:ParallelUpdater.__init__", when=WHEN)
def no_wide_replicas(original):
    """Without it the replicas of ParallelUpdater, which are copies, have FP32 weights."""

    @functools.wraps(original)
    def __init__(self, *args, **kwds):
        original(self, *args, **kwds)
        main = self.get_optimizer("main").target
        for model in self._models.values():
            if model is not main:
                narrow(model.params())

    return __init__
