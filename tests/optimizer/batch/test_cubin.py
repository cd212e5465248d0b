"""The kernels of the batched update compile for every GPU that matters, with no registers in local memory."""

import concurrent.futures
import functools
import re

import pytest
from chainer import optimizer_hooks

from mixprec.backends import launch
from mixprec.optimizer.batch import saved_arrays
from mixprec.optimizer.batch.entries import BatchedHook, Entry
from mixprec.optimizer.batch.kernel_program import KernelProgram, source_of
from mixprec.optimizer.rules.formulas import RULES, hook_formula_of

OTHERS = ("sm_80", "sm_100", "sm_120")
ARCHITECTURES = ("sm_90", *OTHERS)
HOOKS = (
    optimizer_hooks.WeightDecay(0.1),
    optimizer_hooks.Lasso(0.1),
    optimizer_hooks.GradientNoise(0.1),
    optimizer_hooks.GradientClipping(1.0),
    optimizer_hooks.GradientLARS(),
    optimizer_hooks.GradientHardClipping(-1, 1),
)


def _program(formula, hooks=()):
    folded = tuple(BatchedHook(hook_formula_of(hook), hook, counted=False) for hook in hooks)
    return KernelProgram(Entry("", None, None, None, formula, folded))


def _sources():
    """One for each rule, one for each hook, and one for everything at once that a user may well combine."""
    programs = {name: [_program(formula)] for name, formula in RULES.items()}
    sgd = RULES["Sgd"]
    programs |= {type(hook).__name__: [_program(sgd, [hook])] for hook in HOOKS}
    programs["all hooks"] = [_program(RULES["Adam"], HOOKS), _program(None, HOOKS), _program(sgd)]
    threads = launch.CupyLauncher.threads
    sources = {name: source_of(own, threads, launch.CupyLauncher.chunk) for name, own in programs.items()}
    return sources | {file: saved_arrays.source_of(file, threads) for file in ("save.cu", "average.cu")}


def share_of(architecture, cases):
    """Returns the cases that are compiled for an architecture: an H100 gets all, the others one out of three."""
    cases = list(cases)
    return cases if architecture == "sm_90" else cases[OTHERS.index(architecture) :: len(OTHERS)]


@functools.cache
def _compiler():
    """Returns a function of source and architecture that returns the log of the assembler; ``None`` without NVRTC."""
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except Exception:
        return None
    return functools.partial(_with_nvrtc, nvrtc)


def _with_nvrtc(nvrtc, source, architecture):
    program = nvrtc.createProgram(source, "update.cu", [], [])
    try:
        nvrtc.compileProgram(program, [*launch.OPTIONS, f"-arch={architecture}", "--ptxas-options=-v"])
    except nvrtc.NVRTCError:
        return nvrtc.getProgramLog(program)
    assert nvrtc.getCUBIN(program)
    return nvrtc.getProgramLog(program)


def compiler_for():
    """Returns the compiler; skips the test if there is none."""
    return _compiler() or pytest.skip("NVRTC is not installed: pip install .[test-cupy]")


@pytest.mark.cupy
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_rule_and_hook_compiles_without_spills(architecture):
    """An H100 gets all of them, and each of the other architectures a share."""
    compiler = compiler_for()
    sources = dict(share_of(architecture, _sources().items()))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        logs = pool.map(compiler, sources.values(), [architecture] * len(sources))
    for name, log in zip(sources, logs, strict=True):
        kernels = {"save.cu": ("save",), "average.cu": ("weigh", "average")}.get(name, ("check", "update"))
        for kernel in kernels:
            assert re.search(rf"'?{kernel}'? for '{architecture}'", log), f"{name}: {log}"
        assert "warning" not in log, f"{name}: {log}"
        moved = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
        assert len(moved) >= len(kernels), f"{name}: {log}"
        assert all(sizes == ("0", "0", "0") for sizes in moved), f"{name}: {log}"


@pytest.mark.cupy
def test_cupy_compiles_with_the_same_options_and_no_others(monkeypatch):
    """CuPy's RawModule would flush subnormal numbers to zero."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from cupy.cuda import compiler

    used = []

    class Program(compiler._NVRTCProgram):
        def compile(self, options=(), log_stream=None):
            used.extend(options)
            return super().compile(options, log_stream)

    monkeypatch.setattr(compiler, "_NVRTCProgram", Program)
    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", lambda arch: ("-arch=sm_90", "cubin"))
    binary = launch.binary_of(next(iter(_sources().values())))
    assert binary.startswith(b"\x7fELF")
    assert used == [*launch.OPTIONS, "-arch=sm_90", "--device-as-default-execution-space"]
