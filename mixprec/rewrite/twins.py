"""Parts of a model that have the same weights: one may be a target network, which moves by small steps."""

import chainer

from mixprec.base.dtypes import is_half
from mixprec.precision.master_arrays import OWNER

_TEXT = (
    "%s have the same weights: if one is a target network or an average of another, %s rounds its small steps away: "
    "name it in keep_float32, or make it by copy.deepcopy after mixprec.convert"
)


def twins(model):
    """Returns a text for each set of parts of a converted model with the same weights, if it is to be trained.

    The first row of each weight is read.

    Args:
        model: a link.
    """
    params = list(model.namedparams(include_uninit=False))
    if not any(OWNER in param.__dict__ for _, param in params):
        return []
    host, seen, found = chainer.get_device("@numpy"), {}, {}
    for name, param in params:
        if param.ndim < 2 or not param.size or not is_half(param.dtype):
            continue
        row = host.send(param.array[0])
        other, of = seen.setdefault((param.shape, row.tobytes()), (name, param))
        if of is not param and (row != row.flat[0]).any():
            first, part = _parts(other, name)
            found.setdefault((first, param.dtype.name), {})[part] = True
    return [
        _TEXT % (f"{', '.join([first, *list(parts)[:-1]])} and {[*parts][-1]}", dtype)
        for (first, dtype), parts in found.items()
    ]


def _parts(name, other):
    """Returns the names without what they have in common at their ends, ``/k`` and ``/q`` for ``/k/W`` and ``/q/W``."""
    names, others = name.split("/"), other.split("/")
    while names[-1] == others[-1]:
        names.pop()
        others.pop()
    return "/".join(names) or "/", "/".join(others) or "/"
