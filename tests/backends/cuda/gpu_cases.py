"""What the tests on a GPU compute: shapes of convolutions, and a call of every primitive."""

import numpy as np

from mixprec.backends.geometry import BatchNorm, Convolution, LocalResponseNorm, Normalized, Pooling, Saved
from mixprec.backends.recurrence import GATES, Recurrence
from tests.backends.primitive_cases import FLOAT32, arrays, convolved_and_normalized, labels

_SAME, _HALVING = Convolution(pad=(1, 1)), Convolution((2, 2), (1, 1))
_STEM = Convolution((2, 2), (3, 3))

# (convolution, (N, H, W, C), (K, R, S, C / groups))
SMALL = {
    "3x3": (_SAME, (2, 6, 5, 16), (24, 3, 3, 16)),
    "1x1": (Convolution(), (3, 5, 7, 16), (8, 1, 1, 16)),
    "3x3/2": (_HALVING, (2, 9, 8, 16), (16, 3, 3, 16)),
    "1x1/2": (Convolution((2, 2)), (2, 7, 6, 16), (8, 1, 1, 16)),
    "3 channels": (_STEM, (2, 21, 20, 3), (16, 7, 7, 3)),
    "3 of 4 channels": (_STEM, (2, 21, 20, 4), (16, 7, 7, 3)),
    "channels no multiple of 8": (_SAME, (2, 7, 6, 12), (20, 3, 3, 12)),
    "5 to 7 channels": (Convolution((2, 1), (1, 2), (1, 2)), (2, 9, 8, 5), (7, 3, 3, 5)),
    "1 channel": (Convolution(pad=(2, 2)), (2, 8, 8, 1), (8, 5, 5, 1)),
    "dilation": (Convolution(pad=(2, 2), dilation=(2, 2)), (1, 9, 9, 16), (16, 3, 3, 16)),
    "stride 3, not square": (Convolution((3, 1), (0, 2)), (2, 10, 7, 8), (16, 2, 5, 8)),
    "groups": (Convolution(pad=(1, 1), groups=4), (2, 6, 6, 32), (32, 3, 3, 8)),
    "depthwise": (Convolution(pad=(1, 1), groups=16), (2, 7, 6, 16), (16, 3, 3, 1)),
    "one pixel": (_SAME, (3, 1, 1, 8), (16, 3, 3, 8)),
    "one row": (Convolution(), (1, 1, 1, 8), (8, 1, 1, 8)),
}
_BATCH = 4
# Those of ResNet-50 v1.5: (size of the image, C, K, filter, stride).
_RESNET50 = [
    (224, 4, 64, 7, 2),
    *[(56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1), (56, 256, 64, 1, 1), (56, 256, 128, 1, 1)],
    *[(56, 128, 128, 3, 2), (56, 256, 512, 1, 2), (28, 128, 512, 1, 1), (28, 512, 128, 1, 1), (28, 128, 128, 3, 1)],
    *[(28, 512, 256, 1, 1), (28, 256, 256, 3, 2), (28, 512, 1024, 1, 2), (14, 256, 1024, 1, 1), (14, 1024, 256, 1, 1)],
    *[(14, 256, 256, 3, 1), (14, 1024, 512, 1, 1), (14, 512, 512, 3, 2), (14, 1024, 2048, 1, 2), (7, 512, 2048, 1, 1)],
    *[(7, 2048, 512, 1, 1), (7, 512, 512, 3, 1)],
]


