"""Concatenation of images along their channels."""

import itertools

import chainer

from mixprec.base import arguments
from mixprec.functions import checks
from mixprec.functions.node import Node, dense


def concat(xs):
    """Returns (..., C1), (..., C2), ... as (..., C1 + C2 + ...).

    Args:
        xs: variables or arrays in one storage dtype, equal in all axes but the last.

    Returns:
        Variable.

    Raises:
        TypeError: dtypes differ, or are not storage dtypes.
        ValueError: shapes do not fit, or there is nothing to concatenate.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> one, two = np.zeros((8, 7, 7, 16), np.float16), np.ones((8, 7, 7, 32), np.float16)
        >>> functions.concat([one, two]).shape
        (8, 7, 7, 48)
    """
    if not isinstance(xs, (list, tuple)):
        raise TypeError(f"concat: xs must be a list or tuple of arrays or variables; found {arguments.found(xs)}")
    if not xs:
        raise ValueError("concat: there must be at least one array")
    return Concatenation(len(xs)).apply(tuple(xs))[0]


class Concatenation(Node):
    """See :func:`concat`.

    Args:
        count: number of inputs.
    """

    name = "concat"
    is_repeatable = True
    takes_strided = True

    def __init__(self, count):
        self.image_inputs = range(count)

    def check(self, *xs):
        for number, x in enumerate(xs):
            checks.dtype(self.name, f"xs[{number}]", x)
            checks.same_dtype(self.name, f"xs[{number}]", x, "xs[0]", xs[0])
            if x.shape[:-1] != xs[0].shape[:-1]:
                raise ValueError(
                    f"{self.name}: xs[{number}] must be like xs[0], {xs[0].shape}, in all axes but the last; "
                    f"found {x.shape}"
                )

    def compute(self, primitives, *xs):
        self._ends = [0, *itertools.accumulate(x.shape[-1] for x in xs)]
        return (chainer.backend.get_array_module(*xs).concatenate(xs, axis=-1),)

    def gradients(self, primitives, indexes, dy):
        return tuple(
            dense(dy[..., self._ends[index] : self._ends[index + 1]]) if index in indexes else None
            for index in range(len(self.inputs))
        )


class Rows(Node):
    """Joins arrays (B, ...) along the first axis, in one launch on a device; of any one dtype."""

    name = "concat_rows"
    is_repeatable = True

    def check(self, *xs):
        for number, x in enumerate(xs):
            checks.same_dtype(self.name, f"xs[{number}]", x, "xs[0]", xs[0])
            if x.shape[1:] != xs[0].shape[1:]:
                raise ValueError(f"{self.name}: xs[{number}] must be (B, *{xs[0].shape[1:]}); found shape {x.shape}")

    def compute(self, primitives, *xs):
        self._ends = list(itertools.accumulate(map(len, xs)))
        return (primitives.concat_rows(xs),)

    def gradients(self, primitives, indexes, dy):
        return parts_of(dy, self._ends)


class RowParts(Node):
    """Returns the parts of an array of any dtype along the first axis, as views.

    Args:
        ends: first rows behind each part.
    """

    name = "split_rows"
    is_repeatable = True

    def __init__(self, ends):
        self._ends = ends

    def check(self, x):  # labels are split, too
        pass

    def compute(self, primitives, x):
        parts = parts_of(x, self._ends)
        self._shapes = [part.shape for part in parts]
        return tuple(parts)

    def gradients(self, primitives, indexes, *dys):
        return (primitives.concat_rows(with_zeros(dys, self._shapes)),)


def parts_of(array, ends):
    """Returns views of the parts of an array along the first axis, given the first rows behind them."""
    return [array[first:end] for first, end in itertools.pairwise((0, *ends))]


def with_zeros(dys, shapes):
    """Returns gradients of some shapes, zeros in place of ``None``, which not all of them are."""
    like = next(dy for dy in dys if dy is not None)
    xp = chainer.backend.get_array_module(like)
    return [xp.zeros(shape, like.dtype) if dy is None else dy for dy, shape in zip(dys, shapes, strict=True)]
