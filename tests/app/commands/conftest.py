"""A run that the commands here look at."""

import pytest

from tests.app.finished import runs


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """Folder with ``images``, ``small.yaml`` and ``run``, see :func:`tests.app.finished.runs.make`; not changed."""
    root = tmp_path_factory.mktemp("commands")
    runs.make(root)
    return root
