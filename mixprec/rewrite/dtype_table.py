"""The table of Chainer's functions: in which dtype each is computed in a converted model.

It acts on function nodes, by the name of their class: whatever a model writes - ``F.sum(x)``, ``x.sum()``, ``x @ W``,
``h + x``, a link - comes to nodes in the end. A function that is made of several nodes is computed as these are, except
those that :func:`mixprec.rewrite.dispatch.compute_whole` computes as a whole. Each node of Chainer 7.8.1 stands in one
set; ``tests/rewrite/test_dtype_table.py`` sees to that.

The choice depends on whether elements are summed or multiplied up. A sum of float16 numbers may be larger than 65,504
though all of them are small, and each addition would round. So all sums are accumulated in float32. Functions in
:data:`FLOAT32` return float32, since the result may not fit into float16. Functions in :data:`FLOAT32_INSIDE` return
values in the range of their inputs, such as averages, and round them. Elementwise functions stay as narrow as their
inputs: ``x * x`` is inf where it does not fit, like a product of matrices.

A gradient has the dtype of its variable. Where it is a sum, as for a slice, it is accumulated in float32 and rounded
once (:mod:`mixprec.functions.widening`).
"""

# Products of matrices: inputs and results in the compute dtype, accumulated in float32.
COMPUTE = {
    *("BatchMatMul", "BilinearFunction", "MatMul", "SimplifiedDropconnect", "TensorDot"),
    *("Convolution2DFunction", "ConvolutionND", "Deconvolution2DFunction", "DeconvolutionND"),
    *("EmbedIDFunction", "LinearFunction", "LocalConvolution2DFunction"),
}

# Sums, products, exponentials, logarithms, decompositions: the result may be far larger than the inputs.
FLOAT32 = {
    *("BatchL2NormSquared", "Mean", "ScatterAdd", "Sum", "SumTo"),
    *("Cumprod", "Cumsum", "FFT", "LogSoftmax", "LogSumExp", "Prod"),
    *("BatchDet", "BatchInv", "Cholesky", "Inv", "TriangularInv"),
    *("Cosh", "Exp", "Expm1", "Gaussian", "PowConstVar", "PowVarConst", "PowVarVar", "Sinh"),
    *("LGamma", "Log", "Log10", "Log1p", "Log2", "LogNdtr"),
    "SpatialTransformerGrid",  # positions among pixels: float16 is too coarse
    "BinaryHierarchicalSoftmaxFunction",
}
# Losses and metrics that are in no other set.
FLOAT32_PACKAGES = ("chainer.functions.loss.", "chainer.functions.evaluation.")

# Normalizations, averages and interpolations: the result is as large as the inputs.
FLOAT32_INSIDE = {
    *("BatchRenormalizationFunction", "DecorrelatedBatchNormalization", "FixedDecorrelatedBatchNormalization"),
    *("GroupNormalization", "LayerNormalization", "LocalResponseNormalization", "NormalizeL2"),
    *("PReLUFunction", "Softmax"),
    *("AveragePooling2D", "AveragePoolingND", "ResizeImages", "SpatialTransformerSampler"),
    "CooMatMul",  # SciPy and atomic additions do not support float16
    # Regions overlap: gradients add up, in the dtype of the input.
    *("ROIAverageAlign2D", "ROIAveragePooling2D", "ROIMaxAlign2D", "ROIMaxPooling2D", "ROIPooling2D"),
}

# Float32 if their attributes say that they add up: over an index, or where windows overlap. Otherwise as elementwise.
FLOAT32_IF_ADDING = {"DiagEinSum", "EinSum", "Unpooling2D", "UnpoolingND", "Upsampling2D"}

# Batch norm mixes float16 activations and float32 parameters by itself; casts do what they say.
AS_IT_IS = {"BatchNormalization", "Cast", "FixedBatchNormalization"}

