"""What tests of INT8 change in the library."""

import pytest


@pytest.fixture
def vnni(monkeypatch):
    """Lets the processor have VNNI, or not."""
    return lambda there: monkeypatch.setattr("mixprec.export.int8.has_vnni", lambda: there)


@pytest.fixture
def only_minmax(monkeypatch):
    """For tests of what does not depend on the ranges."""
    monkeypatch.setattr("mixprec.export.int8.METHODS", ("minmax",))
