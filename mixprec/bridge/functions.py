"""The functions of ``cupy.cudnn`` that Chainer 7.8.1 and ChainerMN use, with the signatures of CuPy 7 to 13."""

from mixprec.bridge.batch_norm import (
    batch_normalization_backward,
    batch_normalization_forward_inference,
    batch_normalization_forward_training,
    batch_normalization_forward_training_ex,
)
from mixprec.bridge.constants import getVersion
from mixprec.bridge.convolution import (
    convolution_backward_data,
    convolution_backward_filter,
    convolution_forward,
)
from mixprec.bridge.descriptors import (
    Descriptor,
    create_activation_descriptor,
    create_convolution_descriptor,
    create_filter_descriptor,
    create_pooling_descriptor,
    create_tensor_descriptor,
    create_tensor_nd_descriptor,
    create_uninitialized_tensor_descriptor,
    get_data_type,
)
from mixprec.bridge.dropout import DropoutStates
from mixprec.bridge.not_bridged import (
    create_rnn_descriptor,
    create_spatial_transformer_descriptor,
    get_handle,
    get_rnn_lin_layer_bias_params,
    get_rnn_lin_layer_matrix_params,
    rnn_backward_data,
    rnn_backward_weights,
    rnn_forward_inference,
    rnn_forward_training,
)
from mixprec.bridge.pooling_activation import (
    activation_backward,
    activation_forward,
    pooling_backward,
    pooling_forward,
    softmax_backward,
    softmax_forward,
)
from mixprec.bridge.switches import (
    get_max_workspace_size,
    is_tensor_core_available,
    set_max_workspace_size,
)

__all__ = [
    "Descriptor",
    "DropoutStates",
    "activation_backward",
    "activation_forward",
    "batch_normalization_backward",
    "batch_normalization_forward_inference",
    "batch_normalization_forward_training",
    "batch_normalization_forward_training_ex",
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_forward",
    "create_activation_descriptor",
    "create_convolution_descriptor",
    "create_filter_descriptor",
    "create_pooling_descriptor",
    "create_rnn_descriptor",
    "create_spatial_transformer_descriptor",
    "create_tensor_descriptor",
    "create_tensor_nd_descriptor",
    "create_uninitialized_tensor_descriptor",
    "getVersion",
    "get_data_type",
    "get_handle",
    "get_max_workspace_size",
    "get_rnn_lin_layer_bias_params",
    "get_rnn_lin_layer_matrix_params",
    "is_tensor_core_available",
    "pooling_backward",
    "pooling_forward",
    "rnn_backward_data",
    "rnn_backward_weights",
    "rnn_forward_inference",
    "rnn_forward_training",
    "set_max_workspace_size",
    "softmax_backward",
    "softmax_forward",
]
