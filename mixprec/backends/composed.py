"""Primitives composed of others, for every backend; see :mod:`mixprec.backends.primitives`.

A backend with an implementation in fewer passes over memory overrides them, with the same bits unless a docstring says
otherwise.
"""


class Composed:
    """A base of :class:`~mixprec.backends.primitives.Primitives`."""

    # Convolution

    def conv_form(self, x_shape, w_shape, dtype, convolution):
        """Returns the convolution of the same images in the form in which the device reads them fastest.

        It is a backend-specific form for images of :meth:`conv_images`, or ``convolution`` itself for unchanged images.
        All primitives with a convolution take it together with images in its form; filters (K, R, S, C) and results
        are as usual. Forms only change the positions of numbers in memory.

        Args:
            x_shape: (N, H, W, C).
            w_shape: (K, R, S, C / groups).
            dtype: the storage dtype, of NumPy.
            convolution: how the filter moves.
        """
        return convolution

    def conv_images(self, x, form, dtype, *, channels_first=False):
        """Returns images in the form of a convolution from :meth:`conv_form`.

        Args:
            x: (N, H, W, C) in a storage dtype.
            form: the convolution.
            dtype: the storage dtype of the result.
            channels_first: whether x is (N, C, H, W).
        """
        return self.to_nhwc(x, dtype) if channels_first else self.cast(x, dtype)

    def conv_images_backward(self, dy, form, x_shape, dtype):
        """Returns the gradient (N, H, W, C) = ``x_shape`` of :meth:`conv_images` in the dtype of its ``x``."""
        return self.cast(dy, dtype)

    def deconv_fprop(self, x, w, convolution, y_shape, b=None):
        """Returns the transposed convolution (N, OH, OW, C) = ``y_shape`` of x (N, H, W, K): :meth:`conv_dgrad`.

        ``convolution`` goes from the output to the input. A bias (C,) is added after y was rounded, and the sum
        rounded again. The gradients are :meth:`conv_fprop` of ``dy`` for the input, :meth:`conv_wgrad` of ``(dy, x)``
        for the filter.
        """
        y = self.conv_dgrad(x, w, convolution, y_shape)
        return y if b is None else self.add_bias(y, b)

    # Batch normalizations with their neighbours in a ResNet: `one` and `other` are `geometry.Normalized`

    def dual_batch_norm(self, one, other):
        """Adds two batch normalizations, the second of which is rounded to the storage dtype first.

        Args:
            one: the first; its ``attributes.relu`` says whether a ReLU follows the addition.
            other: the second, without a ReLU; its x is like the first one's, and it has different running statistics.

        Returns:
            ``(y, saved)``: y like x, and a pair of Saved as of :meth:`batch_norm`: of one, with an addition, and of
            other.
        """
        add, of_other = self.batch_norm(*other[:5], sums=other.sums)
        y, of_one = self.batch_norm(*one[:5], add=add, sums=one.sums)
        return y, (of_one, of_other)

    def dual_batch_norm_backward(self, dy, one, other, saved, *, plus=None):
        """Returns the gradients of :meth:`dual_batch_norm`: ``(dx, dgamma, dbeta)`` twice, and the gradient of the sum.

        Args:
            dy: like x, the gradient of y, or the first of its two terms.
            one: as there; running statistics and sums are not used.
            other: as there, too.
            saved: from there.
            plus: ``None`` or the second term, see :meth:`batch_norm_backward`.

        Returns:
            The tuples of one and of other, and the gradient of the sum, after the ReLU: like x.
        """
        *of_one, g = self.batch_norm_backward(
            dy, one.x, one.gamma, one.beta, saved[0], one.attributes, add=True, plus=plus
        )
        *of_other, _ = self.batch_norm_backward(g, other.x, other.gamma, other.beta, saved[1], other.attributes)
        return tuple(of_one), tuple(of_other), g

    def batch_norm_max_pool(self, one, pooling):
        """Returns ``(y, where, saved)``: :meth:`max_pool` of :meth:`batch_norm`, which is rounded in between.

        Args:
            one: the batch normalization, and whether a ReLU follows; x is (N, H, W, C).
            pooling: of windows of at most 255 elements.

        Returns:
            y and where as of :meth:`max_pool`, and Saved.
        """
        h, saved = self.batch_norm(*one[:5], sums=one.sums)
        return *self.max_pool(h, pooling), saved

    def batch_norm_max_pool_backward(self, dy, where, one, saved, pooling, *, plus=None):
        """Returns the gradients ``(dx, dgamma, dbeta)`` of :meth:`batch_norm_max_pool`.

        The order in which dgamma and dbeta are summed depends on the backend.

        Args:
            dy: like y, its gradient, or the first of its two terms.
            where: from there, as is ``saved``.
            one: as there; running statistics and sums are not used.
            saved: see ``where``.
            pooling: as there.
            plus: ``None`` or the second term, see :meth:`batch_norm_backward`.
        """
        g = self.max_pool_backward(dy if plus is None else self.add(dy, plus), where, pooling, one.x.shape)
        return self.batch_norm_backward(g, one.x, one.gamma, one.beta, saved, one.attributes)[:3]

    # Dropout

    def dropout_next(self, x, ratio, state):
        """Returns ``(y, key)``: the next :meth:`dropout_key` of a state, and :meth:`dropout` with it."""
        key = self.dropout_key(state)
        return self.dropout(x, ratio, key), key
