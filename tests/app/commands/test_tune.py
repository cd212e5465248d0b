"""mixprec tune: what it says, what it keeps, and what it does without a device."""

import types

import numpy as np
import pytest

from mixprec.app.commands import tune
from mixprec.app.parts import gpus
from mixprec.app.run import synthetic_run
from mixprec.backends.cudnn import settings
from mixprec.backends.cudnn.errors import BrokenDevice
from mixprec.backends.geometry import BatchNorm
from mixprec.base import cudnn_library
from mixprec.recipes import config_names
from tests.stand_ins.cuda_on_host import HostCuda, send

pytestmark = pytest.mark.slow

CONFIG = synthetic_run.load("nhwc_fused_batched.yaml", arch="resnet18", batch=2, size=32)


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

    monkeypatch.setattr(synthetic_run, "updater_of", updater_of)
    return seen


def test_each_choice_is_said_with_its_gain_and_kept(steps, capsys, tmp_path):
    choices = tune.search(CONFIG, None, "@cupy:0", 40)
    lines = capsys.readouterr().out.splitlines()
    assert steps == [("off", "measure", 40, None)]
    assert [choice.name for choice in choices] == ["eng0_k0=0", "kernels, backwards"]
    assert lines[0] == ("batch_norm x float16 2x3x3x16: eng0_k0=0, 4.0000 ms; unmeasured 4.0000 ms, gain 0%")
    assert lines[1].startswith("batch_norm (2, 3, 3, 16) float16 BatchNorm(")
    assert lines[1].endswith(": kernels, backwards, 2.0000 ms; unmeasured 2.0000 ms, gain 0%")
    assert (next(tmp_path.glob("*.json")).read_text()).count('"seconds": 40') == 2


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(gpus, "resolve_device", lambda wanted: ("@cupy:0", "GPU 0 of 1: NVIDIA H200"))
    monkeypatch.setattr(cudnn_library, "load", lambda: None)


def test_the_command_says_what_it_has_found(steps, gpu, capsys, tmp_path):
    arguments = ["--arch", "resnet18", "--batch", "2", "--size", "32", "--seconds-per-operation", "5"]
    assert tune.main(arguments) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "resnet18, batch 2, 32 x 32, on GPU 0 of 1: NVIDIA H200"
    assert last == f"2 choices, kept in {tmp_path}: 6.000 ms in all, each once; unmeasured 6.000 ms"
    assert tune.main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "nothing to do: everything was measured before, with as much time"
    )


def test_an_engine_that_breaks_the_device_is_one_line(gpu, capsys, monkeypatch):
    def breaking(*arguments):
        raise BrokenDevice("eng1 has broken the device")

    monkeypatch.setattr(tune, "search", breaking)
    assert tune.main([]) == 1
    assert capsys.readouterr().err == "error: eng1 has broken the device\n"


WRONG = [
    (["--seconds-per-operation", "1e9"], "compile_seconds: found 1000000000.0, expected a number from 0 to 86400"),
    (["--config", "missing.yaml"], "missing.yaml"),
    (["--set", "cudnn.fast=1"], "cudnn.fast"),
    (["--arch", "resnet5"], "'model.arch' is 'resnet5'; allowed: "),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_a_wrong_argument_is_one_line(gpu, capsys, arguments, message):
    assert tune.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_without_a_device_it_is_one_line_and_status_2(capsys, monkeypatch):
    monkeypatch.setattr(gpus, "resolve_device", lambda wanted: ("@numpy", "CPU: there is no GPU"))
    assert tune.main(["--arch", "resnet18", "--batch", "2"]) == 2
    assert capsys.readouterr() == ("", "error: mixprec tune needs a GPU; found CPU: there is no GPU\n")


def test_batch_and_size_and_network_are_those_of_the_config_unless_they_are_given():
    config = synthetic_run.load("digits.yaml")
    assert (config.model.arch, config.model.classes) == ("resnet8", 10)
    assert (config.training.batch_size, config.data.size, config.data.format) == (16, 32, "synthetic")
    config = synthetic_run.load("fp32.yaml", arch="resnet18", batch=4, size=64)
    assert (config.model.arch, config.training.batch_size, config.data.size) == ("resnet18", 4, 64)


@pytest.mark.parametrize("name", config_names())
def test_each_config_that_comes_with_mixprec_can_be_tuned(name):
    config = synthetic_run.load(name, batch=8)
    assert config.data.format == "synthetic"
