"""Warns about weights that 16 bits cannot hold: when they are rounded, they become inf or 0.

``convert`` checks each parameter that it rounds. Values from files and initializers are checked on NumPy only: on a
device the host would have to wait.
"""

import numpy as np

from mixprec.backends.transfers import to_host
from mixprec.base.announcements import announce
from mixprec.base.dtypes import FLOAT32, LIMITS, is_half

_CURE = "keep its link in float32, by keep_float32 of mixprec.convert, or the dtype of a link of mixprec.links"


def lost(array, dtype):
    """Returns what a float32 array loses in a 16-bit dtype, as text, or ``None``.

    It is normal that some small elements among many become 0; this reports at least half of the nonzero ones. A bias
    may be that small after the first steps of training, when it is negligible compared to activations.
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
    """Announces values that a host array loses in a 16-bit dtype; arrays on a device are not checked.

    Args:
        name: path of the parameter.
        array: any array; arrays that are not float32 were rounded before.
        dtype: any storage dtype.
    """
    looked_at = isinstance(array, np.ndarray) and array.dtype == FLOAT32 and is_half(dtype)
    if looked_at and (what := lost(array, dtype)):
        announce("%s becomes %s: %s", name, what, _CURE)


def path_of(serializer, key):
    """Returns the path of a parameter in a file, as :meth:`chainer.Link.namedparams` of the saved link names it.

    Args:
        serializer: serializer of its link; a wrapping serializer has the inner one's attribute ``path``.
        key: name of the parameter in the link.
    """
    group = getattr(serializer, "group", None)  # HDF5
    path = getattr(serializer, "path", "") if group is None else group.name
    return "/".join(["", *filter(None, path.split("/")), key])
