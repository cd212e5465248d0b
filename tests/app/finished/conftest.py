"""A run that all tests here export, and its files."""

import pytest

from mixprec.app.commands import export
from tests.app.finished import runs
from tests.called import call


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """Folder with ``images``, ``small.yaml`` and ``run``, see :func:`runs.make`; it stays as it is."""
    root = tmp_path_factory.mktemp("export")
    runs.make(root)
    return root


@pytest.fixture(scope="session")
def exporting(work, tmp_path_factory):
    """``(folder, printed)``: what the command has written for ``work`` with :data:`runs.ALL`."""
    out = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mixprec.app.finished.check._SPEED_SECONDS", 0.01)
        done = call(export.main, "--run", work / "run", "--out", out, *runs.ALL)
    assert (done.returncode, done.stderr) == (0, "")
    return out, done.stdout


@pytest.fixture(scope="session")
def exported(exporting):
    """Folder with files; it stays as it is."""
    return exporting[0]


@pytest.fixture(autouse=True)
def _no_time(monkeypatch):
    """Speeds are measured, but not for long."""
    monkeypatch.setattr("mixprec.app.finished.check._SPEED_SECONDS", 0.01)
