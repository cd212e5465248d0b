"""Names of ``cupy.cudnn`` that Chainer's source has and never reaches: RNN and spatial transformer.

:mod:`mixprec.bridge.branches` has Chainer take its own branches there.
"""

from mixprec.bridge.calls import NotBridged


def _not_bridged(name):
    def function(*arguments, **options):
        raise NotBridged(f"cupy.cudnn.{name} is not bridged to cuDNN 9; set chainer.config.use_cudnn to 'never' there")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = "Raises :class:`NotBridged`."
    return function


create_rnn_descriptor = _not_bridged("create_rnn_descriptor")
create_spatial_transformer_descriptor = _not_bridged("create_spatial_transformer_descriptor")
get_handle = _not_bridged("get_handle")
get_rnn_lin_layer_bias_params = _not_bridged("get_rnn_lin_layer_bias_params")
get_rnn_lin_layer_matrix_params = _not_bridged("get_rnn_lin_layer_matrix_params")
rnn_backward_data = _not_bridged("rnn_backward_data")
rnn_backward_weights = _not_bridged("rnn_backward_weights")
rnn_forward_inference = _not_bridged("rnn_forward_inference")
rnn_forward_training = _not_bridged("rnn_forward_training")
