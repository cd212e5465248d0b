"""scripts/tune.py: what it says, what it keeps, and what it does without a device."""

import types

import numpy as np
import pytest

from benchmarks import configured, engine_search
from mixprec.app.parts import environment
from mixprec.backends.cudnn import settings
from mixprec.backends.cudnn.errors import BrokenDevice
from mixprec.backends.geometry import BatchNorm
from mixprec.base import cudnn_library
from scripts import tune as script
from tests.stand_ins.cuda_on_host import HostCuda, send

pytestmark = pytest.mark.slow

CONFIG = configured.load("nhwc_fused_batched.yaml", arch="resnet18", batch=2, size=32)


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """A training step is a batch normalization, in which cuDNN is slower than the own kernels."""
    settings.configure(cache=tmp_path)
    x, *parameters = send((np.ones((2, 3, 3, 16), np.float16), *np.ones((2, 16), np.float32)))
    seen = []

    def updater_of(config, network, specifier):
        cuda = HostCuda(2.0)
        chosen = {name: getattr(config.cudnn, name) for name in ("autotune", "compile_seconds", "search_seconds")}
        settings.configure(**chosen)
        seen.append((config.capture.mode, *chosen.values()))
        update = lambda: cuda.batch_norm(x, *parameters, None, BatchNorm(relu=True))  # noqa: E731
        return types.SimpleNamespace(update=update)

    monkeypatch.setattr(configured, "updater_of", updater_of)
    return seen


def test_each_choice_is_said_with_its_gain_and_kept(steps, tmp_path):
    lines = []
    choices = engine_search.tune(CONFIG, None, "@cupy:0", 40, lines.append)
    assert steps == [("off", "measure", 40, None)]
    assert [choice.name for choice in choices] == ["eng0_k0=0", "kernels, backwards"]
    assert lines[0] == ("batch_norm x float16 2x3x3x16: eng0_k0=0, 4.0000 ms; unmeasured 4.0000 ms, gain 0%")
    assert lines[1].startswith("batch_norm (2, 3, 3, 16) float16 BatchNorm(")
    assert lines[1].endswith(": kernels, backwards, 2.0000 ms; unmeasured 2.0000 ms, gain 0%")
    assert (next(tmp_path.glob("*.json")).read_text()).count('"seconds": 40') == 2


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(environment, "resolve_device", lambda wanted: ("@cupy:0", "GPU 0 of 1: NVIDIA H200"))
    monkeypatch.setattr(cudnn_library, "load", lambda: None)


def test_the_command_says_what_it_has_found(steps, gpu, capsys, tmp_path):
    arguments = ["--arch", "resnet18", "--batch", "2", "--size", "32", "--seconds-per-operation", "5"]
    assert script.main(arguments) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "resnet18, batch 2, 32 x 32, on GPU 0 of 1: NVIDIA H200"
    assert last == f"2 choices, kept in {tmp_path}: 6.000 ms in all, each once; unmeasured 6.000 ms"
    assert script.main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "nothing to do: everything was measured before, with as much time"
    )


def test_an_engine_that_breaks_the_device_is_one_line(gpu, capsys, monkeypatch):
    def breaking(*arguments):
        raise BrokenDevice("eng1 has broken the device")

    monkeypatch.setattr(engine_search, "tune", breaking)
    assert script.main([]) == 1
    assert capsys.readouterr().err == "tune: eng1 has broken the device\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seconds-per-operation", "1e9"], "compile_seconds: found 1000000000.0, expected a number from 0 to 86400"),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--set", "cudnn.fast=1"], "cudnn.fast"),
    ],
)
def test_a_wrong_argument_is_one_line(gpu, capsys, arguments, message):
    assert script.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_without_a_device_it_is_one_line_and_status_2(capsys, monkeypatch):
    def no_gpu(wanted):
        raise ValueError("device: found 'gpu', but there is none")

    monkeypatch.setattr(environment, "resolve_device", no_gpu)
    assert script.main(["--arch", "resnet18", "--batch", "2"]) == 2
    assert capsys.readouterr() == ("", "tune: device: found 'gpu', but there is none\n")
