"""Virtual environments that have everything the tests have, but not the mixprec that is tested elsewhere."""

import os
import pathlib
import site
import subprocess
import sys

import pytest


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
            subprocess.run([*pip, "--no-index", "--disable-pip-version-check", wheel], check=True)
        # The folders of packages that the tests run with, after its own. Python reads no .pth files there, among them
        # those of mixprec's editable installation.
        (packages,) = self.folder.glob("lib/python*/site-packages")
        (packages / "others.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))

    def run(self, *arguments, cwd, code=0):
        """Runs its Python and returns what it printed, ``(standard output, standard error)``."""
        without = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        done = subprocess.run(
            [self._python, *arguments],
            cwd=cwd,
            env={name: value for name, value in os.environ.items() if name not in without},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout, done.stderr


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """An environment without mixprec."""
    folder = tmp_path_factory.mktemp("bare")
    environment = Environment(folder / "venv")
    found, _ = environment.run("-c", "import importlib.util as u; print(u.find_spec('mixprec'))", cwd=folder)
    if found != "None\n":
        pytest.skip("mixprec is installed where the other packages are, and not as an editable installation")
    return environment
