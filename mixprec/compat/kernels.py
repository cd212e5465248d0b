"""CUDA kernels of Chainer and ChainerMN that CuPy 14 does not compile."""

from mixprec.compat import hooks
from mixprec.compat.rebind import Overlay, rebound

FLOAT16_ATOMIC_ADD = """
#include <cupy/float16.cuh>
__device__ float16 atomicAdd(float16* address, float value) {
  return atomicAdd(address, float16(value));
}
"""
"""A product of two float16 is a float, and CuPy's float16 ``atomicAdd`` takes a float16 only.

CuPy includes the header only in kernels that have float16 arguments; this text is in those for float32, too.
"""


@hooks.after_import("chainer.links.loss.hierarchical_softmax")
def hierarchical_softmax(module):
    """Without it the gradient of ``L.BinaryHierarchicalSoftmax`` does not compile for float16."""
    cls = module.BinaryHierarchicalSoftmaxFunction
    cls.backward_gpu = _with_float16_atomic_add(cls.backward_gpu, module.cuda)


@hooks.after_import("chainer.functions.loss.negative_sampling")
def negative_sampling(module):
    """Without it the gradient of ``F.negative_sampling`` does not compile for float16."""
    cls = module.NegativeSamplingFunctionGrad
    cls.forward_gpu = _with_float16_atomic_add(cls.forward_gpu, module.cuda)


@hooks.after_import("chainer.functions.array.resize_images")
def resize_images(module):
    """Without it the gradient of ``F.resize_images`` does not compile for float16 (with type checks off)."""
    module.interpolate_grad_bilinear_gpu = _with_float16_atomic_add(module.interpolate_grad_bilinear_gpu, module.cuda)


def _with_float16_atomic_add(function, cuda):
    def elementwise(*args, **kwargs):
        return cuda.elementwise(*args, preamble=FLOAT16_ATOMIC_ADD, **kwargs)

    return rebound(function, cuda=Overlay(cuda, elementwise=elementwise))


@hooks.after_import("chainermn.communicators._memory_utility")
def batched_pack_and_unpack(module):
    """Without it no gradient is exchanged by ``pure_nccl``: its kernels use ``half`` of an undeclared header."""
    cuda = module.chainer.cuda

    def raw(code, name):
        return cuda.raw("#include <cupy/float16.cuh>\n" + code, name)

    chainer = Overlay(module.chainer, cuda=Overlay(cuda, raw=raw))
    for name in ("_cupy_batched_pack_params", "_cupy_batched_unpack_params"):
        setattr(module, name, rebound(getattr(module, name), chainer=chainer))
