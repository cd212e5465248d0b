"""Names of ``cupy.cudnn`` in Chainer's source that are never reached: for RNNs and the spatial transformer.

:mod:`mixprec.bridge.branches` makes Chainer take its own branches there.
"""

from mixprec.bridge.calls import NotBridged


def _not_bridged(name):
    def function(*arguments, **options):
        raise NotBridged(f"cupy.cudnn.{name} is not bridged to cuDNN 9; set chainer.config.use_cudnn to 'never' there")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = "Raises :class:`NotBridged`."
    return function


_NAMES = (
    "create_filter_descriptor create_rnn_descriptor create_spatial_transformer_descriptor create_tensor_descriptor "
    "create_tensor_nd_descriptor get_data_type get_handle get_rnn_lin_layer_bias_params "
    "get_rnn_lin_layer_matrix_params rnn_backward_data rnn_backward_weights rnn_forward_inference rnn_forward_training"
)
globals().update({name: _not_bridged(name) for name in _NAMES.split()})