# Each element by itself, or with the element at the same index of the other inputs.
ELEMENTWISE = {
    *("CReLU", "ClippedReLU", "ELU", "HardSigmoid", "LeakyReLU", "RReLU", "ReLU"),
    *("Sigmoid", "Softplus", "Swish", "Tanh"),
    *("Absolute", "Add", "AddConstant", "Div", "DivFromConstant", "Mul", "MulConstant", "MultiAdd", "Neg", "Sub"),
    *("SubFromConstant", "Clip", "Fmod", "LinearInterpolate", "Maximum", "Minimum", "Sqrt", "RsqrtGPU", "Square"),
    *("Arccos", "Arcsin", "Arctan", "Arctan2", "Arctanh", "Cos", "Sin", "Tan"),
    *("DiGamma", "Erf", "ErfInv", "Erfc", "ErfcInv", "Erfcx", "Ndtr", "Ndtri", "PolyGamma", "Zeta"),
    *("BernoulliLogProb", "LaplaceCDF", "LaplaceICDF", "ModifiedXLogX"),
    *("Dropout", "Zoneout"),
    *("LSTM", "SLSTM", "TreeLSTM"),
}

# Elements are copied, moved or chosen; the gradient of an element that is copied several times is a sum.
MOVING = {
    *("AsLayout", "AsStrided", "Broadcast", "BroadcastTo", "Copy", "ExpandDims", "Identity", "Reshape", "Squeeze"),
    *("Flip", "FlipLR", "FlipUD", "Moveaxis", "Permutate", "Rollaxis", "Swapaxes", "Transpose", "TransposeSequence"),
    *("Concat", "Dstack", "Hstack", "Separate", "SplitAxis", "Stack", "Vstack"),
    *("Diagonal", "GetItem", "SelectItem", "Where"),
    *("Depth2Space", "Im2Col", "Pad", "PadSequence", "Repeat", "Shift", "Space2Depth", "Tile"),
    *("ArgMax", "ArgMin", "Max", "Min", "MaxPoolingND", "MaxPoolingNDWithIndexes"),
}

# Applied by backward passes, and so in a converted model only if it differentiates while it runs forward.
BACKWARD = {
    *("AbsoluteGrad", "ArccosGrad", "ArcsinGrad", "Arctan2Grad", "ArctanGrad", "ClipGrad", "ClippedReLUGrad2"),
    *("ClippedReLUGrad3", "CosGrad", "DivFromConstantGrad", "DivGrad", "ELUGrad", "HardSigmoidGrad", "LSTMGrad"),
    *("LinearInterpolateGrad", "LogSoftmaxGrad", "MaximumGrad", "MinimumGrad", "PReLUFunctionGrad", "PowConstVarGrad"),
    *("PowVarConstGrad", "PowVarVarGrad", "ReLUGrad2", "ReLUGradCudnn", "SLSTMGrad", "SigmoidGrad", "SinGrad"),
    *("SoftplusGrad", "SwishGrad", "TanhGrad", "_LeakyReLUGrad", "_RReLUGrad", "_SoftmaxGrad"),
    *("AsStridedGrad", "Assign", "DiagonalGrad", "GetItemGrad", "Im2ColGrad", "RepeatGrad", "ResizeImagesGrad"),
    *("BatchL2NormSquaredGrad", "BatchMatMulGrad", "BilinearFunctionGrad", "CooMatMulGradSP", "Cumprodsum"),
    *("Convolution2DGradW", "ConvolutionNDGradW", "EmbedIDGrad", "LinearGradData", "LinearGradWeight"),
    *("BatchNormalizationGrad", "DecorrelatedBatchNormalizationGrad", "FixedBatchNormalizationGrad"),
    *("FixedDecorrelatedBatchNormalizationGrad", "LocalResponseNormalizationGrad"),
    *("_MulInvStd", "_ScaleShiftGrad", "_SetItemZero", "_XHat", "_XHatGrad"),
    *("AveragePooling2DGrad", "AveragePoolingNDGrad", "MaxPoolingNDGrad", "ROIPooling2DGrad"),
    *("Unpooling2DGrad", "UnpoolingNDGrad", "Upsampling2DGrad", "DropoutGrad", "DropoutGradCuDNN"),
}

# They run other code's functions, or cuDNN runs them as a whole and accumulates in float32.
OTHERS = {
    *("Forget", "FunctionAdapter", "StaticScheduleFunction", "TheanoFunction"),
    *("CudnnRNNWeightConcat", "NStepBiGRU", "NStepBiLSTM", "NStepBiRNNReLU", "NStepBiRNNTanh"),
    *("NStepGRU", "NStepLSTM", "NStepRNNReLU", "NStepRNNTanh"),
}
