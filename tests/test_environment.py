"""The environment report and the choice of a device, with stubs for what this machine lacks."""

import importlib.util
import json
import subprocess
import sys
import types

import chainer
import pytest

from mixprec import patches
from mixprec.app.commands import info as command
from mixprec.app.parts import environment, gpus
from mixprec.base import VERSION
from tests import ROOT


class FakeError(Exception):
    """Stands for cupy.cuda.runtime.CUDARuntimeError."""


def stub_cupy(count, driver=13000):
    def get_device_count():
        if isinstance(count, Exception):
            raise count
        return count

    def properties(index):
        return {"name": b"Stub H200", "major": 9, "minor": 0, "totalGlobalMem": 141 * 2**30}

    runtime = types.SimpleNamespace(
        getDeviceCount=get_device_count,
        runtimeGetVersion=lambda: 13020,
        driverGetVersion=lambda: driver,
        getDeviceProperties=properties,
        deviceGetPCIBusId=lambda index: f"0000:{index}1:00.0",
    )
    cupy = types.ModuleType("cupy")
    cupy.__version__ = "14.2.0"
    cupy.cuda = types.SimpleNamespace(runtime=runtime)
    return cupy


@pytest.fixture
def machine(monkeypatch):
    """Sets what ``import cupy`` gives and whether Chainer can use it."""

    def set_up(cupy, chainer_available=True, error=None):
        import chainer.backends.cuda

        monkeypatch.delenv("MIXPREC_NATIVE", raising=False)  # one that is set has a line of its own
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setattr(chainer.backends.cuda, "available", chainer_available)
        monkeypatch.setattr(chainer.backends.cuda, "_resolution_error", error, raising=False)

    return set_up


def test_auto_takes_the_first_gpu(machine):
    machine(stub_cupy(2))
    device, reason = gpus.resolve_device("auto")
    assert device == "@cupy:0"
    assert reason == "GPU 0 of 2: Stub H200, compute capability 9.0, 141 GiB"
    assert gpus.usable_device_count() == 2


@pytest.mark.parametrize(("wanted", "device"), [("gpu", "@cupy:0"), ("gpu:1", "@cupy:1"), ("cpu", "@numpy")])
def test_named_device(machine, wanted, device):
    machine(stub_cupy(2))
    assert gpus.resolve_device(wanted)[0] == device


COUNTS = [
    (4, "auto", ["@cupy:0", "@cupy:1", "@cupy:2"]),
    (4, "gpu", ["@cupy:0", "@cupy:1", "@cupy:2"]),
    (4, "gpu:3", ["@cupy:3"] * 3),
    (2, "auto", ["@cupy:0", "@cupy:1", "@cupy:0"]),  # too many: the training command refuses the third
    (1, "auto", ["@cupy:0"] * 3),  # by CUDA_VISIBLE_DEVICES: each process sees its own GPU as the first
    (0, "auto", ["@numpy"] * 3),
]


@pytest.mark.parametrize(("count", "wanted", "devices"), COUNTS)
def test_processes_of_a_machine_take_one_gpu_after_the_other(machine, count, wanted, devices):
    machine(stub_cupy(count))
    assert [gpus.resolve_device(wanted, rank)[0] for rank in range(3)] == devices
    assert count < 2 or gpus.address_of("@cupy:1") == "0000:11:00.0"


REASONS = [
    (None, "CuPy"),
    (stub_cupy(0), "the CUDA runtime sees no GPU"),
    (stub_cupy(FakeError("no CUDA-capable device")), "no GPU is usable, FakeError: no CUDA-capable device"),
    (stub_cupy(FakeError("insufficient driver"), driver=0), "no NVIDIA driver is installed"),
]


@pytest.mark.parametrize(("cupy", "reason"), REASONS)
def test_without_a_gpu_auto_takes_the_cpu_and_gpu_is_an_error_that_says_why(machine, monkeypatch, cupy, reason):
    machine(cupy)
    monkeypatch.setattr(gpus, "is_without_gpu", lambda: False)
    device, why = gpus.resolve_device("auto")
    assert device == "@numpy"
    assert reason in why
    assert gpus.usable_device_count() == 0
    with pytest.raises(ValueError, match=r"device: found 'gpu', but") as error:
        gpus.resolve_device("gpu")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_gpu_that_chainer_cannot_use_is_not_chosen(machine):
    machine(stub_cupy(1), chainer_available=False, error=ImportError("libcublas.so.13\nmore"))
    device, why = gpus.resolve_device("auto")
    assert (device, why) == ("@numpy", "CPU: Chainer cannot use CuPy, ImportError: libcublas.so.13")


