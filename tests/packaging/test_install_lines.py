"""The lines that install mixprec from a checkout or its sdist in a fresh environment, without a compiler."""

import shutil
import subprocess
import sys

import pytest

from tests.packaging.conftest import Downloaded

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("pypi")]

EVERY_PIP = 'pip install "setuptools>=77,<81" wheel && pip install --no-build-isolation .'
TODAYS_PIP = "pip install --build-constraint build-constraints.txt ."


@pytest.fixture
def copy(checkout, tmp_path):
    """Building leaves folders behind."""
    return shutil.copytree(checkout, tmp_path / "checkout", symlinks=True)


@pytest.fixture
def environment(tmp_path):
    return Downloaded(sys.executable, tmp_path / "venv")


def _works(environment, folder):
    printed = environment.run("mixprec info", cwd=folder)
    assert "Chainer          ok          7.8.1" in printed
    assert "it was not compiled" in printed


PIPS = [("pip==23.2", EVERY_PIP), ("pip>=25.3", EVERY_PIP), ("pip>=25.3", TODAYS_PIP)]


@pytest.mark.parametrize(("pip", "line"), PIPS, ids=["2023", "today", "today's option"])
def test_pip(copy, environment, tmp_path, pip, line):
    environment.run(f"python -m pip install --quiet --upgrade '{pip}'", cwd=tmp_path)
    environment.run(line, cwd=copy)
    _works(environment, tmp_path)


def test_uv_in_a_checkout(copy, environment, tmp_path):
    """pyproject.toml tells uv what Chainer is built with."""
    environment.run("pip install --quiet uv", cwd=tmp_path)
    environment.run("uv pip install .", cwd=copy)
    _works(environment, tmp_path)


def test_uv_with_an_sdist(copy, environment, tmp_path):
    make = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", make, tmp_path], cwd=copy, stdout=subprocess.DEVNULL, check=True)
    environment.run("pip install --quiet uv", cwd=tmp_path)
    environment.run("echo 'setuptools<81' > build.txt", cwd=tmp_path)
    environment.run("uv pip install --build-constraints build.txt mixprec-0.1.0.tar.gz", cwd=tmp_path)
    _works(environment, tmp_path)
