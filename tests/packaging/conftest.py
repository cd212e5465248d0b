"""Virtual environments that have everything the tests have, but not the mixprec that is tested elsewhere."""

import os
import pathlib
import shutil
import site
import subprocess
import sys

import pytest

from tests import ROOT

FOLDERS = ("benchmarks", "configs", "docs", "mixprec", "models", "scripts", "tests")
FILES = ("build-constraints.txt", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.cfg", "setup.py")


class Downloaded:
    """A virtual environment of any Python, into which pip installs from PyPI; no compiler is at hand.

    Args:
        python: path of a Python with venv.
        folder: where the environment is made.
    """

    def __init__(self, python, folder):
        self.bin = pathlib.Path(folder) / "bin"
        subprocess.run([python, "-m", "venv", folder], check=True)

    def run(self, line, cwd):
        """Runs a line of a shell with the environment active, and returns what it printed."""
        env = without_python(os.environ) | {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self.bin.parent),
            "CC": "/bin/false",
            "CXX": "/bin/false",
            "PIP_NO_CACHE_DIR": "1",  # a wheel of Chainer is not taken from there
            "UV_NO_CACHE": "1",
            "UV_LINK_MODE": "copy",
        }
        shell = ["bash", "-e", "-c", line]
        done = subprocess.run(shell, cwd=cwd, env=env, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def without_python(variables):
    """Returns environment variables without those that are for another Python."""
    others = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in variables.items() if name not in others}


class Environment:
    """A virtual environment, made without a download.

    Args:
        folder: where it is made.
        wheel: path of a wheel that is installed into it, or ``None``.
    """

    def __init__(self, folder, wheel=None):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.folder = pathlib.Path(folder)
        self._python = self.folder / "bin" / "python"
        if wheel is not None:
            pip = [sys.executable, "-m", "pip", "--python", self._python, "install", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--no-index", "--disable-pip-version-check", wheel], env=self.variables, check=True)
        # The folders of packages that the tests run with, after its own. Python reads no .pth files there, among them
        # those of mixprec's editable installation.
        (packages,) = self.folder.glob("lib/python*/site-packages")
        (packages / "others.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))

    @property
    def variables(self):
        """Environment variables of its processes: this one's, without another Python's."""
        return without_python(os.environ)

    def run(self, *arguments, cwd, code=0):
        """Runs its Python and returns what it printed, ``(standard output, standard error)``."""
        return self._run([self._python, *arguments], cwd, code)

    def mixprec(self, *arguments, cwd, code=0):
        """Runs its command ``mixprec``, in the same way."""
        return self._run([self.command, *arguments], cwd, code)

    @property
    def command(self):
        """Path of the program ``mixprec``."""
        return self.folder / "bin" / "mixprec"

    def _run(self, command, cwd, code):
        done = subprocess.run(
            command, cwd=cwd, env=self.variables, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout, done.stderr


def build(source, out, **variables):
    """Builds a wheel of the folder ``source``, with environment variables, and returns its path."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command = [*pip, "--disable-pip-version-check", "--wheel-dir", out, source]
    subprocess.run(command, env={**os.environ, **variables}, check=True)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def pypi(tmp_path_factory):
    """Skips where PyPI cannot be reached."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--retries", "1"]
    folder = tmp_path_factory.mktemp("reached")
    if subprocess.run([*pip, "--dest", folder, "six"], capture_output=True, check=False).returncode:
        pytest.skip("PyPI cannot be reached")


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """A copy of the checkout, as building leaves folders behind."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="session")
def wheel(checkout, tmp_path_factory):
    """With a library that is hardly optimized, which takes seconds, not a minute: the last ``-O`` counts."""
    compiler = tmp_path_factory.mktemp("compiler") / "compiler"
    compiler.write_text('#!/bin/sh\nexec g++ "$@" -O1\n')
    compiler.chmod(0o755)
    return build(checkout, tmp_path_factory.mktemp("wheel"), CC=str(compiler), CXX=str(compiler))


@pytest.fixture(scope="session")
def environment(wheel, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """An environment without mixprec."""
    folder = tmp_path_factory.mktemp("bare")
    environment = Environment(folder / "venv")
    found, _ = environment.run("-c", "import importlib.util as u; print(u.find_spec('mixprec'))", cwd=folder)
    if found != "None\n":
        pytest.skip("mixprec is installed where the other packages are, and not as an editable installation")
    return environment
