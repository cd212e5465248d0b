"""The Makefile keeps the environment that is there: what `make install` would do, by its dry run."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def _environment():
    """The variables of this process without those that a make around the tests hands on."""
    own = ("PYTHON", "EXTRAS", "ARGS")
    return {name: value for name, value in os.environ.items() if "MAKE" not in name and name not in own}


@pytest.fixture
def checkout(tmp_path):
    for name in ("Makefile", "setup.cfg", "setup.py", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def _made(folder, extras=None):
    """An environment that was made with these extras, or by `make train`, as far as the Makefile can see."""
    folder.joinpath(".venv", "bin").mkdir(parents=True)
    folder.joinpath(".venv", "bin", "python").symlink_to(sys.executable)
    version = ".".join(map(str, sys.version_info[:2]))
    folder.joinpath(".venv", f".installed-{version}").touch()
    folder.joinpath(".venv", ".compiled").touch()
    if extras is not None:
        folder.joinpath(".venv", f".installed-{version}+{extras}").touch()


def _would_run(folder, *arguments):
    """The lines that make would run."""
    command = ["make", "--dry-run", *arguments]
    env = _environment()
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def _installs(folder, *arguments):
    """What make would install: whether in a new environment, and the extras (``None``: it would add none)."""
    printed = _would_run(folder, *arguments)
    is_new = "a new environment" in printed
    assert is_new == ("--clear" in printed) == ("--editable ." in printed)
    found = re.search(r'"mixprec\[(.*)\]"', printed)
    return is_new, found and found[1]


@pytest.mark.parametrize("has_mpi", [True, False])
def test_several_ranks_are_started_by_an_mpiexec_of_the_environment(checkout, has_mpi):
    _made(checkout, "dali")
    if has_mpi:
        checkout.joinpath(".venv", "bin", "mpiexec").touch()
    printed = _would_run(checkout, "train", "RANKS=2", "CONFIG=c.yaml")
    assert ('"mixprec[mpi]"' in printed) == (not has_mpi)
    command = printed.splitlines()[-1]
    assert command.endswith(".venv/bin/mpiexec -n 2 .venv/bin/python -m mixprec train --config c.yaml ")


def test_training_needs_no_extras_and_all_else_those_for_a_cpu(checkout):
    assert _installs(checkout, "train") == (True, None)
    assert _installs(checkout, "train", "EXTRAS=cuda13,test") == (True, "cuda13,test")
    assert _installs(checkout, "monitor") == (True, "monitor")
    for target in ("install", "test", "lint"):
        assert _installs(checkout, target) == (True, "dali,test")


@pytest.mark.parametrize("extras", ["dali,test", "cuda13", "legacy"])
def test_extras_are_added_to_the_environment_of_training(checkout, extras):
    _made(checkout)
    assert _installs(checkout, "train") == (False, None)
    assert _installs(checkout, "test") == (False, "dali,test")
    assert _installs(checkout, "test", f"EXTRAS={extras}") == (False, extras)


@pytest.mark.parametrize("extras", ["cuda13,test", "dali,test-cupy"])
def test_an_environment_keeps_its_extras_where_none_are_given(checkout, extras):
    _made(checkout, extras)
    for target in ("install", "train"):
        assert _installs(checkout, target) == (False, None)
        assert _installs(checkout, target, f"EXTRAS={extras}") == (False, None)
        assert _installs(checkout, target, "--assume-new=setup.cfg") == (True, extras)


def test_other_extras_or_another_python_make_the_environment_anew(checkout):
    _made(checkout, "cuda13,test")
    assert _installs(checkout, "install", "EXTRAS=dali,test") == (True, "dali,test")
    other = checkout / "python"
    other.write_text("#!/bin/sh\necho 3.9\n")
    other.chmod(0o755)
    assert _installs(checkout, "train", f"PYTHON={other}") == (True, "cuda13,test")


def test_an_environment_with_an_extra_of_the_past_is_made_anew_without_it(checkout):
    _made(checkout, "cuda13,digits,test")
    assert _installs(checkout, "install") == (True, "cuda13,test")


def test_old_code_gets_the_versions_of_its_extra_in_place_of_the_pinned_ones(checkout):
    """The recipe's own line is run: all else of ``constraints.txt`` stays."""
    printed = _would_run(checkout, "install", "EXTRAS=legacy,test-legacy")
    assert '--constraint .venv/constraints.txt "mixprec[legacy,test-legacy]"' in printed
    assert "torch; python_version" in printed
    (line,) = (line for line in printed.splitlines() if "grep -vE" in line)
    checkout.joinpath(".venv").mkdir()
    subprocess.run(line, shell=True, cwd=checkout, check=True)
    pinned = checkout.joinpath("constraints.txt").read_text().splitlines()
    left = [line for line in pinned if not line.startswith(("numpy==", "protobuf=="))]
    made = checkout.joinpath(".venv", "constraints.txt").read_text().splitlines()
    assert made[: len(left)] == left
    assert [re.match(r"\w+", line)[0] for line in made[len(left) :]] == ["numpy", "setuptools", "protobuf"]
