"""What the user decides about cuDNN: defaults, refusals, Chainer's own switches, threads."""

import dataclasses
import os
import threading
from pathlib import Path

import chainer
import pytest

from mixprec.app.config import load
from mixprec.app.parts.model import build_model
from mixprec.backends.cudnn.settings import Settings, configure, current, default_cache


@pytest.fixture(autouse=True)
def _defaults():
    configure(**dataclasses.asdict(Settings()))


def test_what_is_not_named_stays():
    configure(workspace=2**20)
    configure(tf32=True)
    assert (current().workspace, current().tf32, current().autotune) == (2**20, True, "heuristic")


REFUSED = [
    ({"autotune": "fast"}, "autotune: found 'fast', expected one of 'off', 'heuristic', 'measure'"),
    ({"workspace": 1e9}, "workspace: found 1000000000.0, expected a number of bytes, an int >= 0 and <= 1099511627776"),
    ({"workspace": True}, "workspace: found True, expected a number of bytes, an int >= 0 and <= 1099511627776"),
    ({"deterministic": 1}, "deterministic: found 1, expected True or False"),
    ({"cache": ""}, "cache: found '', expected the path of a folder, or None"),
    ({"compile_seconds": -1}, "compile_seconds: found -1, expected a number from 0 to 86400"),
    ({"search_seconds": float("nan")}, "search_seconds: found nan, expected a number from 0 to 86400, or None"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_a_refused_value_changes_nothing(change, message):
    before = current()
    with pytest.raises(ValueError, match="found") as caught:
        configure(workspace=1, **change) if "workspace" not in change else configure(tf32=True, **change)
    assert str(caught.value) == message
    assert current() is before


def test_a_path_object_and_its_text_are_the_same_setting():
    configure(cache=Path("a/b"))
    first = current()
    configure(cache="a/b")
    assert current() == first
    assert current().cache == os.path.join("a", "b")


def test_chainers_own_switches_count_too():
    configure(autotune="off")
    with chainer.using_config("autotune", True):
        assert (current().autotune, current().deterministic) == ("measure", False)
        with chainer.using_config("cudnn_deterministic", True):
            assert (current().autotune, current().deterministic) == ("measure", True)
    assert (current().autotune, current().deterministic) == ("off", False)
    configure(deterministic=True)
    with chainer.using_config("cudnn_deterministic", False):
        assert current().deterministic


def test_tensor_cores_are_chainers_switch():
    found = {}
    for value in ("never", "auto", "always"):
        with chainer.using_config("use_cudnn_tensor_core", value):
            found[value] = (current().tensor_cores, current().tf32)
    assert found == {"never": (False, False), "auto": (True, False), "always": (True, True)}
    with (
        chainer.using_config("use_cudnn_tensor_core", "yes"),
        pytest.raises(ValueError, match="use_cudnn_tensor_core: found 'yes', expected 'always', 'auto' or 'never'"),
    ):
        current()


def test_chainers_switches_are_those_of_the_thread_and_settings_those_of_the_process():
    seen = []
    with chainer.using_config("autotune", True):
        configure(workspace=7)
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
    assert (seen[0].autotune, seen[0].workspace) == ("heuristic", 7)


def test_the_cache_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == str(tmp_path / "mixprec")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    expected = str(tmp_path / "home" / ".cache" / "mixprec")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    assert default_cache() == expected
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == expected


def test_the_section_of_a_config_holds_before_the_model_runs(tmp_path):
    (tmp_path / "c.yaml").write_text(
        "model: {arch: a, classes: 2}\ndata: {train: t, val: v}\noptimizer: {lr: 1}\n"
        "training: {batch_size: 1, epochs: 1}\n"
        "cudnn: {autotune: off, workspace_mib: 64, deterministic: true, allow_tf32: true,\n"
        "        search_seconds: 20, compile_seconds: 3}\n"
    )
    seen = []

    class Network(chainer.Chain):
        def __init__(self, classes):
            super().__init__()
            seen.append(current())

        def forward(self, x):
            return x

    config = load(tmp_path / "c.yaml")
    build_model(config, Network, "@numpy")
    assert seen == [Settings("off", 64 * 2**20, True, True, compile_seconds=3, search_seconds=20)]
    build_model(load(tmp_path / "c.yaml", ["cudnn.autotune=measure"]), Network, "@numpy")
    assert seen[1].autotune == "measure"