@pytest.mark.parametrize(
    ("count", "index", "there"), [(2, 2, "there are 2 GPUs, gpu:0 to gpu:1"), (1, 5, "the only GPU is gpu:0")]
)
def test_gpu_that_is_not_there_is_a_clear_error(machine, count, index, there):
    machine(stub_cupy(count))
    with pytest.raises(ValueError, match=f"found 'gpu:{index}', but {there}"):
        gpus.resolve_device(f"gpu:{index}")


@pytest.mark.parametrize("wanted", ["tpu", "gpu:", "gpu:-1", "gpu:x", "", None, 0, "cpu\n"])
def test_other_specifiers_are_errors(wanted):
    with pytest.raises(ValueError, match="expected 'auto', 'cpu', 'gpu' or 'gpu:N'"):
        gpus.resolve_device(wanted)


def test_report_lists_everything_aligned(machine):
    machine(stub_cupy(1))
    lines = environment.report().splitlines()
    names = ["mixprec", "Python", "NumPy", "Chainer", "start-up hook", "native library", "CuPy", "CUDA runtime"]
    names += ["CUDA driver", "GPU 0", "cuDNN", "cuDNN frontend", "Chainer's cuDNN", "NCCL", "mpi4py", "DALI", "Pillow"]
    names += ["matplotlib", "ONNX", "device 'auto'"]
    width = max(map(len, names)) + 2
    assert [line[:width].rstrip() for line in lines] == names
    assert {line[width:].split()[0] for line in lines} <= {"ok", "missing", "broken"}
    assert all(line[width - 1] == " " and line[width] != " " for line in lines)
    assert "13.2" in lines[7]
    assert "Stub H200" in lines[9]


def test_missing_package_says_how_to_get_it(machine, monkeypatch):
    monkeypatch.setattr(gpus, "quietly_imported", missing)
    monkeypatch.setattr(gpus, "is_without_gpu", lambda: False)
    rows = {row.name: row for row in environment.components()}
    assert rows["CuPy"].state == "missing"
    assert 'pip install -e ".[cuda13]"' in rows["CuPy"].note
    assert 'pip install -e ".[dali]"' in rows["DALI"].note


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_a_device_without_cupy_says_how_to_get_it():
    with pytest.raises(RuntimeError, match=r'CuPy is not installed: pip install -e "\.\[cuda13\]"'):
        chainer.links.Linear(2, 2).to_device("@cupy:0")


def missing(module):
    return None, ModuleNotFoundError(f"No module named {module!r}", name=module.partition(".")[0])


def test_broken_packages_are_reported_with_the_reason(monkeypatch):
    """Also when an import raises something odd, or a package misses one of its own dependencies."""
    errors = {
        "numpy": RuntimeError("wrong CPU\nsecond line"),
        "chainer": AttributeError(""),
        "cupy": ImportError("libcuda.so.1: cannot open shared object file"),
        "nvidia.dali": ModuleNotFoundError("No module named 'nvtx'", name="nvtx"),
    }
    monkeypatch.setattr(gpus, "quietly_imported", lambda module: (None, errors.get(module, OSError("disk"))))
    monkeypatch.setattr(gpus, "is_without_gpu", lambda: False)
    rows = {row.name: row for row in environment.components()}
    assert (rows["NumPy"].state, rows["NumPy"].note) == ("broken", "RuntimeError: wrong CPU")
    assert (rows["Chainer"].state, rows["Chainer"].note) == ("broken", "AttributeError")
    assert rows["CuPy"].note == "ImportError: libcuda.so.1: cannot open shared object file"
    assert rows["DALI"].note == "ModuleNotFoundError: No module named 'nvtx'"
    assert "CPU: CuPy is broken, ImportError: libcuda.so.1" in environment.report().splitlines()[-1]


