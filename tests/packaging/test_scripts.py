"""Each script finds the library where none is installed, whatever the working directory."""

import pytest

from tests import ROOT

SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.py") if path.name != "__init__.py")


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_help_of_a_script(bare, tmp_path, script):
    printed, errors = bare.run(ROOT / "scripts" / script, "--help", cwd=tmp_path)
    assert printed.startswith((f"usage: {script}", "usage: mixprec "))  # a command of the same name
    assert errors == ""
    assert list(tmp_path.iterdir()) == []
