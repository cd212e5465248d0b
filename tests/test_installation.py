"""How mixprec names the installation of an extra, and a page, in a checkout and in a wheel."""

from mixprec.base import installation
from mixprec.base.installation import cuda_hint, install_hint, page


def test_in_a_checkout():
    assert install_hint("export") == 'pip install -e ".[export]"'
    assert cuda_hint() == 'pip install -e ".[cuda13]"  (CUDA 12: ".[cuda12]")'
    assert page("config.md") == "docs/config.md"


def test_of_a_wheel(monkeypatch, tmp_path):
    monkeypatch.setattr(installation, "_PACKAGE", tmp_path / "mixprec")
    assert install_hint("export") == 'pip install "mixprec[export]"'
    assert cuda_hint() == 'pip install "mixprec[cuda13]"  (CUDA 12: "mixprec[cuda12]")'
    assert page("config.md") == str(tmp_path / "mixprec" / "docs" / "config.md")
