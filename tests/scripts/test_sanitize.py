"""scripts/sanitize.py with a stand-in for compute-sanitizer: what it runs, and what it makes of the answers."""

import importlib.util
import subprocess
import sys

import pytest

from mixprec.app.parts import gpus
from tests import ROOT

SCRIPT = ROOT / "scripts" / "sanitize.py"
CLEAN = "120 passed, 600 deselected in 3.00s\\n========= {} SUMMARY: 0 {}\\n"
ANSWERS = {
    "memcheck": (CLEAN.format("ERROR", "errors"), 0),
    "racecheck": (CLEAN.format("RACECHECK", "hazards displayed (0 errors, 0 warnings)"), 0),
}


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("sanitize", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """Puts a compute-sanitizer into PATH that writes down its arguments, prints something, and exits."""
    monkeypatch.setattr(gpus, "resolve_device", lambda wanted: ("@cupy:0", "GPU 0 of 1: Stub"))

    def answer(text, status, folder="path"):
        path = tmp_path / folder / "compute-sanitizer"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/calls\nprintf '{text}'\nexit {status}\n")
        path.chmod(0o755)
        return tmp_path / "calls"

    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    return answer


def test_all_tools_in_turn(script, answer, capsys):
    calls = answer(*ANSWERS["memcheck"])
    assert script.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{tool}: clean, 120 tests" for tool in script.TOOLS]
    lines = calls.read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [["--tool", tool] for tool in script.TOOLS]
    for line in lines:
        assert "--error-exitcode 86" in line
        assert "cupy.cuda.set_allocator(None)" in line
        assert (
            "-m gpu -k (own_kernels or nchw) and not large and not cudnn and not bfloat16 tests/backends/cuda/test_gpu_"
            in line
        )
        assert line.endswith("tests/backends/nchw/test_nchw_pooling.py tests/backends/nchw/test_nchw_softmax.py")


NOT_CLEAN = [
    ("1 passed\\n========= ERROR SUMMARY: 3 errors\\n", 86, "3 errors or hazards"),
    ("1 passed\\n========= RACECHECK SUMMARY: 2 hazards displayed\\n", 0, "2 errors or hazards"),
    ("1 failed, 3 passed\\n========= ERROR SUMMARY: 0 errors\\n", 1, "the tests failed, exit status 1"),
    ("600 skipped\\n========= ERROR SUMMARY: 0 errors\\n", 0, "nothing was checked"),
    ("12 passed\\n", 0, "nothing was checked"),
    ("========= Error: Device not supported\\n", 255, "the tests failed, exit status 255"),
]


@pytest.mark.parametrize(("text", "status", "verdict"), NOT_CLEAN)
def test_what_is_not_clean(script, answer, capsys, text, status, verdict):
    answer(text, status)
    assert script.main(["--tool", "memcheck"]) == 1
    out = capsys.readouterr().out
    assert out.startswith(text.replace("\\n", "\n"))
    assert f"memcheck: {verdict}" in out


def test_where_it_is_not_installed(script, answer, monkeypatch, capsys):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    assert script.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sanitize: compute-sanitizer is not installed: pip install nvidia-cuda-sanitizer-api")


@pytest.mark.slow
def test_there_are_tests_to_run(script):
    """Those of every file of kernels."""
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", *script.TESTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout
    for name in ("each_primitive", "odd_values", "not_finite", "constants", "batch_norm", "pooling", "softmax", "bias"):
        assert name in process.stdout
    assert "bfloat16" not in process.stdout
    assert "cudnn" not in process.stdout