def _resnet50(size, c, k, filter_size, stride):
    convolution = Convolution((stride,) * 2, (filter_size // 2,) * 2)
    return convolution, (_BATCH, size, size, c), (k, filter_size, filter_size, 3 if c == 4 else c)


RESNET50 = {f"{n}x{n}x{c} to {k}, {r}x{r}/{s}": _resnet50(n, c, k, r, s) for n, c, k, r, s in _RESNET50}
# A few of them for the other dtypes, and what ResNeXt-50 and MobileNet have.
REST = {
    **{name: RESNET50[name] for name in list(RESNET50)[:5:2] + list(RESNET50)[6:8] + list(RESNET50)[-1:]},
    "32 groups": (Convolution(pad=(1, 1), groups=32), (_BATCH, 28, 28, 256), (256, 3, 3, 8)),
    "32 groups/2": (Convolution((2, 2), (1, 1), groups=32), (_BATCH, 28, 28, 512), (512, 3, 3, 16)),
    "many channels, depthwise": (Convolution(pad=(1, 1), groups=128), (_BATCH, 28, 28, 128), (128, 3, 3, 1)),
}
CONVOLUTIONS = {**SMALL, **RESNET50, **REST}

BATCH_NORMS = {
    "images": (2, 3, 3, 16),
    "rows": (5, 24),
    "two rows": (2, 8),
    "channels no multiple of 8": (2, 5, 3, 12),
    "one channel": (3, 5, 7, 1),
}
LARGE_BATCH_NORMS = {
    "56x56x64": (_BATCH, 56, 56, 64),
    "28x28x512": (_BATCH, 28, 28, 512),
    "7x7x2048": (_BATCH, 7, 7, 2048),
}


def every_primitive(p, put, dtype, size, filters):
    """Calls every primitive, some of them in several ways.

    Args:
        p: :class:`~mixprec.backends.primitives.Primitives`.
        put: function that copies an array, a tuple of arrays, or ``None`` to its device.
        dtype: the storage dtype.
        size: (N, H, W, C) of images.
        filters: number of filters.

    Yields:
        a name, and a function that calls it with the same values each time and returns a tuple of arrays.
    """
    rng = np.random.default_rng(0)
    channels = size[3]
    out = *size[:3], filters
    x, dx = put(tuple(arrays(rng, (2, *size), dtype)))
    y, dy = put(tuple(arrays(rng, (2, *out), dtype)))
    w = put(arrays(rng, (filters, 3, 3, channels), dtype, (9 * channels) ** -0.5))
    b = put(arrays(rng, filters, dtype))
    gamma, beta, mean = put(tuple(arrays(rng, (3, channels), FLOAT32)))
    variance = put(np.exp(arrays(rng, channels, FLOAT32)))
    ones = put(tuple(np.ones((2, filters), np.float32)))
    sums = put(np.stack([np.zeros(channels), np.full(channels, np.prod(size[:3]))]).astype(np.float32))
    plain, relu = BatchNorm(), BatchNorm(relu=True)
    rows = put(arrays(rng, (33, channels), dtype))
    matrix = put(arrays(rng, (filters, channels), dtype))
    outputs = put(arrays(rng, (33, filters), dtype))
    t = put(labels(rng, 33, filters, -1))
    pooling, of_means = Pooling((3, 3), (2, 2), (1, 1)), Pooling((3, 2), (2, 1), (1, 0))
    weight = put(rng.uniform(0.5, 2, filters).astype(np.float32))
    factors = put(np.where(np.arange(size[0]) % 3, 1.25, 0).astype(np.float32))
    losses, log_z = put(tuple(arrays(rng, (2, 33), FLOAT32)))
    where = put(rng.integers(0, 9, (size[0], *pooling.out_size(size[1:3]), channels)).astype(np.uint8))
    small = put(arrays(rng, where.shape, dtype))
    of_mean = put(arrays(rng, (size[0], *of_means.out_size(size[1:3]), channels), dtype))
    of_image = put(arrays(rng, (size[0], channels), dtype))
    pixels = put(arrays(rng, (2, 8, 6, 3), FLOAT32))
    filters_of_pixels = put(arrays(rng, (8, 7, 7, 3), dtype, 0.1))
    planes = put(arrays(rng, (size[0], 3, *size[1:3]), FLOAT32))

    def first_convolution():
        form = p.conv_form(pixels.shape, filters_of_pixels.shape, np.dtype(dtype), _STEM)
        images = p.conv_images(pixels, form, dtype)
        found = p.conv_fprop(images, filters_of_pixels, form)
        gradients = p.conv_dgrad(found, filters_of_pixels, form, images.shape)
        return (
            found,
            p.conv_images_backward(gradients, form, pixels.shape, pixels.dtype),
            p.conv_wgrad(images, found, form, filters_of_pixels.shape),
        )

    yield "conv_form, conv_images", first_convolution
    yield "conv_fprop", lambda: (p.conv_fprop(x, w, _SAME),)
    yield "conv_fprop, bias and ReLU", lambda: (p.conv_fprop(x, w, _SAME, b, relu=True),)
    yield "conv_fprop, statistics", lambda: p.conv_fprop(x, w, _SAME, statistics=True)
    yield "conv_dgrad", lambda: (p.conv_dgrad(dy, w, _SAME, size),)
    yield "add", lambda: (p.add(x, dx),)
    yield "relu", lambda: (p.relu(x),)
    yield "relu_backward", lambda: (p.relu_backward(dx, x),)
    yield "conv_wgrad", lambda: (p.conv_wgrad(x, dy, _SAME, w.shape),)
    yield "deconv_fprop", lambda: (p.deconv_fprop(dy, w, _SAME, size, gamma),)

    def normalized(attributes, add, factors=None):
        def call():
            running = put(tuple(np.ones((2, channels), np.float32)))
            found, saved = p.batch_norm(x, gamma, beta, running, attributes, add=dx if add else None, factors=factors)
            found = [found, *saved[:2], *running]
            for plus in (None, x):
                *gradients, dadd = p.batch_norm_backward(
                    dx, x, gamma, beta, saved, attributes, add=add, plus=plus, factors=factors
                )
                found += [*gradients, dadd] if add else gradients
            return tuple(found)

        return call

    for attributes, name in ((plain, ""), (relu, " and ReLU")):
        for add in (False, True):
            kind = f"batch_norm{', addition' * add}{name}"
            yield f"{kind}, with batch_norm_backward", normalized(attributes, add)
    yield "batch_norm, factors and ReLU, with batch_norm_backward", normalized(relu, True, factors)
    yield "batch_norm, sums", lambda: p.batch_norm(x, gamma, beta, None, plain, sums=sums)[:1]

    def dual():
        one, other = (Normalized(x, gamma, beta, None, relu, sums), Normalized(dx, gamma, mean, None, plain))
        found, saved = p.dual_batch_norm(one, other)
        of_one, of_other, gradient = p.dual_batch_norm_backward(dx, one, other, saved, plus=x)
        return found, *of_one, *of_other, gradient

    yield "dual_batch_norm, with dual_batch_norm_backward", dual
    yield "batch_norm_part", lambda: (p.batch_norm_part(x),)
    given = gamma, beta, mean, variance
    yield "batch_norm_inference", lambda: (p.batch_norm_inference(x, *given, relu, add=dx),)
    yield (
        "batch_norm_inference_backward",
        lambda: p.batch_norm_inference_backward(dx, x, *given, relu, y=p.batch_norm_inference(x, *given, relu, add=dx)),
    )

    def convolution_and_batch_norm():
        z, normal, saved = convolved_and_normalized(p, x, w, _SAME, *ones, None, relu, y)
        return z, normal, saved.mean, saved.invstd

    yield "convolution and batch_norm", convolution_and_batch_norm

    def normalized_and_pooled():
        one = Normalized(x, gamma, beta, put(tuple(np.ones((2, channels), np.float32))), relu)
        *found, saved = p.batch_norm_max_pool(one, pooling)
        gradients = [
            gradient
            for plus in (None, small)
            for gradient in p.batch_norm_max_pool_backward(small, found[1], one, saved, pooling, plus=plus)
        ]
        return *found, *saved[:2], *one.running, *gradients

    yield "batch_norm_max_pool, with batch_norm_max_pool_backward", normalized_and_pooled
    of_sums = Normalized(x, gamma, beta, None, relu, sums)
    yield "batch_norm_max_pool, sums", lambda: p.batch_norm_max_pool(of_sums, pooling)[:2]

    yield "max_pool", lambda: p.max_pool(x, pooling)
    yield "max_pool_backward", lambda: (p.max_pool_backward(small, where, pooling, size),)
    yield "average_pool", lambda: (p.average_pool(x, of_means),)
    yield "average_pool_backward", lambda: (p.average_pool_backward(of_mean, of_means, size),)
    yield "global_average_pool", lambda: (p.global_average_pool(x),)
    yield "global_average_pool_backward", lambda: (p.global_average_pool_backward(of_image, size),)

    of_window = LocalResponseNorm(beta=0.6)
    yield "local_response_norm", lambda: (p.local_response_norm(x, LocalResponseNorm()),)
    yield "local_response_norm, another power", lambda: (p.local_response_norm(x, of_window),)
    yield "local_response_norm_backward", lambda: (p.local_response_norm_backward(dx, x, of_window),)

    def added(function, shape):
        def call():
            out = put(np.ones(shape, np.float32))
            function(out)
            return (out,)

        return call

    size_of_patch = 9 * channels + 1
    yield (
        "patch_moments",
        added(lambda out: p.patch_moments(x, _SAME, (3, 3), out, bias=True), (1, size_of_patch, size_of_patch)),
    )
    yield "patch_moments, 1x1", added(lambda out: p.patch_moments(x, Convolution(), (1, 1), out), (1, *2 * (channels,)))
    yield "row_moments", added(lambda out: p.row_moments(dy, out), (2, *2 * (filters // 2,)))
    saved = Saved(mean, variance)
    yield (
        "scale_moments",
        added(lambda out: p.scale_moments(dx, x, gamma, beta, saved, out, relu=True), (3, channels)),
    )
    shifts = put(np.array([0.5, 2], np.float32))
    for rows_of_inverse in (33, 70):  # in one launch, and by blocks
        vectors = arrays(rng, (2, rows_of_inverse, 100), np.float32)
        symmetric = put(vectors @ vectors.transpose(0, 2, 1))
        yield (
            f"inverses, {rows_of_inverse}",
            added(lambda out, symmetric=symmetric: p.inverses(symmetric, shifts, out), symmetric.shape),
        )
    left, right = put(arrays(rng, (2, 5, 7), np.float32)), put(arrays(rng, (2, 7, 4), np.float32))
    yield "products", lambda: (p.products(left, right),)

    def recurred(kind, reverse):
        layer = Recurrence(kind, 9, (8, 8, 5), reverse, interleaved=kind == "lstm" and reverse)
        gates, units = layer.gates, 12
        shapes = (21, channels), (gates * units, channels), (gates * units, units), (21, units), (9, units), (9, units)
        given, w, u, gradient, h, c = (put(arrays(rng, shape, dtype, 0.3)) for shape in shapes)
        biases = put(tuple(arrays(rng, (2, gates * units), FLOAT32)))

        def call():
            y, *last, saved = p.recurrent(given, w, u, biases, h, c if kind == "lstm" else None, layer)
            found = p.recurrent_backward(gradient, h, c if kind == "lstm" else None, w, u, y, saved, layer)
            return tuple(each for each in (y, *last, *saved, *found) if each is not None)

        return call

    for kind in GATES:
        for reverse in (False, True):
            yield f"recurrent and recurrent_backward, {kind}, reverse: {reverse}", recurred(kind, reverse)
    yield "rows_wgrad", lambda: (p.rows_wgrad(rows, outputs), p.rows_wgrad(rows[:, 1:], outputs[:, :3]))
    sequences = rows[:9], rows[9:10], rows[10:]
    yield "pack_sequences", lambda: (p.pack_sequences(sequences, (2, 0, 1)),)
    yield "unpack_sequences", lambda: tuple(p.unpack_sequences(rows, (9, 1, 23), (2, 0, 1)))

    yield "linear", lambda: (p.linear(rows, matrix, b),)
    yield "linear_dgrad", lambda: (p.linear_dgrad(outputs, matrix),)
    yield "linear_wgrad", lambda: (p.linear_wgrad(rows, outputs),)
    yield "bias_grad", lambda: (p.bias_grad(dy, FLOAT32),)
    yield "add_bias", lambda: (p.add_bias(y, b),)

    yield "concat_rows", lambda: (p.concat_rows([rows, rows[:7]]), p.concat_rows([t, t]))
    yield "embed", lambda: (p.embed(matrix, t, -1), p.embed(matrix, t))
    yield "embed_backward", lambda: (p.embed_backward(rows, t, filters, -1), p.embed_backward(rows, t, filters))

    yield ("softmax_cross_entropy", lambda: p.softmax_cross_entropy(outputs, t, class_weight=weight, smoothing=0.1)[:2])
    yield (
        "softmax_cross_entropy_backward",
        lambda: (p.softmax_cross_entropy_backward(losses, outputs, t, log_z, class_weight=weight, smoothing=0.1),),
    )
    mixed = put(np.arange(len(t), dtype=np.int32) % 2), put(np.array(0.3, np.float32))
    yield "softmax_cross_entropy of mixed images", lambda: p.softmax_cross_entropy(outputs, t, mixed=mixed)[:2]
    yield (
        "softmax_cross_entropy_backward of mixed images",
        lambda: (p.softmax_cross_entropy_backward(losses, outputs, t, log_z, mixed=mixed),),
    )
    yield "binary_cross_entropy", lambda: p.binary_cross_entropy(outputs, t, smoothing=0.1, mixed=mixed)[:1]
    yield (
        "binary_cross_entropy_backward",
        lambda: (p.binary_cross_entropy_backward(losses, outputs, t, threshold=0.2, mixed=mixed),),
    )
    yield "mix_images", lambda: (p.mix_images(x, 0.3, (0, 1, 2, 3)),)
    yield (
        "the means of losses",
        lambda: (
            *p.softmax_cross_entropy(outputs, t, divisor=0)[-1],
            *p.binary_cross_entropy(outputs, t, divisor=8)[-1],
        ),
    )
    yield "accuracy", lambda: (p.accuracy(outputs, t, ignore_label=-1), p.accuracy(outputs, t, top=5))

    def dropout():
        state = p.new_random_state(3)
        key = p.dropout_key(state)
        return state, key, p.dropout(x, 0.3, key), p.row_factors(9, 0.3, key), *p.dropout_next(x, 0.3, state)

    yield "new_random_state, dropout_key, dropout, row_factors, dropout_next", dropout
    yield "scale_rows", lambda: (p.scale_rows(x, factors),)
    yield "cast", lambda: tuple(p.cast(x, other) for other in (np.dtype(np.float16), FLOAT32))
    yield "to_nhwc", lambda: (p.to_nhwc(planes, dtype, 4),)
    yield "to_nchw", lambda: (p.to_nchw(x, FLOAT32),)
