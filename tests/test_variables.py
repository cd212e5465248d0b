"""Environment variables of mixprec: what each may be, and what is said of another value."""

import os
import subprocess
import sys

import pytest

from mixprec.app.commands.main import COMMANDS as NAMES
from mixprec.app.parts import environment
from mixprec.base import variables
from tests import ROOT

WRONG = [(name, value) for name in variables.VARIABLES for value in ("x", "00", " 1")]
COMMANDS = [
    *(["scripts/" + path.name] for path in sorted((ROOT / "scripts").glob("[a-z]*.py"))),
    *(["-m", "mixprec", name] for name in NAMES if name != "info"),
    ["-m", "mixprec"],
]


def python(arguments, **environ):
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("name", variables.VARIABLES)
def test_empty_is_as_not_set(monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    default = variables.value(name)
    monkeypatch.setenv(name, "")
    assert variables.value(name) == default
    variables.check()
    for allowed in variables.VARIABLES[name].allowed:
        monkeypatch.setenv(name, allowed)
        assert variables.value(name) == allowed


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_another_value_is_one_line(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(variables.VariableError, match=rf"^{name}={value}: allowed: .* or \w+; default: [01]$"):
        variables.check()


def test_the_import_of_chainer_raises():
    name = "MIXPREC_NATIVE"
    done = python(["-c", "import mixprec; print('imported'); import chainer"], **{name: "x"})
    assert (done.returncode, done.stdout) == (1, "imported\n")
    assert done.stderr.splitlines()[-1].startswith(f"mixprec.base.variables.VariableError: {name}=x: allowed: ")


def test_each_python_of_the_environment_goes_on():
    """The start-up file imports mixprec in all of them."""
    done = python(["-c", "import mixprec.startup, json"], **dict.fromkeys(variables.VARIABLES, "x"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "command", [COMMANDS[-1], *(pytest.param(each, marks=pytest.mark.slow) for each in COMMANDS[:-1])]
)
def test_commands_end_with_one_line(command):
    done = python([*command, "--help"], MIXPREC_NATIVE="x")
    line = "error: MIXPREC_NATIVE=x: allowed: 1, 0, avx2, avx512 or avx512bf16; default: 1\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_the_report_says_what_is_set(monkeypatch):
    for name in variables.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert environment._variables() == []
    monkeypatch.setenv("MIXPREC_NATIVE", "avx2")
    monkeypatch.setenv("MIXPREC_NATIVES", "a\nb")
    (row,) = environment._variables()
    assert (row.state, row.note.splitlines()) == (
        "ok",
        [
            "MIXPREC_NATIVE=avx2 (the native library, its instructions); "
            r"MIXPREC_NATIVES=a\nb (mixprec has no such variable)"
        ],
    )
    monkeypatch.setenv("MIXPREC_CUDNN", "x")
    (row,) = environment._variables()
    assert (row.state, row.note) == ("broken", "MIXPREC_CUDNN=x: allowed: 1 or 0; default: 1")


def test_the_report_does_not_show_the_token(monkeypatch):
    """It is also written to ``environment.txt`` of a run."""
    monkeypatch.delenv("MIXPREC_NATIVE", raising=False)
    monkeypatch.setenv("MIXPREC_MONITOR_TOKEN", "correct-horse.battery~staple")
    (row,) = environment._variables()
    assert (row.state, row.note) == ("ok", "MIXPREC_MONITOR_TOKEN is set (it opens the pages of the monitor)")
    assert "staple" not in environment.report()


@pytest.mark.slow
def test_the_report_goes_on_with_a_wrong_one():
    done = python(["-m", "mixprec", "info"], MIXPREC_NATIVE="x")
    assert (done.returncode, done.stderr) == (0, "")
    assert "MIXPREC_NATIVE=x: allowed: 1, 0, avx2, avx512 or avx512bf16" in done.stdout
