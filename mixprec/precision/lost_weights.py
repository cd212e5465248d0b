"""Weights that 16 bits cannot hold: they become inf or 0 when they are rounded, and the user is told their names.

``convert`` asks here for each parameter that it rounds. Files and initializers are looked at on NumPy only: on a device
that would wait for it.
"""

import numpy as np

from mixprec.backends.transfers import to_host
from mixprec.base.announcements import announce
from mixprec.base.dtypes import FLOAT32, LIMITS, is_half

_CURE = "keep its link in float32, by keep_float32 of mixprec.convert, or the dtype of a link of mixprec.links"


def lost(array, dtype):
    """Returns what becomes of a float32 array in a 16-bit dtype, in words, or ``None``.

    That some small elements among many become 0 is as it should be; here it is at least half of those that are not 0.
    A bias is as small as that after the first steps of training, and nothing is lost beside activations.
    """
    low, high = LIMITS[np.dtype(dtype)]
    magnitude = abs(array)
    infinite = to_host(((magnitude >= high) & (magnitude < np.inf)).sum())
    if infinite:
        return f"inf in {np.dtype(dtype).name} ({infinite:,} of {array.size:,} elements)"
    if array.ndim < 2:
        return None
    zeros, before = to_host((magnitude <= low).sum()), to_host((magnitude == 0).sum())
    if zeros > before and 2 * (zeros - before) >= array.size - before:
        return f"0 in {np.dtype(dtype).name} ({zeros - before:,} of {array.size:,} elements)"
    return None


def warn_of_lost(name, array, dtype):
    """Announces what becomes of a host array that is rounded to a 16-bit dtype; arrays of a device are not looked at.

    Args:
        name: path of the parameter.
        array: any array; what is not float32 was rounded before.
        dtype: any storage dtype.
    """
    looked_at = isinstance(array, np.ndarray) and array.dtype == FLOAT32 and is_half(dtype)
    if looked_at and (what := lost(array, dtype)):
        announce("%s becomes %s: %s", name, what, _CURE)


def path_of(serializer, key):
    """Returns the path of a parameter in a file, as :meth:`chainer.Link.namedparams` of the saved link names it.

    Args:
        serializer: of its link; one that wraps another has its attribute ``path``.
        key: name of the parameter in the link.
    """
    group = getattr(serializer, "group", None)  # of HDF5
    path = getattr(serializer, "path", "") if group is None else group.name
    return "/".join(["", *filter(None, path.split("/")), key])
