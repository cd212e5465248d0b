"""What the tests of the rules of this package share: parameters, steps, and the kernels of a rule as CUDA source."""

import re

import chainer
import chainer.functions as F
import numpy as np
from chainer.backends import cuda

import mixprec

LARS_SETTINGS = {"lr": 2.0, "momentum": 0.75, "weight_decay": 0.125, "trust_coefficient": 0.25, "eps": 0.5}
LAMB_SETTINGS = {"lr": 0.25, "beta1": 0.75, "beta2": 0.875, "eps": 0.5, "weight_decay": 0.125}
GRADIENTS = [np.random.RandomState(seed).uniform(-2, 2, (3, 4)) for seed in (1, 2, 3)]
WEIGHTS = np.random.RandomState(0).uniform(-1, 1, (3, 4))


def link_of(*arrays):
    """A link with the parameters ``w0``, ``w1``..."""
    link = chainer.Link()
    with link.init_scope():
        for number, array in enumerate(arrays):
            setattr(link, f"w{number}", chainer.Parameter(np.array(array)))
    return link


def trained(optimizer, array, gradients):
    """The parameter after steps of Chainer's own loop with these gradients, cast to its dtype."""
    link = link_of(array)
    optimizer.setup(link)
    for gradient in gradients:
        link.w0.grad = np.asarray(gradient).astype(link.w0.dtype)
        optimizer.update()
    return link.w0


def mixed(optimizer, *arrays):
    """A wrapped optimizer for FP16 parameters, and its loss function.

    The gradients of the parameters, unscaled, are what the loss function is given.
    """
    link = link_of(*(np.asarray(array, np.float16) for array in arrays))
    wrapper = mixprec.MixedPrecisionOptimizer(optimizer, loss_scale=128).setup(link)

    def loss(*gradients):
        terms = (F.sum(param * gradient) for param, gradient in zip(link.params(), gradients, strict=True))
        return sum(F.cast(term, np.float32) for term in terms)

    return wrapper, loss


def kernels(monkeypatch, optimizer, dtype):
    """The source of every kernel that an update on a GPU launches, with ``T`` for the dtype."""
    sources = []

    def elementwise(inputs, outputs, operation, name):
        arguments = [*_arguments(inputs, "{} {}"), *_arguments(outputs, "{}& {}")]
        sources.append(_KERNEL.format(dtype=dtype, name=name, arguments=", ".join(arguments), operation=operation))
        return lambda *args: None

    monkeypatch.setattr(cuda, "elementwise", elementwise)
    monkeypatch.setattr(cuda, "cupy", np, raising=False)
    link = link_of(WEIGHTS)
    optimizer.setup(link)
    link.w0.grad = GRADIENTS[0]
    link.w0.update_rule.t = 1
    link.w0.update_rule._init_states(link.w0)
    link.w0.update_rule.update_core_gpu(link.w0)
    return sources


_KERNEL = """
    #include <cupy/carray.cuh>
    typedef {dtype} T;
    __device__ void {name}({arguments}) {{ {operation}; }}
"""


def _arguments(declarations, form):
    return [form.format(*re.fullmatch(r"\s*(\w+) (\w+)\s*", text).groups()) for text in declarations.split(",")]
