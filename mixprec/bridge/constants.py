"""The module at ``cupy.cuda.cudnn``: the values of cudnn.h that Chainer passes to ``cupy.cudnn``, and the version.

Imports nothing: Chainer's modules read it while Chainer is being imported.
"""

# cudnnTensorFormat_t
CUDNN_TENSOR_NCHW = 0
CUDNN_TENSOR_NHWC = 1

# cudnnPoolingMode_t
CUDNN_POOLING_MAX = 0
CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING = 1
CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING = 2
CUDNN_POOLING_MAX_DETERMINISTIC = 3

# cudnnActivationMode_t
CUDNN_ACTIVATION_SIGMOID = 0
CUDNN_ACTIVATION_RELU = 1
CUDNN_ACTIVATION_TANH = 2
CUDNN_ACTIVATION_CLIPPED_RELU = 3

# cudnnSoftmaxAlgorithm_t
CUDNN_SOFTMAX_FAST = 0
CUDNN_SOFTMAX_ACCURATE = 1
CUDNN_SOFTMAX_LOG = 2

# cudnnBatchNormMode_t
CUDNN_BATCHNORM_PER_ACTIVATION = 0
CUDNN_BATCHNORM_SPATIAL = 1
CUDNN_BATCHNORM_SPATIAL_PERSISTENT = 2

CUDNN_BN_MIN_EPSILON = 0.0  # 1e-5 before cuDNN 7.5

# cudnnRNNMode_t
CUDNN_RNN_RELU = 0
CUDNN_RNN_TANH = 1
CUDNN_LSTM = 2
CUDNN_GRU = 3

# cudnnDirectionMode_t
CUDNN_UNIDIRECTIONAL = 0
CUDNN_BIDIRECTIONAL = 1

# cudnnRNNInputMode_t
CUDNN_LINEAR_INPUT = 0

# cudnnSamplerType_t
CUDNN_SAMPLER_BILINEAR = 0


def getVersion():
    """Returns the version of cuDNN as an int, e.g. 92800 for 9.28.0; Chainer checks whether it is at least 7000.

    Raises:
        CudnnMissing: cuDNN or its frontend is not installed.
    """
    from mixprec.base import cudnn_library

    return int(cudnn_library.load().backend_version())


def __getattr__(name):
    raise AttributeError(f"cupy.cuda.cudnn has mixprec's constants and getVersion() of cuDNN 9, but no {name!r}")
