"""CUDA kernels of Chainer and ChainerMN that CuPy 14 does not compile."""

from mixprec.compat.hooks import after_import
from mixprec.compat.rebind import Overlay, overlaid

FLOAT16_ATOMIC_ADD = """
#include <cupy/float16.cuh>
__device__ float16 atomicAdd(float16* address, float value) {
  return atomicAdd(address, float16(value));
}
"""
"""A product of two float16 is a float, and CuPy's float16 ``atomicAdd`` takes a float16 only.

CuPy includes the header only in kernels that have float16 arguments; this text is in those for float32, too.
"""


@after_import(
    "chainer.links.loss.hierarchical_softmax:BinaryHierarchicalSoftmaxFunction.backward_gpu",
    why="Without it the gradient of ``L.BinaryHierarchicalSoftmax`` does not compile for float16.",
)
@after_import(
    "chainer.functions.loss.negative_sampling:NegativeSamplingFunctionGrad.forward_gpu",
    why="Without it the gradient of ``F.negative_sampling`` does not compile for float16.",
)
@after_import(
    "chainer.functions.array.resize_images:interpolate_grad_bilinear_gpu",
    why="Without it the gradient of ``F.resize_images`` does not compile for float16 (with type checks off).",
)
def with_float16_atomic_add(function):
    cuda = function.__globals__["cuda"]

    def elementwise(*args, **kwargs):
        return cuda.elementwise(*args, preamble=FLOAT16_ATOMIC_ADD, **kwargs)

    return overlaid(function, "cuda", elementwise=elementwise)


@after_import("chainermn.communicators._memory_utility:_cupy_batched_{pack,unpack}_params")
def batched_pack_and_unpack(function):
    """Without it no gradient is exchanged by ``pure_nccl``: its kernels use ``half`` of an undeclared header."""
    cuda = function.__globals__["chainer"].cuda

    def raw(code, name):
        return cuda.raw("#include <cupy/float16.cuh>\n" + code, name)

    return overlaid(function, "chainer", cuda=Overlay(cuda, raw=raw))
