"""Convolutions on CUDA: by cuDNN, with own kernels before or after for parts that it does not fuse."""

import functools
import itertools
from typing import NamedTuple

import numpy as np

from mixprec.backends.cuda import operations
from mixprec.backends.cuda.batch_norm import BatchNorms
from mixprec.backends.cuda.layout import Layouts
from mixprec.backends.cuda.stem import ON_SQUARES, Squares, Stems
from mixprec.backends.geometry import BatchNorm, Following

_FLOAT = np.dtype(np.float32)


class _Forward(NamedTuple):
    """A forward pass. Attributes: whether bias and ReLU, and statistics, are requested, or fused by cuDNN."""

    ending: bool = False
    statistics: bool = False


class Convolutions(BatchNorms, Stems, Layouts):
    """The convolutions of :class:`~mixprec.backends.primitives.Primitives`."""

    def conv_fprop(self, x, w, convolution, b=None, *, relu=False, statistics=False):
        w, convolution = self._filters_for(x.shape, w, convolution)
        if isinstance(statistics, Following):
            key = "conv_batch_norm", x.shape, w.shape, x.dtype, convolution, statistics
            return self._choose(key, self._batch_norm_candidates, (x, w, True))(x, w)
        wanted = _Forward(b is not None or relu, statistics)
        key = "conv_fprop", x.shape, w.shape, x.dtype, convolution, None if b is None else b.dtype, relu, wanted
        arguments = x, w, b
        return self._choose(key, self._fprop_candidates, arguments)(*arguments)

    def conv_dgrad(self, dy, w, convolution, x_shape):
        w, convolution = self._filters_for(x_shape, w, convolution)
        key = "conv_dgrad", dy.shape, w.shape, tuple(x_shape), dy.dtype, convolution
        return self._choose(key, self._dgrad_candidates, (dy, w))(dy, w)

    def conv_wgrad(self, x, dy, convolution, w_shape):
        w_shape = tuple(w_shape)
        if isinstance(convolution, Squares):
            return self._wgrad_on_squares(x, dy, convolution, w_shape)
        as_wide_as_x = w_shape if convolution.groups > 1 else (*w_shape[:3], x.shape[3])
        key = "conv_wgrad", x.shape, dy.shape, as_wide_as_x, x.dtype, convolution
        return self._resized(self._choose(key, self._wgrad_candidates, (x, dy))(x, dy), w_shape)

    def relu(self, x):
        return self._with_bias(x, None, relu=True)

    def relu_backward(self, dy, y):
        return self._elementwise("convolution", "relu_backward", [dy, y], dy.size, length=dy.size)

    def _filters_for(self, x_shape, w, convolution):
        """Returns filters that match the images, folded for squares or padded in channels, and the convolution."""
        if isinstance(convolution, Squares):
            return self._folded_filters(w, convolution), ON_SQUARES
        return self._as_wide_as(x_shape[3], w, convolution), convolution

    # The candidates. The first of cuDNN's convolutions fuses the most.

    def _fprop_candidates(self, x_shape, w_shape, dtype, convolution, b, relu, wanted):
        cudnn, found = self._cudnn(), False

        def ask(images, filters, **fused):
            return operations.conv_fprop(*images, filters, dtype, convolution, **fused)

        for fused in itertools.product(*((True, False) if part else (False,) for part in wanted)):
            fused = _Forward(*fused)
            if fused.ending != wanted.ending and (found or fused.statistics):
                continue  # a bias after rounding is the last resort; and nothing may come after statistics
            ending = {"b": b, "relu": relu} if fused.ending else {}
            operation = ask([x_shape], w_shape, **ending, statistics=fused.statistics)
            if cudnn.supports(operation):
                found = True
                function = functools.partial(self._fprop, cudnn.plan(operation), relu, wanted, fused)
                yield "+".join(["conv", *itertools.compress(_Forward._fields, fused)]), function
                if fused.statistics and self._is_ruled():
                    return
        if not found:
            (x_shape,), w_shape = self._padding(ask, [x_shape], w_shape, convolution.groups)
            function = functools.partial(self._fprop_padded, convolution, x_shape, w_shape, relu, wanted.statistics)
            yield "padded", function

    def _dgrad_candidates(self, dy_shape, w_shape, x_shape, dtype, convolution):
        def ask(images, filters):
            return operations.conv_dgrad(images[0], filters, images[1], dtype, convolution)

        padded = functools.partial(self._dgrad_padded, convolution, x_shape)
        return self._gradient_candidates(ask, [dy_shape, x_shape], w_shape, convolution.groups, padded)

    def _wgrad_candidates(self, x_shape, dy_shape, w_shape, dtype, convolution):
        def ask(images, filters):
            return operations.conv_wgrad(*images, filters, dtype, convolution)

        padded = functools.partial(self._wgrad_padded, convolution, w_shape)
        return self._gradient_candidates(ask, [x_shape, dy_shape], w_shape, convolution.groups, padded)

    def _gradient_candidates(self, ask, images, w_shape, groups, padded):
        operation = ask(images, w_shape)
        if self._cudnn().supports(operation):
            yield "conv", functools.partial(self._computed, self._cudnn().plan(operation))
        else:
            images, w_shape = self._padding(ask, images, w_shape, groups)
            yield "padded", functools.partial(padded, *images, w_shape)

    def _batch_norm_candidates(self, x_shape, w_shape, dtype, convolution, following):
        before = functools.partial(self._before_batch_norm, convolution, following)
        operation = operations.conv_fprop(x_shape, w_shape, dtype, convolution, statistics=True)
        separate = [("separate", functools.partial(before, False))]
        with_sums = (("statistics", functools.partial(before, True)) for _ in [0] if self._cudnn().supports(operation))
        # An H100's record has filters up to 3x3. A larger one has as many sums, and more products to hide them.
        return self._by_rule(with_sums, separate)

    # Their implementations

    def _fprop(self, plan, relu, wanted, fused, x, w, b):
        inputs = [x, w]
        if fused.ending and b is not None:
            inputs.append(b)
        y = self._empty(plan.operation.outputs[0].shape, x.dtype)
        sums = self._empty((2, y.shape[3]), _FLOAT) if fused.statistics else None
        outputs = [y] if sums is None else [y, *sums]
        plan.run(*map(self._address, (*inputs, *outputs)))
        if wanted.ending and not fused.ending:
            y = self._with_bias(y, None if b is None else self.cast(b, _FLOAT), relu)
        if not wanted.statistics:
            return y
        return y, self._sums(y) if sums is None else sums

    def _before_batch_norm(self, convolution, following, with_statistics, x, w, is_measured=False):
        """Returns the result of a convolution and its sums, or ``None``; measuring includes the work that follows."""
        z, sums = self.conv_fprop(x, w, convolution, statistics=with_statistics), None
        if with_statistics:
            z, sums = z
        return self._batch_norm_of(z, sums, following) if is_measured else (z, sums)

    def _batch_norm_of(self, z, sums, following):
        """Normalizes like the batch normalization after a convolution; returns y.

        Only own kernels can read a mask that was made from sums. So where cuDNN is a candidate, too, the cost includes
        the backward pass, with a second gradient: the rest of the network is unknown, but a network that adds before a
        ReLU usually branches after it, into the next block and past it.
        """
        attributes = BatchNorm(relu=following.relu)
        gamma, beta = (self.launcher.full(z.shape[3:], value, _FLOAT) for value in (1, 0))
        add = self.launcher.full(z.shape, 0, z.dtype) if following.add else None
        y, saved = self.batch_norm(z, gamma, beta, None, attributes, add=add, sums=sums)
        if saved.mask is not None and self._tries_cudnn():
            self.batch_norm_backward(y, z, gamma, beta, saved, attributes, add=True, plus=y)
        return y

    def _fprop_padded(self, convolution, x_shape, w_shape, relu, statistics, x, w, b):
        channels = len(w)
        x, w = self._resized(x, x_shape), self._resized(w, w_shape)
        b = None if b is None else self._resized(b, w_shape[:1])
        found = self.conv_fprop(x, w, convolution, b, relu=relu, statistics=statistics)
        if not statistics:
            return self._resized(found, (*found.shape[:3], channels))
        y, sums = found
        return self._resized(y, (*y.shape[:3], channels)), self._resized(sums, (2, channels))

    def _dgrad_padded(self, convolution, shape, dy_shape, x_shape, w_shape, dy, w):
        dy, w = self._resized(dy, dy_shape), self._resized(w, w_shape)
        return self._resized(self.conv_dgrad(dy, w, convolution, x_shape), shape)

    def _wgrad_padded(self, convolution, shape, x_shape, dy_shape, w_shape, x, dy):
        x, dy = self._resized(x, x_shape), self._resized(dy, dy_shape)
        return self._resized(self.conv_wgrad(x, dy, convolution, w_shape), shape)
