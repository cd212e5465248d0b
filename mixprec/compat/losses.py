"""Losses whose mean over more than 65,504 elements, the largest float16, is wrong in float16."""

import functools

from mixprec.compat import hooks
from mixprec.compat.half import widened


@hooks.after_import(
    "chainer.functions.loss.mean_squared_error",
    "chainer.functions.loss.triplet",
    "chainer.functions.loss.contrastive",
)
def float32_mean_of_function_node(module):
    """Evaluates MSE, triplet and contrastive loss of float16 in float32, result and gradients cast to
    float16.

    Without it the count becomes infinite in float16: MSE and triplet loss are 0, or nan where the sum
    overflows too, and the gradient of all three is 0. (Chainer's GPU code of MSE always did that, the CPU
    code does from NumPy 2 on.)
    """
    for cls in _function_classes(module):
        original = cls.apply
        cls.apply = _in_float32(original)


@hooks.after_import("chainer.functions.loss.hinge")
def float32_mean_of_hinge(module):
    """The same for ``F.hinge``, which was nan with a zero gradient."""
    for name in ("forward_cpu", "forward_gpu", "backward_cpu", "backward_gpu"):
        setattr(module.Hinge, name, _computed_in_float32(getattr(module.Hinge, name)))


def _function_classes(module):
    from chainer import function_node

    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, function_node.FunctionNode)
        and value.__module__ == module.__name__
    ]


def _in_float32(apply):
    @functools.wraps(apply)
    def wrapped(self, inputs):
        if not _all_float16(inputs):
            return apply(self, inputs)
        return tuple(_cast(y, "float16") for y in apply(self, tuple(map(_cast_up, inputs))))

    return wrapped


def _computed_in_float32(method):
    @functools.wraps(method)
    def wrapped(self, inputs, *grad_outputs):
        if inputs[0].dtype != "float16":
            return method(self, inputs, *grad_outputs)
        arrays = [tuple(map(widened, xs)) for xs in (inputs, *grad_outputs)]
        return tuple(None if y is None else y.astype("float16") for y in method(self, *arrays))

    return wrapped


def _all_float16(inputs):
    """Whether every floating-point input is float16; mixed dtypes are left for Chainer's own type check."""
    floating = [x.dtype for x in inputs if getattr(getattr(x, "dtype", None), "kind", None) == "f"]
    return bool(floating) and all(dtype == "float16" for dtype in floating)


def _cast_up(x):
    return _cast(x, "float32") if getattr(x, "dtype", None) == "float16" else x


def _cast(x, dtype):
    import chainer.functions

    return chainer.functions.cast(x, dtype)
