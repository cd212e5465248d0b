"""Losses whose mean over more than 65,504 elements, the largest float16, is wrong in float16; misfit labels."""

from mixprec.compat.half import widened
from mixprec.compat.hooks import around


@around(
    "chainer.functions.loss.mean_squared_error:MeanSquaredError.apply",
    "chainer.functions.loss.triplet:Triplet.apply",
    "chainer.functions.loss.contrastive:Contrastive.apply",
)
def float32_mean_of_function_node(apply, self, inputs):
    """Without it MSE, triplet and contrastive loss of more than 65,504 float16 are 0 or nan, with a gradient of 0.

    They are computed in float32, and result and gradients are cast to float16. Without it the count becomes infinite in
    float16. (Chainer's GPU code of MSE always did that, the CPU code does from NumPy 2 on.)
    """
    if not _all_float16(inputs):
        return apply(self, inputs)
    return tuple(_cast(y, "float16") for y in apply(self, tuple(map(_cast_up, inputs))))


@around("chainer.functions.loss.hinge:Hinge.{forward,backward}_{cpu,gpu}")
def float32_mean_of_hinge(method, self, inputs, *grad_outputs):
    """Without it ``F.hinge`` of more than 65,504 float16 is nan, with a gradient of 0."""
    if inputs[0].dtype != "float16":
        return method(self, inputs, *grad_outputs)
    arrays = [tuple(map(widened, xs)) for xs in (inputs, *grad_outputs)]
    return tuple(None if y is None else y.astype("float16") for y in method(self, *arrays))


@around("chainer.functions.loss.softmax_cross_entropy:SoftmaxCrossEntropy.check_type_forward")
def labels_of_softmax_cross_entropy(check, self, in_types):
    """Without it labels of another dtype or shape end in a ``RuntimeError`` about an ``Expr``."""
    try:
        return check(self, in_types)
    except RuntimeError:  # Chainer looks for the words of its error, and evaluates an expression as a condition
        from chainer.utils.type_check import eval

    (x, _), (t, dtype) = [(eval(each.shape), eval(each.dtype)) for each in in_types]
    if dtype.kind == "i":
        raise ValueError(
            f"softmax_cross_entropy: t must have the shape of x without its second axis, the classes; found {t} and {x}"
        )
    soft = f"; floating point means a probability for each class, of the shape of x, {x}" if dtype.kind == "f" else ""
    raise TypeError(f"softmax_cross_entropy: labels must be signed integers; found {dtype}, shape {t}{soft}")


def _all_float16(inputs):
    """Whether every floating-point input is float16; mixed dtypes are left for Chainer's own type check."""
    floating = [x.dtype for x in inputs if getattr(getattr(x, "dtype", None), "kind", None) == "f"]
    return bool(floating) and all(dtype == "float16" for dtype in floating)


def _cast_up(x):
    return _cast(x, "float32") if getattr(x, "dtype", None) == "float16" else x


def _cast(x, dtype):
    import chainer.functions

    return chainer.functions.cast(x, dtype)
