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

_PRIMITIVES = {
    "conv_fprop": CONV_FPROP,
    "deconv_fprop": CONV_DGRAD,
    "conv_dgrad": CONV_DGRAD,
    "conv_wgrad": CONV_WGRAD,
    "batch_norm": BN_FORWARD,
    "batch_norm_inference": BN_FORWARD,
    "batch_norm_backward": BN_BACKWARD,
    "batch_norm_inference_backward": BN_BACKWARD,
    "relu": ELEMENTWISE,
    "relu_backward": ELEMENTWISE,
    "add": ELEMENTWISE,
    "add_bias": ELEMENTWISE,
    "bias_grad": ELEMENTWISE,
    "max_pool": POOLING,
    "max_pool_backward": POOLING,
    "average_pool": POOLING,
    "average_pool_backward": POOLING,
    "global_average_pool": POOLING,
    "global_average_pool_backward": POOLING,
    "linear": LINEAR,
    "linear_dgrad": LINEAR,
    "linear_wgrad": LINEAR,
    "softmax_cross_entropy": LOSS,
    "softmax_cross_entropy_backward": LOSS,
    "binary_cross_entropy": LOSS,
    "binary_cross_entropy_backward": LOSS,
    "mix_images": ELEMENTWISE,
    "scale_rows": ELEMENTWISE,
    "mean_of_counted": LOSS,
    "accuracy": LOSS,
    "cast": LAYOUT,
    "to_nhwc": LAYOUT,
    "to_nchw": LAYOUT,
}
_FUNCTIONS = {
    "Convolution2DFunction": CONV_FPROP,
    "ConvolutionND": CONV_FPROP,
    "Deconvolution2DFunction": CONV_DGRAD,  # also what Chainer computes that gradient with
    "DeconvolutionND": CONV_DGRAD,
    "Convolution2DGradW": CONV_WGRAD,
    "ConvolutionNDGradW": CONV_WGRAD,
    "BatchNormalization": BN_FORWARD,
    "FixedBatchNormalization": BN_FORWARD,
    "BatchNormalizationGrad": BN_BACKWARD,
    "FixedBatchNormalizationGrad": BN_BACKWARD,
    "LinearFunction": LINEAR,
    "LinearGradData": LINEAR,
    "LinearGradWeight": LINEAR,
}
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
