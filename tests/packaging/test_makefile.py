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


def _made(folder, extras):
    """An environment that was made with these extras, as far as the Makefile can see."""
    folder.joinpath(".venv", "bin").mkdir(parents=True)
    folder.joinpath(".venv", "bin", "python").symlink_to(sys.executable)
    version = ".".join(map(str, sys.version_info[:2]))
    folder.joinpath(".venv", f".installed-{version}+{extras}").touch()


def _installs(folder, *arguments):
    """The extras that `make install` would install in a new environment, or ``None`` if it would make none."""
    command = ["make", "--dry-run", "install", *arguments]
    env = _environment()
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True, timeout=60)
    printed = done.stdout
    assert ("a new environment" in printed) == ("--clear" in printed)
    found = re.search(r'--editable "\.\[(.*)\]"', printed)
    return found and found[1]


@pytest.mark.parametrize("has_mpi", [True, False])
def test_several_ranks_are_started_by_an_mpiexec_of_the_environment(checkout, has_mpi):
    _made(checkout, "dali")
    if has_mpi:
        checkout.joinpath(".venv", "bin", "mpiexec").touch()
    env = _environment()
    command = ["make", "--dry-run", "train", "RANKS=2", "CONFIG=c.yaml"]
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert ('--editable ".[mpi]"' in done.stdout) == (not has_mpi)
    command = done.stdout.splitlines()[-1]
    assert command.endswith(".venv/bin/mpiexec -n 2 .venv/bin/python -m mixprec train --config c.yaml ")


def test_without_an_environment_the_extras_are_for_a_cpu(checkout):
    assert _installs(checkout) == "dali,test"


@pytest.mark.parametrize("extras", ["cuda13,test", "dali,test-cupy"])
def test_an_environment_keeps_its_extras_where_none_are_given(checkout, extras):
    _made(checkout, extras)
    assert _installs(checkout) is None
    assert _installs(checkout, f"EXTRAS={extras}") is None
    assert _installs(checkout, "--assume-new=setup.cfg") == extras


def test_other_extras_make_the_environment_anew(checkout):
    _made(checkout, "cuda13,test")
    assert _installs(checkout, "EXTRAS=dali,test") == "dali,test"


def test_an_environment_with_an_extra_of_the_past_is_made_anew_without_it(checkout):
    _made(checkout, "cuda13,digits,test")
    assert _installs(checkout) == "cuda13,test"


def test_old_code_gets_the_versions_of_its_extra_in_place_of_the_pinned_ones(checkout):
    """The recipe's own line is run: all else of ``constraints.txt`` stays."""
    command = ["make", "--dry-run", "install", "EXTRAS=legacy,test-legacy"]
    env = _environment()
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert "--constraint .venv/constraints.txt" in done.stdout
    assert "torch; python_version" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if "grep -vE" in line)
    checkout.joinpath(".venv").mkdir()
    subprocess.run(line, shell=True, cwd=checkout, check=True)
    pinned = checkout.joinpath("constraints.txt").read_text().splitlines()
    left = [line for line in pinned if not line.startswith(("numpy==", "protobuf=="))]
    made = checkout.joinpath(".venv", "constraints.txt").read_text().splitlines()
    assert made[: len(left)] == left
    assert [re.match(r"\w+", line)[0] for line in made[len(left) :]] == ["numpy", "setuptools", "protobuf"]
