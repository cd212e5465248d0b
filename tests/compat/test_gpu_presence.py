"""Whether there is a GPU is known without CUDA: from the environment, NVML, and the driver's files."""

import ctypes
import types

import pytest

from mixprec.compat import gpu_presence


def nvml(count, init=0, counted=0):
    """A stand-in for libnvidia-ml.so.1 that keeps the names of what was called."""

    def nvmlInit_v2():
        calls.append("init")
        return init

    def nvmlDeviceGetCount_v2(reference):
        calls.append("count")
        reference._obj.value = count
        return counted

    def nvmlShutdown():
        calls.append("shutdown")
        return 0

    calls = []
    functions = (nvmlInit_v2, nvmlDeviceGetCount_v2, nvmlShutdown)
    return types.SimpleNamespace(calls=calls, **{function.__name__: function for function in functions})


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Sets which libraries there are, by name, and whether there is a file of a device."""

    def set_up(libraries, device_file=False):
        def load(name):
            if name not in libraries:
                raise OSError(f"{name}: cannot open shared object file")
            return libraries[name]

        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(gpu_presence, "_DEVICE_FILES", (str(tmp_path / "none*"), str(tmp_path / "nvidia[0-9]*")))
        (tmp_path / "nvidiactl").touch()
        if device_file:
            (tmp_path / "nvidia0").touch()

    return set_up


@pytest.mark.parametrize(("count", "there"), [(0, False), (8, True)])
def test_nvml_is_asked_and_closed(machine, count, there):
    """Also where the driver's library lies about: a container of an image with CUDA, on a machine without a GPU."""
    library = nvml(count)
    machine({"libnvidia-ml.so.1": library, "libcuda.so.1": object()}, device_file=True)
    assert gpu_presence.gpu_is_there() == there
    assert library.calls == ["init", "count", "shutdown"]


@pytest.mark.parametrize(
    ("library", "driver", "file"),
    [(None, True, True), (nvml(1, init=9), True, False), (nvml(1, counted=999), False, True), (object(), True, True)],
    ids=["none", "fails", "cannot count", "odd"],
)
def test_without_nvml_the_driver_and_a_device_file_are_looked_for(machine, library, driver, file):
    libraries = {"libcuda.so.1": object()} if driver else {}
    if library is not None:
        libraries["libnvidia-ml.so.1"] = library
    machine(libraries, file)
    assert gpu_presence.gpu_is_there() == (driver and file)


HIDDEN = [("", False), (" ", False), ("-1,0", False), ("NoDevFiles", False), (",0", False)]
HIDDEN += [("1,0", True), ("GPU-8932f937", True), ("0,-1", True)]


@pytest.mark.parametrize(("value", "there"), HIDDEN)
def test_hidden_gpus_are_not_there(machine, monkeypatch, value, there):
    library = nvml(1)
    machine({"libnvidia-ml.so.1": library})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert gpu_presence.gpu_is_there() == there
    assert bool(library.calls) == there
