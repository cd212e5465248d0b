"""Kinds of kernels: what a call of a primitive, or a function of Chainer's, is counted as.

They are those of the computation: the gradient of a transposed convolution is an ``fprop``, and so it is called.
"""

CONV_FPROP, CONV_DGRAD, CONV_WGRAD = "conv fprop", "conv dgrad", "conv wgrad"
BN_FORWARD, BN_BACKWARD = "BN forward", "BN backward"
LINEAR, POOLING, LOSS, ELEMENTWISE, LAYOUT = "linear", "pooling", "loss", "elementwise", "layout and dtype"
GRADIENT_SUM, UPDATE, OTHER = "gradient sum", "update", "other"
KINDS = (
    *(CONV_FPROP, CONV_DGRAD, CONV_WGRAD, BN_FORWARD, BN_BACKWARD, ELEMENTWISE, GRADIENT_SUM, POOLING, LINEAR, LOSS),
    *(LAYOUT, UPDATE, OTHER),
)


def _by_name(names):
    """Returns a dict from names to kinds; ``names`` has those of each kind, with spaces between them."""
    return {name: kind for kind, own in names.items() for name in own.split()}


_PRIMITIVES = _by_name(
    {
        CONV_FPROP: "conv_fprop conv_images",
        CONV_DGRAD: "conv_dgrad conv_images_backward deconv_fprop",
        CONV_WGRAD: "conv_wgrad",
        BN_FORWARD: "batch_norm batch_norm_inference dual_batch_norm batch_norm_max_pool",
        BN_BACKWARD: "batch_norm_backward batch_norm_inference_backward dual_batch_norm_backward "
        "batch_norm_max_pool_backward",
        ELEMENTWISE: "relu relu_backward add add_bias bias_grad mix_images scale_rows embed embed_backward",
        POOLING: "max_pool max_pool_backward average_pool average_pool_backward global_average_pool "
        "global_average_pool_backward",
        LINEAR: "linear linear_dgrad linear_wgrad recurrent recurrent_backward rows_wgrad",
        LOSS: "softmax_cross_entropy softmax_cross_entropy_backward binary_cross_entropy binary_cross_entropy_backward "
        "accuracy",
        LAYOUT: "cast to_nhwc to_nchw concat_rows pack_sequences unpack_sequences",
    }
)
_FUNCTIONS = _by_name(
    {
        CONV_FPROP: "Convolution2DFunction ConvolutionND",
        CONV_DGRAD: "Deconvolution2DFunction DeconvolutionND",  # what Chainer computes that gradient with, too
        CONV_WGRAD: "Convolution2DGradW ConvolutionNDGradW",
        BN_FORWARD: "BatchNormalization FixedBatchNormalization",
        BN_BACKWARD: "BatchNormalizationGrad FixedBatchNormalizationGrad",
        LINEAR: "LinearFunction LinearGradData LinearGradWeight",
    }
)
_MODULES = {
    "chainer.functions.activation.": ELEMENTWISE,
    "chainer.functions.math.basic_math": ELEMENTWISE,
    "chainer.functions.pooling.": POOLING,
    "chainer.functions.loss.": LOSS,
    "chainer.functions.array.": LAYOUT,
    "mixprec.functions.": LAYOUT,  # those that are no primitives
}


def of_primitive(name):
    """Returns the kind of a primitive; :data:`OTHER` for what is in no list, such as dropout."""
    return _PRIMITIVES.get(name, OTHER)


def of_function(cls):
    """Returns the kind of a function that computes by itself.

    Args:
        cls: class of a function or of a function node.
    """
    kind = _FUNCTIONS.get(cls.__name__)
    if kind is not None:
        return kind
    return next((kind for start, kind in _MODULES.items() if cls.__module__.startswith(start)), OTHER)
