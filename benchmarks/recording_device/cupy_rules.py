"""Differences of CuPy from NumPy: the rules that all stand-ins for arrays on a GPU obey.

Stand-ins compute with NumPy. What CuPy 14.2 does differently, and where its source (``cupy/``) says so:

Order of results
    New arrays are C-contiguous, whatever the order of the inputs: those of ufuncs (``_core/_kernel.pyx``,
    ``_get_out_args_from_optionals``), of elementwise and reduction kernels (there, ``_get_out_args_with_params``, and
    ``_core/_reduction.pyx``), of indexing with arrays (``_core/_routines_indexing.pyx``, ``_take`` and
    ``_getitem_mask_single``), of ``concatenate`` (``_core/_routines_manipulation.pyx``).
    The order is kept by ``astype``, by ``empty_like`` and its like, and by the functions ``copy``, ``array`` and
    ``asarray`` of an array on the device (``_core/internal.pyx``, ``_get_strides_for_order_K``); of course also by what
    is written into: ``out=``, ``+=``, ``fill``.
Copies
    The method ``copy()`` is in C order, as NumPy's. So are ``copy.copy`` and ``copy.deepcopy``, which NumPy keeps in
    order (``_core/core.pyx``).
Results of shape ()
    They are arrays on the device, not numbers.
Sums, products and means in 16 bits
    They are taken in float32 and rounded once (``_core/_routines_math.pyx`` and ``_routines_statistics.pyx``:
    ``'e->e', (..., 'float')``).
While a graph is captured
    What goes to the host or comes from there raises RuntimeError (``cuda/memory.pyx``, ``copy_to_host_async``). So do
    ``concatenate`` and ``stack`` of more than :data:`COPIED` arrays: they upload addresses, but for arrays of more than
    2 MiB on average (``_core/_routines_manipulation.pyx``, ``_concatenate_single_kernel``).

The same in both, so that nothing has to be done: promotion of dtypes, where numbers of Python are weak and arrays of
shape () are not (NEP 50); shapes and ``keepdims``; dtypes of sums of integers.

Not followed: arrays of the host as operands, which CuPy refuses (``_core/_scalar.pyx``, ``CScalar``), are uploads here,
as ``xp.zeros`` of Chainer's makes them where the host is the device. How many kernels a function launches: a
concatenation copies array by array. What a GPU leaves to chance, as which of several values is written to one place,
and indices out of bounds, which CuPy wraps around.
"""

import numpy as np

COPIED = 8  # so many arrays are copied one by one

_KEEPING = {"astype", "empty_like", "zeros_like", "ones_like", "full_like", "copy", "array", "asarray"}
_SUMMING = {"sum", "prod", "mean", "add.reduce", "multiply.reduce"}


def strides_of(name, array):
    """Returns the strides of a new array, without gaps.

    Args:
        name: of the function that makes it.
        array: what NumPy has made of the same arguments.
    """
    order = sorted(range(array.ndim), key=lambda axis: (abs(array.strides[axis]), -axis))
    if name not in _KEEPING or array.flags.c_contiguous:
        order = reversed(range(array.ndim))
    strides, step = [0] * array.ndim, array.itemsize
    for axis in order:
        strides[axis] = step
        step *= max(1, array.shape[axis])
    return tuple(strides)


def compute(function, name, arguments, keywords):
    """Calls a function of NumPy with arrays of NumPy, and returns its result in CuPy's precision.

    Args:
        function: of NumPy.
        name: of it.
        arguments, keywords: of the call.
    """
    first = arguments[0] if arguments else None
    narrow = isinstance(first, np.ndarray) and first.dtype.itemsize == 2 and first.dtype.kind in "fV"
    if not narrow or name not in _SUMMING or keywords.get("dtype") is not None or keywords.get("out") is not None:
        return function(*arguments, **keywords)
    return function(first.astype(np.float32), *arguments[1:], **keywords).astype(first.dtype)
