"""Gradients of parameters that several functions of a backward pass use, such as the weights of a recurrent network.

What each function has to add is kept as rows, and computed once for all of them: one product of matrices in place of
many, one rounding, and no additions of dense gradients. A :class:`Pending` lies in the table of the pass
(:mod:`mixprec.functions.sums`) until all functions have added their rows, the rows take too much memory, or it leaves
the table. The gradient of a parameter that one function uses is computed at once, so that no row is kept. So it is
where others look on: hooks, debug mode, double backprop, ``chainer.grad``, observers of layers.
"""

import chainer

from mixprec.functions import layer_gradients, sums

# Bytes of rows, and their multiple of the bytes of the parameter: beyond both, keeping more saves little time.
_MOST, _TIMES = 4 << 20, 8


class Pending(sums.Lazy):
    """A gradient of a parameter that has not been computed from its rows yet.

    Chainer's backward pass asks for the raw array, only to check its type, shape and dtype: it gets the parameter's.

    Args:
        param: the parameter.
        uses: number of functions that use it in this backward pass, infinity if that is not known.
        kind: ``(name, *options)``: the primitive of this name computes the gradient of ``(*arrays, *options)``.
        primitives: :class:`~mixprec.backends.primitives.Primitives` of the device.
        arrays: tuple of arrays of as many rows.

    Attributes:
        in_table: whether a backward pass has it, and no function.
    """

    def __init__(self, param, uses, kind, primitives, arrays):
        super().__init__(_param=param, _uses=uses, _count=1, _primitives=primitives, _before=None, in_table=True)
        # Rows of other dtypes cannot be joined.
        self.__dict__.update(_kind=(*kind, *[array.dtype for array in arrays]), _compute=kind, _rows=[arrays])
        self.__dict__.update(_bytes=sum(array.nbytes for array in arrays))

    @property
    def raw_array(self):
        """See :class:`Pending`."""
        return self._param.array if self.in_table else self._data[0]

    def plus(self, other):
        """See :meth:`Lazy.plus`; ``other`` is the earlier gradient."""
        if type(other) is Pending:
            self._count, self._uses = self._count + other._count, max(self._uses, other._uses)
            if other._kind == self._kind:
                other._rows += self._rows  # in place: there may be thousands
                self._rows, self._bytes, other = other._rows, self._bytes + other._bytes, other._before
        if other is not None:
            self._add(other)
        if self._count == self._uses:
            return sums.computed(self)
        if self._bytes > max(_MOST, _TIMES * self._param.array.nbytes):
            self._add(self._of_rows())
        return self

    def compute(self):
        """See :meth:`Lazy.compute`."""
        if self._rows:
            self._add(self._of_rows())
        return self._before

    def _add(self, gradient):
        gradient = sums.computed(gradient)
        self._before = gradient if self._before is None else sums.added(self._before, gradient)

    def _of_rows(self):
        (name, *options), primitives = self._compute, self._primitives
        columns, self._rows, self._bytes = zip(*self._rows, strict=True), [], 0
        with chainer.using_device(chainer.backend.get_device_from_array(self._param.array)):
            arrays = [each[0] if len(each) == 1 else primitives.concat_rows(each) for each in columns]
            gradient = getattr(primitives, name)(*arrays, *options)
        return chainer.Variable._init_unchecked(gradient, requires_grad=False, is_chainerx_array=False)


def product(primitives, node, x, dy):
    """Returns the gradient of weights W (K, C) in ``x @ W.T``, an array or :class:`Pending`, for ``Node.gradients``.

    Args:
        primitives: :class:`~mixprec.backends.primitives.Primitives` of the device.
        node: variable node of W.
        x: (B, C), which nothing may write to until the backward pass is over.
        dy: (B, K), the gradient of the product; as ``x``.
    """
    return _gradient(primitives, node, (x, dy), dy.dtype, "linear_wgrad")


def total(primitives, node, dy, dtype):
    """Returns the gradient of a bias (K,), an array or :class:`Pending`, for ``Node.gradients``.

    Args:
        primitives: as for :func:`product`.
        node: variable node of the bias.
        dy: (..., K), which nothing may write to until the backward pass is over.
        dtype: of the bias.
    """
    return _gradient(primitives, node, (dy.reshape(-1, dy.shape[-1]),), dtype, "bias_grad", dtype)


def segments(primitives, node, t, dy, rows, ignore_label):
    """Returns the gradient of a table (V, C) of an embedding, an array or :class:`Pending`, for ``Node.gradients``.

    Args:
        primitives: as for :func:`product`.
        node: variable node of the table.
        t: labels (B,).
        dy: (B, C), the gradients of the rows with these labels.
        rows: V.
        ignore_label: label that does not count, or ``None``.
    """
    return _gradient(primitives, node, (dy, t), dy.dtype, "embed_backward", rows, ignore_label)


def _gradient(primitives, node, arrays, dtype, *kind):
    uses, param = sums.now.uses.get(id(node), 1), node.get_variable_or_none()
    is_kept = uses > 1 and isinstance(param, chainer.Parameter) and param.dtype == dtype
    if is_kept and sums.is_ours() and layer_gradients.now.observer is None:
        return Pending(param, uses, kind, primitives, arrays)
    name, *options = kind
    return getattr(primitives, name)(*arrays, *options)