@pytest.mark.parametrize(
    ("loaded", "state"), [(lambda: 91900, "ok"), (lambda: 1 / 0, "broken")], ids=["loads", "does not load"]
)
def test_cudnn_is_asked_through_its_frontend(monkeypatch, loaded, state):
    frontend = types.ModuleType("cudnn")
    frontend.__version__, frontend.backend_version = "1.26.0", loaded
    monkeypatch.setitem(sys.modules, "cudnn", frontend)
    row = {row.name: row for row in environment.components()}["cuDNN"]
    assert row.state == state
    assert (row.version == "9.19.0") if state == "ok" else ("ZeroDivisionError" in row.note)


NCCL = [
    (True, {"get_version": lambda: 23203}, "", ("ok", "2.32.3", "")),
    (True, {"available": False}, "2.32.3", ("broken", "2.32.3", "CuPy cannot load it")),
    (True, {"available": False}, "", ("missing", "", 'for several GPUs: pip install -e ".[cuda13]"')),
    (False, {}, "2.32.3", ("ok", "2.32.3", "installed, and unused without CuPy")),
    (False, {}, "", ("missing", "", 'for several GPUs: pip install -e ".[cuda13]"')),
]


@pytest.mark.parametrize(
    ("cupy", "library", "version", "row"), NCCL, ids=["loads", "does not load", "no package", "no CuPy", "nothing"]
)
def test_nccl_is_asked_through_cupy(monkeypatch, cupy, library, version, row):
    monkeypatch.setitem(sys.modules, "cupy", stub_cupy(1) if cupy else None)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", types.SimpleNamespace(**library) if cupy else None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", types.ModuleType("cupy.cuda"))
    monkeypatch.setattr(environment, "_distribution_version", lambda distributions: version)
    monkeypatch.setattr(gpus, "is_without_gpu", lambda: False)
    found = environment._nccl()
    assert (found.state, found.version) == row[:2]
    assert found.note.startswith(row[2])


def test_missing_startup_hook_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(environment.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(environment.site, "getsitepackages", list)
    monkeypatch.setattr(environment.site, "getusersitepackages", lambda: str(tmp_path))
    monkeypatch.setattr(environment.sys, "path", [str(tmp_path)])
    assert environment._startup_hook().state == "missing"
    (tmp_path / "mixprec_startup.pth").write_text("import mixprec.startup\n")
    assert environment._startup_hook().state == "ok"


@pytest.mark.parametrize("vendor", [None, "0x10de"])
def test_without_a_gpu_its_parts_are_not_needed(monkeypatch, tmp_path, vendor):
    """Where the bus has a GPU of NVIDIA, which does not work, they are missing."""
    monkeypatch.setattr(gpus, "quietly_imported", missing)
    monkeypatch.setattr(gpus, "_VENDORS", str(tmp_path / "*"))
    if vendor is not None:
        (tmp_path / "vendor").write_text(f"{vendor}\n")
    states = {row.name: row.state for row in environment.components()}
    names = ["CuPy", "CUDA runtime", "CUDA driver", "GPU", "cuDNN frontend", "Chainer's cuDNN"]
    assert {states[name] for name in names} == {"not needed" if vendor is None else "missing"}
    assert states["mpi4py"] == "missing"


def info(*arguments):
    command = [sys.executable, "-W", "error", "-m", "mixprec", "info", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_command_prints_the_report():
    lines = info().splitlines()
    assert lines[0].split()[:3] == ["mixprec", "ok", VERSION]
    assert lines[-1].startswith("device 'auto'")


def test_the_command_prints_json(capsys):
    assert command.main(["--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["machine"]["CPU"] == environment.cpu()
    assert printed["components"][0]["version"] == VERSION


def test_the_command_prints_all_replacements(capsys):
    assert command.main(["--patches"]) == 0
    assert capsys.readouterr().out == f"{patches.report()}\n"


@pytest.mark.slow
def test_the_report_without_any_package():
    """Not even NumPy: it is for environments in which something is wrong."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['', 'info']\n"
         "from mixprec.app.commands import main; main.console()"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    states = {line[:14].rstrip(): line[14:].split()[0] for line in done.stdout.splitlines()}
    assert (states["NumPy"], states["Chainer"]) == ("missing", "broken")
