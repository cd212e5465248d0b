"""The primitives: all arithmetic that the functions of mixprec need, on NumPy or on a CUDA device.

:mod:`mixprec.functions` calls them; :func:`mixprec.backends.primitives_of` returns the primitives of an array's device.
Unless a primitive says otherwise:

* activations are (N, H, W, C), C-contiguous, in the *storage dtype*: float16, bfloat16 or float32;
* filters are (K, R, S, C / groups), C-contiguous, in the storage dtype, and so are their gradients;
* gamma, beta, mean, variance and their gradients are (C,) float32; a bias is in the storage dtype or float32;
* ``convolution``, ``pooling``, ``attributes`` and Saved are classes of :mod:`mixprec.backends.geometry`;
* a primitive widens to float32, accumulates in float32 and rounds each output once, to nearest even, to the storage
  dtype. Numbers that do not fit become inf, without a warning: the loss scale watches for that.

Outputs are new arrays. Arguments are checked by the functions that call these, not here.
"""

import inspect

from mixprec.backends.composed import Composed
from mixprec.base.interface import Interface


class Primitives(Composed, Interface):
    """One for NumPy (:mod:`mixprec.backends.cpu`), one for each CUDA device (:mod:`mixprec.backends.cuda`)."""

    # Convolution

    def conv_fprop(self, x, w, convolution, b=None, *, relu=False, statistics=False):
        """Convolves (without flipping the filter, as all deep-learning libraries).

        Args:
            x: (N, H, W, C). It may have more channels than the filter, if those are zeros: padding for the device.
            w: (K, R, S, C / groups).
            convolution: how the filter moves.
            b: ``None`` or a bias (K,).
            relu: whether a ReLU follows.
            statistics: whether to return sums for a batch normalization, too; not with ``relu``. Or
                :class:`~mixprec.backends.geometry.Following`, without all other options: the device then decides
                whether that is worth it, by rule or by measurement of both together.

        Returns:
            y (N, OH, OW, K); with ``statistics`` ``(y, sums)``, where sums is (2, K) float32: the sum of each channel
            of y, and the sum of its squares, or ``None`` if the device has chosen not to take them. They may be taken
            before y is rounded.

        Raises:
            ValueError: the filter is larger than the padded input.
        """

    def conv_dgrad(self, dy, w, convolution, x_shape):
        """Returns the gradient dx (N, H, W, C) = ``x_shape`` of :meth:`conv_fprop` with respect to its input.

        Channels of ``x_shape`` that the filter does not have get zeros.
        """

    def conv_wgrad(self, x, dy, convolution, w_shape):
        """Returns the gradient dw (K, R, S, C / groups) = ``w_shape`` of :meth:`conv_fprop`."""

    # ReLU and addition

    def relu(self, x):
        """Returns ``max(x, 0)``, like ``x``, any shape; NaN stays NaN."""

    def relu_backward(self, dy, y):
        """Returns ``dy`` where ``y``, a ReLU's output or input, is above 0, and 0 elsewhere; both of one shape."""

    def add(self, a, b):
        """Returns ``a + b``, like ``a``, any shape; ``b`` is of the same shape and dtype."""

    # Batch normalization (Ioffe and Szegedy 2015, arXiv:1502.03167), over all axes but the last

    def batch_norm(self, x, gamma, beta, running, attributes, *, add=None, sums=None, ranks=None, factors=None):
        """Normalizes with the statistics of the batch: ``relu(factor * (gamma * (x - mean) * invstd + beta) + add)``.

        Args:
            x: (..., C) in the storage dtype; gamma and beta are (C,) float32.
            running: ``None`` or ``(mean, variance)``, set in place to ``decay * running + (1 - decay) * batch``, by the
                unbiased variance, ``m / max(m - 1, 1)`` times the biased one, m the number of elements of a channel.
            attributes: eps, decay, and whether there is a ReLU; ``add`` is ``None`` or an array like ``x``.
            sums: ``None`` or the sums that :meth:`conv_fprop` returned for ``x``. Exact enough while a channel's
                standard deviation is not far below its mean: the variance is the difference of two float32 sums.
            ranks: ``None``, or :class:`~mixprec.backends.joint_batch.JointBatch`: the batches of these processes are
                normalized as one, by its ``statistics``. They have as many channels; numbers of rows may differ.
            factors: ``None`` for 1, or (N,) float32 from :meth:`row_factors`, one for each of the N images of x, which
                is then (N, ..., C); only with ``add``. The statistics cover the whole batch.

        Returns:
            ``(y, saved)``: y like ``x``, and Saved, which the backward pass needs.
        """

    def batch_norm_part(self, x):
        """Returns (3, C) for ``ranks``: number of rows, mean and spread of each channel, in a form of the backend."""

    def batch_norm_backward(
        self, dy, x, gamma, beta, saved, attributes, *, add=False, plus=None, ranks=None, factors=None
    ):
        """Returns the gradients of :meth:`batch_norm`.

        Args:
            dy: like ``x``, the input of the forward pass; gamma, beta and attributes are as there, too.
            saved: from there; ``add`` is whether there was an addition.
            plus: ``None``, or an array like ``dy``: the gradient of the result is ``dy + plus``, as the network
                branches there. A backend that writes the sum to memory rounds it as :meth:`add` does, and then computes
                the same bits as it would of that; one that does not may keep it in float32.
            ranks: as there. dx is the gradient of the sum of the losses of all processes; dgamma and dbeta are means
                over the processes, and so the same in all of them, as in ChainerMN.
            factors: as there; dx, dgamma and dbeta include them, dadd does not.

        Returns:
            ``(dx, dgamma, dbeta, dadd)``: dadd is ``None`` without an addition, otherwise like ``x`` - with no ReLU it
            is the gradient of the result, ``dy`` itself without ``plus``.
        """

    def batch_norm_inference(self, x, gamma, beta, mean, variance, attributes, *, add=None):
        """Returns y as of :meth:`batch_norm`, with statistics that are given; nothing is saved."""

    def batch_norm_inference_backward(self, dy, x, gamma, beta, mean, variance, attributes, *, y=None):
        """Returns the gradients of :meth:`batch_norm_inference` as :meth:`batch_norm_backward`; statistics get none.

        y is the output of the forward pass where there was an addition, otherwise ``None``.
        """

    # Pooling

    def max_pool(self, x, pooling):
        """Returns ``(y, where)`` for windows of at most 255 elements: y (N, OH, OW, C), and the indices of the maxima.

        ``where`` is uint8 (N, OH, OW, C), ``row * columns + column`` in the window; the first of equal ones in that
        order. NaN is larger than everything.
        """

    def max_pool_backward(self, dy, where, pooling, x_shape):
        """Returns dx (N, H, W, C) = ``x_shape``; sums of overlapping windows in float32, rounded once."""

    def average_pool(self, x, pooling):
        """Returns the mean (N, OH, OW, C) of each window, padding included, as Chainer does by default."""

    def average_pool_backward(self, dy, pooling, x_shape):
        """Returns dx (N, H, W, C) = ``x_shape``."""

    def global_average_pool(self, x):
        """Returns the mean (N, C) of each channel of each image of ``x`` (N, H, W, C)."""

    def global_average_pool_backward(self, dy, x_shape):
        """Returns dx (N, H, W, C) = ``x_shape`` for ``dy`` (N, C)."""

    # Local response normalization (Krizhevsky et al. 2012, "ImageNet classification with deep convolutional neural
    # networks", section 3.3)

    def local_response_norm(self, x, attributes):
        """Returns ``x / (k + alpha * s) ** beta``, like ``x`` (..., C), s the sum of squares of neighbouring channels.

        The window of channel i is from ``i - n // 2`` to ``i + n // 2``, cut at the first and the last channel: an even
        n gives n + 1 channels. Squares and sums beyond float32 are inf, and give 0. NaN or inf spoil no other row.
        """

    def local_response_norm_backward(self, dy, x, attributes):
        """Returns the gradient of :meth:`local_response_norm`, like ``x``, the input of the forward pass.

        With ``u = k + alpha * s`` it is ``dy_i * u_i**-beta - 2 * alpha * beta * x_i * t_i``, t the sum over the same
        window of ``dy_j * x_j * u_j**(-beta - 1)``.
        """

    # Linear

    def linear(self, x, w, b=None):
        """Returns ``x @ w.T + b`` (B, K) for x (B, C), w (K, C) and b ``None`` or (K,)."""

    def linear_dgrad(self, dy, w):
        """Returns dx (B, C) = ``dy @ w``."""

    def linear_wgrad(self, x, dy):
        """Returns dw (K, C) = ``dy.T @ x``."""

    def bias_grad(self, dy, dtype):
        """Returns the sum of ``dy`` (..., K) over all axes but the last, (K,) in ``dtype``."""

    def add_bias(self, x, b):
        """Returns ``x + b`` for x (..., K) and b (K,)."""

    # Rows

    def concat_rows(self, arrays):
        """Returns arrays (B, ...), which may differ in B, one after the other in one; any dtype."""

    def embed(self, w, t, ignore_label=None):
        """Returns the rows (..., C) of a table w (V, C) with the labels t (...), int32 or int64.

        Rows are zeros where a label is ``ignore_label``, unless that is ``None``. Negative labels count from the end;
        NumPy raises IndexError beyond that, and a device takes them modulo V, as CuPy does.
        """

    def embed_backward(self, dy, t, rows, ignore_label=None):
        """Returns the gradient (V, C) of :meth:`embed`, V = ``rows``, for dy (B, C) and t (B,).

        The rows of dy with one label are summed in float32, in their order, and rounded once.
        """

    # Recurrent layers: LSTM (Gers et al. 2000, doi:10.1162/089976600300015015), GRU (Cho et al. 2014, arXiv:1406.1078),
    # and plain ones with tanh or ReLU; `layer` is a :class:`~mixprec.backends.recurrence.Recurrence`

    def recurrent(self, x, w, u, biases, h, c, layer):
        """Computes a layer in one direction over packed sequences.

        With ``p = w x + b_w``, ``q = u h + b_u`` in float32 and s the sigmoid, of each gate, the next state is

        * ``"lstm"``: ``c' = s(p_f + q_f) c + s(p_i + q_i) tanh(p_a + q_a)``, ``h' = s(p_o + q_o) tanh(c')``;
        * ``"gru"``: ``a = tanh(p_a + s(p_r + q_r) q_a)``, ``h' = (1 - z) a + z h`` with ``z = s(p_z + q_z)``;
        * ``"gru_reset_before"``, of ``L.GRU``: ``a = tanh(p_a + u_a (s(p_r + q_r) h))``, ``h' = (1 - z) h + z a``, all
          biases in ``b_w``;
        * ``"tanh"``, ``"relu"``: ``h' = tanh(p + q)``, ``h' = max(p + q, 0)``.

        c stays in float32 from step to step, h is rounded in each.

        Args:
            x: (rows, C) in the storage dtype, packed.
            w: (G H, C).
            u: (G H, H); ``None`` for a cell without h, whose only step has no products with states.
            biases: ``(b_w, b_u)``, each ``None`` or (G H,).
            h: the states (B, H) before the first step in the storage dtype; ``None`` for zeros.
            c: the same for c, of an LSTM.
            layer: how it walks.

        Returns:
            ``(y, h, c, saved)``: y (rows, H) are the states h after each step, h and c (B, H) the last ones of each
            sequence, all in the storage dtype, c ``None`` if there is none; saved is a
            :class:`~mixprec.backends.recurrence.Recurred`.
        """

    def recurrent_backward(self, dy, dh, dc, w, u, y, saved, layer, *, wants_dx=True, wants_states=True):
        """Returns the gradients of :meth:`recurrent`, without the products for the weights.

        Args:
            dy: (rows, H), or ``None`` for zeros, as are dh and dc (B, H), the gradients of the last states.
            w: as there, as are u, saved and layer.
            y: as there; not read if gates are saved.
            wants_dx: whether dx is to be computed.
            wants_states: whether dh and dc are to be computed.

        Returns:
            ``(dx, dp, dq, dh, dc)``: dx (rows, C) or ``None``; dp and dq (rows, G H) in the storage dtype, of p and q,
            which are one array except for a ``"gru"``; dh and dc (B, H), or ``None``, as dc without a state c. A
            backend may round dq before the product with u.
        """

    def rows_wgrad(self, x, dy):
        """Returns :meth:`linear_wgrad` for numbers of rows that change from step to step: no plan is made for them.

        Both may be some neighbouring columns of a larger array.
        """

    def pack_sequences(self, xs, order):
        """Packs sequences step by step, for :meth:`recurrent`.

        Args:
            xs: arrays (T, C), of which T may differ, and may be 0.
            order: their indices, a tuple, by falling length.

        Returns:
            packed (rows, C): row ``sum(min(length, t) for all lengths) + p`` has step t of sequence ``order[p]``.
        """

    def unpack_sequences(self, packed, lengths, order):
        """Returns a list of the sequences (T, C) that :meth:`pack_sequences` packs, given their lengths T.

        They may be views of one array.
        """

    # Second moments, for K-FAC (Martens and Grosse 2015, arXiv:1503.05671; Grosse and Martens 2016, arXiv:1602.01407).
    # Products of two numbers in 16 bits are exact in float32, in which sums are accumulated. Numbers that do not fit
    # become inf. Of symmetric matrices the lower triangle counts: the upper one may differ in the last bits.

    def patch_moments(self, x, convolution, filter_size, out, *, bias=False):
        """Adds to ``out`` the second moments of a filter's patches p: the sum of ``p p^T`` over its positions.

        Args:
            x: (N, H, W, C). It may have more channels than the filter, if those are zeros. The input (B, C) of a linear
                layer is (B, 1, 1, C), with a filter of one element.
            convolution: how the filter moves.
            filter_size: (R, S).
            out: (groups, D, D) float32, C-contiguous; p are the elements under the filter of a group of channels in the
                order (R, S, C / groups), zeros for padding.
            bias: whether a 1 follows them: D is R * S * C / groups, or one more.
        """

    def row_moments(self, dy, out):
        """Adds to ``out`` (groups, K / groups, K / groups) float32 the sum of ``d d^T`` over rows d of dy (..., K)."""

    def scale_moments(self, dy, x, gamma, beta, saved, out, *, relu=False):
        """Adds to ``out`` (3, C) float32 the second moments of gradients of gamma and beta, each of one sample.

        A sample's gradients are sums over all axes of x but the first and the last: of ``dy * (x - mean) * invstd`` for
        gamma, of ``dy`` for beta.

        Args:
            dy: like ``x``, the gradient of the result of the batch normalization before any addition.
            x: (N, ..., C) in the storage dtype, the input; gamma, beta and saved as of :meth:`batch_norm_backward`.
            out: sums over samples: of squares of gamma's gradients, of products of both, of squares of beta's
                gradients.
            relu: whether dy is the gradient after a ReLU, which was open where ``gamma * (x - mean) * invstd + beta >
                0``.
        """

    def inverses(self, moments, shifts, out):
        """Writes to ``out`` the inverses of symmetric matrices, both triangles, after a shift to each diagonal.

        A matrix that is not positive definite then, or not finite, gives NaN.

        Args:
            moments: (groups, D, D) float32, C-contiguous; not changed.
            shifts: (groups,) float32, on the same device.
            out: like ``moments``.
        """

    def products(self, a, b):
        """Returns the product (groups, M, N) of float32 matrices a (groups, M, D) and b (groups, D, N)."""

    # Loss

    def softmax_cross_entropy(
        self, x, t, *, class_weight=None, smoothing=0.0, ignore_label=-1, mixed=None, divisor=None
    ):
        """Cross entropy of the softmax of logits with labels, in float32.

        With label smoothing (Szegedy et al. 2016, arXiv:1512.00567, section 7) the target distribution is
        ``(1 - smoothing)`` at the label plus ``smoothing / K`` everywhere; class weights multiply the terms of the sum
        over classes, as in ``torch.nn.functional.cross_entropy``. With mixed images (Zhang et al. 2018,
        arXiv:1710.09412) the share ``1 - smoothing`` is divided between the label and a second one.

        Args:
            x: (M, K) logits in the storage dtype.
            t: (M,) int32 labels from 0 to K - 1, or ``ignore_label``. Labels are not checked here.
            class_weight: ``None`` or (K,) float32.
            smoothing: from 0 to below 1.
            ignore_label: rows with this label have a loss of 0.
            mixed: ``None``, or ``(second, share)``: second labels (M,) int32, from 0 to K - 1 where the first one
                counts, and the share of the first, from 0 to 1, (M,) float32 or () for all rows.
            divisor: ``None``, or the divisor of the sum of the losses for their mean; 0 for the number of rows that
                count, or for 1 if none does.

        Returns:
            ``(losses, log_z, mean)``. The first two are (M,) float32: the loss of each row, and the logarithm of the
            sum of exponentials of its logits, which the backward pass needs. The last one is ``None`` without a
            ``divisor``, or three times () float32: the mean, the reciprocal of the divisor, and what :meth:`accuracy`
            returns with this ``ignore_label``.
        """

    def softmax_cross_entropy_backward(
        self, dlosses, x, t, log_z, *, class_weight=None, smoothing=0.0, ignore_label=-1, factor=None, mixed=None
    ):
        """Returns dx (M, K) in the dtype of ``x``, the other arguments as of :meth:`softmax_cross_entropy`.

        ``dlosses`` are (M,) float32, or () float32 for all rows alike; ``factor``, () float32, multiplies them unless
        it is ``None``. Rows with ``ignore_label`` get zeros.
        """

    def binary_cross_entropy(self, x, t, *, smoothing=0.0, threshold=None, ignore_label=-1, mixed=None, divisor=None):
        """Mean over the classes of the cross entropies of the sigmoids of logits with labels, in float32.

        The targets q of a row are the same as for :meth:`softmax_cross_entropy`, one for each class; its loss is
        the mean of ``max(x, 0) - x * q + log(1 + exp(-|x|))``.

        Args:
            x: (M, K) logits in the storage dtype.
            t: (M,) int32 labels from 0 to K - 1, or ``ignore_label``. Labels are not checked here.
            smoothing: from 0 to below 1.
            threshold: ``None``; or targets above it are 1, and others are 0.
            ignore_label: rows with this label have a loss of 0.
            mixed: as for :meth:`softmax_cross_entropy`, as is ``divisor``.

        Returns:
            ``(losses, mean)``: the losses of the rows, (M,) float32, and the mean as of :meth:`softmax_cross_entropy`.
        """

    def binary_cross_entropy_backward(
        self, dlosses, x, t, *, smoothing=0.0, threshold=None, ignore_label=-1, factor=None, mixed=None
    ):
        """Returns dx (M, K) in the dtype of ``x``, the other arguments as of :meth:`binary_cross_entropy`.

        ``dlosses`` and ``factor`` are as for :meth:`softmax_cross_entropy_backward`.
        """

    def accuracy(self, x, t, *, top=None, ignore_label=None):
        """Returns the share () float32 of the rows that count whose label the logits predict; 0 if none counts.

        Args:
            x: (M, K) logits.
            t: (M,) int32 labels; one that is not from 0 to K - 1 is never predicted.
            top: ``None``: a row predicts its largest logit, the first one among equals; NaN is larger than everything.
                A number k: every logit for which at most k logits, itself included, are not smaller. Nothing is
                smaller than NaN, and NaN is smaller than nothing.
            ignore_label: rows with this label do not count; ``None``: all rows count.
        """

    # Mixed images

    def mix_images(self, x, share, box):
        """Returns the images of a batch mixed with the batch in reversed order: image n with image N - 1 - n.

        A pixel is ``share`` times the image's pixel plus ``1 - share`` times the other image's, in float32 and rounded
        once; within the box it is the other image's pixel.

        Args:
            x: (N, H, W, C) in a storage dtype.
            share: float from 0 to 1, which is rounded to float32.
            box: ``(top, left, bottom, right)`` in pixels, ``0 <= top <= bottom <= H`` and ``0 <= left <= right <= W``.
        """

    # Dropout

    def new_random_state(self, seed):
        """Returns the state of a generator for :meth:`dropout_key`, (2,) uint64: seed and a counter of 0."""

    def dropout_key(self, state):
        """Returns the key (2,) uint64 of one dropout - a copy of ``state`` - and adds 1 to the counter in ``state``."""

    def dropout(self, x, ratio, key):
        """Returns ``x / (1 - ratio)``, any shape, with a share of ``ratio`` zeros; the gradient is the same of ``dy``.

        Element ``i`` (C order) stays if lane ``i % 4`` of Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers:
        as easy as 1, 2, 3") with the counter ``(i // 4, key[1])`` and the key ``key[0]``, each as two 32-bit words, low
        word first, is at least ``ratio * 2**32``, rounded down. The same on every backend.
        """

    def row_factors(self, count, ratio, key):
        """Returns :meth:`dropout` of ``count`` ones, (count,) float32: each is 0 or ``1 / (1 - ratio)``."""

    def scale_rows(self, x, factors):
        """Returns ``factors[n] * x[n]``, like x (N, ...), for factors (N,) float32; 0 times inf or NaN is NaN."""

    # Dtype and layout

    def cast(self, x, dtype):
        """Returns ``x`` (any shape, any storage dtype) rounded to ``dtype``; ``x`` itself if it has this dtype."""

    def to_nhwc(self, x, dtype, channels=None):
        """Returns x (N, C, H, W) as (N, H, W, C) in ``dtype``, with zeros up to ``channels`` if that is more."""

    def to_nchw(self, x, dtype, channels=None):
        """Returns x (N, H, W, C) as (N, C, H, W) in ``dtype``, only the first ``channels`` if that is less."""


NAMES = tuple([name for name, _ in inspect.getmembers(Primitives, inspect.isfunction) if not name.startswith("_")])
