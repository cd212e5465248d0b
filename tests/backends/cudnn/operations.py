"""Operations of cuDNN from shapes, for tests, and how they run on the stand-in."""

import numpy as np

from mixprec.backends.cudnn.operation import Operation, Tensor

STATISTICS = ("mean", "invstd", "next_mean", "next_var")


def _operation(kind, inputs, outputs, **attributes):
    return Operation(kind, tuple(inputs), tuple(outputs), tuple(sorted(attributes.items())))


def _output_shape(x, w, convolution):
    return (x[0], *convolution.out_size(x[1:3], w[1:3]), w[0])


def _geometry(convolution):
    return dict(vars(convolution))


def conv_fprop(x, w, convolution, dtype, *, b=None, relu=False, sums=False):
    """``b`` is ``None`` or the dtype of the bias."""
    k = w[:1]
    inputs = [Tensor("x", x, dtype), Tensor("w", w, dtype)]
    inputs += [Tensor("b", k, b)] if b else []
    outputs = [Tensor("y", _output_shape(x, w, convolution), dtype)]
    outputs += [Tensor(name, k, "float32") for name in ("sum", "square_sum")] if sums else []
    return _operation("conv_fprop", inputs, outputs, relu=relu, **_geometry(convolution))


def conv_dgrad(x, w, convolution, dtype):
    inputs = [Tensor("dy", _output_shape(x, w, convolution), dtype), Tensor("w", w, dtype)]
    return _operation("conv_dgrad", inputs, [Tensor("dx", x, dtype)], **_geometry(convolution))


def conv_wgrad(x, w, convolution, dtype):
    dy = Tensor("dy", _output_shape(x, w, convolution), dtype)
    return _operation("conv_wgrad", [Tensor("x", x, dtype), dy], [Tensor("dw", w, dtype)], **_geometry(convolution))


def batch_norm(x, dtype, *, relu=False, add=False, eps=1e-5, momentum=0.1):
    names = ("gamma", "beta", "running_mean", "running_var")
    inputs = [Tensor("x", x, dtype), *(Tensor(name, x[-1:], "float32") for name in names)]
    inputs += [Tensor("add", x, dtype)] if add else []
    outputs = [Tensor("y", x, dtype), *(Tensor(name, x[-1:], "float32") for name in STATISTICS)]
    outputs += [Tensor("mask", x, "boolean")] if add and relu else []
    return _operation("batch_norm", inputs, outputs, relu=relu, eps=eps, momentum=momentum)


def batch_norm_backward(x, dtype, *, relu=False, add=False):
    """With a ReLU: recomputed without an addition, and from the mask with one."""
    inputs = [Tensor("dy", x, dtype), Tensor("x", x, dtype)]
    inputs += [Tensor(name, x[-1:], "float32") for name in ("gamma", "mean", "invstd")]
    outputs = [Tensor("dx", x, dtype), *(Tensor(name, x[-1:], "float32") for name in ("dgamma", "dbeta"))]
    if relu and add:
        inputs.append(Tensor("mask", x, "boolean"))
        outputs.append(Tensor("dadd", x, dtype))
    elif relu:
        inputs.append(Tensor("beta", x[-1:], "float32"))
    return _operation("batch_norm_backward", inputs, outputs)


def arrays(operation):
    """Returns arrays for all tensors of an operation by name; outputs hold 7."""
    random = np.random.RandomState(0)
    found = {t.name: random.uniform(0.5, 1, t.shape).astype(t.dtype) for t in operation.inputs}
    dtypes = {"boolean": np.uint8}
    return {**found, **{t.name: np.full(t.shape, 7, dtypes.get(t.dtype, t.dtype)) for t in operation.outputs}}


def run(context, operation, **replaced):
    """Runs the plan of a context on arrays, which are returned."""
    found = {**arrays(operation), **replaced}
    context.plan(operation).run(*(array.ctypes.data for array in found.values()))
    return found
