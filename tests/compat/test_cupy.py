"""Chainer on CuPy 14: with a stub in its place, and with the real one where it is installed."""

import os
import subprocess
import sys
import textwrap

import pytest

from mixprec.compat import chainer_kernels

STUB = {
    "cupy/__init__.py": """
        import warnings
        from cupy import cuda
        __version__ = "14.2.0"
        class ndarray: pass
        class ElementwiseKernel:
            def __init__(self, *args, **kwargs): self.args, self.kwargs = args, kwargs
        ReductionKernel = RawKernel = ElementwiseKernel
        def memoize(*args, **kwargs): return lambda function: function
        def fuse(*args, **kwargs): return args[0] if args and callable(args[0]) else lambda function: function
        def get_default_memory_pool(): return None
        get_default_pinned_memory_pool = get_default_memory_pool
    """,
    "cupy/_util.py": "class PerformanceWarning(Warning): pass",
    "cupy/cuda/__init__.py": """
        from cupy.cuda import cublas, runtime
        class Device: pass
        class Event: pass
        class Stream: pass
        def __getattr__(name):
            if name == "nccl":
                import warnings
                warnings.warn("\\nnccl library could not be loaded.\\n\\nReason: ImportError")
                raise ImportError("libnccl.so.2")
            raise AttributeError(name)
    """,
    "cupy/cuda/cublas.py": "",
    "cupy/cuda/runtime.py": "def getDeviceCount(): return 0",
    "cupyx/__init__.py": "",
    "cupyx/scipy/__init__.py": "",
    "cupyx/scipy/linalg.py": "",
    "cupyx/scipy/special.py": "",
}


@pytest.fixture
def stub_cupy(tmp_path):
    """Environment of a subprocess that finds a CuPy 14 with neither cuDNN, also on a machine that has it, nor NCCL."""
    for name, text in STUB.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return {**os.environ, "PYTHONPATH": str(tmp_path), "MIXPREC_CUDNN": "0"}


def run_python(code, env, *options):
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_without_cudnn(stub_cupy):
    """The import is silent, though Chainer warns without cuDNN, and CuPy without NCCL; questions are answered."""
    code = """
        import chainer
        from chainer.backends import cuda
        print(cuda.available, cuda.cudnn_enabled, hasattr(cuda, "cudnn"), hasattr(cuda, "no_such_name"))
        print(chainer.should_use_cudnn_tensor_core("float16"))  # a NameError in Chainer alone
        with chainer.using_config("use_cudnn_tensor_core", "always"):
            print(chainer.should_use_cudnn_tensor_core("float16"))

        def sometimes():
            with chainer.using_config("use_cudnn_tensor_core", "sometimes"):
                chainer.should_use_cudnn_tensor_core("float16")

        reads = lambda: cuda.cudnn, lambda: cuda.libcudnn.CUDNN_POOLING_MAX, lambda: cuda.no_such_name
        for read in (sometimes, *reads):
            try:
                read()
            except (AttributeError, ValueError) as error:
                print(error)
    """
    found, auto, always, wrong, cudnn, constant, other = run_python(code, stub_cupy, "-W", "error").splitlines()
    assert (found, auto, always) == ("True False False False", "False", "True")
    assert "invalid use_cudnn_tensor_core" in wrong
    assert "has no cudnn;" in cudnn
    assert "chainer.functions" in cudnn
    assert "has no libcudnn.CUDNN_POOLING_MAX;" in constant
    assert other == "module 'chainer.backends.cuda' has no attribute 'no_such_name'"


KERNELS = {
    "chainer.functions.array.resize_images": "interpolate_grad_bilinear_gpu",
    "chainer.functions.loss.negative_sampling": "NegativeSamplingFunctionGrad.forward_gpu",
    "chainer.links.loss.hierarchical_softmax": "BinaryHierarchicalSoftmaxFunction.backward_gpu",
}


@pytest.mark.parametrize("module", KERNELS)
def test_kernels_with_atomic_add_get_the_float16_overload(module, monkeypatch):
    """Every kernel with an atomicAdd in these three is given the preamble that declares it for (float16*, float)."""
    import importlib

    from chainer.backends import cuda

    made = []
    monkeypatch.setattr(cuda, "elementwise", lambda *args, **kwargs: made.append((args, kwargs)))
    function = importlib.import_module(module)
    for name in KERNELS[module].split("."):
        function = getattr(function, name)
    function.__globals__["cuda"].elementwise("in", "out", "atomicAdd(&y, x);", "name")
    assert made == [(("in", "out", "atomicAdd(&y, x);", "name"), {"preamble": chainer_kernels.FLOAT16_ATOMIC_ADD})]
    assert "atomicAdd" in str(function.__code__.co_consts)
    assert function.__globals__["cuda"].to_cpu is cuda.to_cpu


def nvrtc_errors(source):
    """Compiles CUDA source for sm_90 with CuPy's NVRTC and headers; returns the log, empty if it compiled."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except Exception as error:
        pytest.skip(f"NVRTC is not installed: {error}")
    headers = os.path.join(os.path.dirname(cupy.__file__), "_core", "include")
    folders = [headers, *(os.path.join(headers, "cupy/_cccl", part) for part in ("thrust", "libcudacxx", "cub"))]
    import nvidia

    for root in nvidia.__path__:
        for folder, _, files in os.walk(root):
            if "cuda_fp16.h" in files:
                folders.append(folder)
    program = nvrtc.createProgram(source, "kernel.cu", [], [])
    try:
        nvrtc.compileProgram(program, [*(f"-I{folder}" for folder in folders), "-std=c++17", "-arch=sm_90"])
    except nvrtc.NVRTCError:
        return nvrtc.getProgramLog(program)
    return ""


@pytest.mark.parametrize("dtype", ["float16", "float"])
def test_atomic_add_overload_compiles_for_every_dtype(dtype):
    """What the three kernels do: add a product, and add a value."""
    source = """
        #include <cupy/complex.cuh>
        #include <cupy/carray.cuh>
        #include <cupy/atomics.cuh>
        {preamble}
        typedef {dtype} T;
        extern "C" __global__ void k(T* y, T a, T b) {{ atomicAdd(&y[0], a * b); atomicAdd(&y[1], a); }}
    """
    assert nvrtc_errors(source.format(preamble=chainer_kernels.FLOAT16_ATOMIC_ADD, dtype=dtype)) == ""


def test_batched_pack_and_unpack_compile():
    """The kernels of ChainerMN's pure_nccl communicator, with the header that declares `half`."""
    code = """
        import sys, types
        try:
            import mpi4py.MPI
        except ImportError:
            sys.modules["mpi4py"] = types.ModuleType("mpi4py")
            sys.modules["mpi4py.MPI"] = sys.modules["mpi4py"].MPI = types.ModuleType("mpi4py.MPI")
            sys.modules["mpi4py.MPI"].FLOAT = None
        from chainermn.communicators import _memory_utility
        import chainer
        chainer.backends.cuda.raw = lambda code, name: code
        chainer.cuda.raw = chainer.backends.cuda.raw
        print(_memory_utility._cupy_batched_pack_params(), "// next kernel")
        print(_memory_utility._cupy_batched_unpack_params())
    """
    sources = run_python(code, dict(os.environ)).split("// next kernel")
    assert len(sources) == 2
    assert all(source.lstrip().startswith("#include <cupy/float16.cuh>") for source in sources)
    for source in sources:
        assert nvrtc_errors(source) == ""


def test_real_cupy_imports_silently():
    pytest.importorskip("cupy", reason="CuPy is not installed")
    assert run_python("import chainer, chainermn", dict(os.environ), "-W", "error") == ""
