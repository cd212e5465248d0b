"""What an index of packages shows: README.md, whose relative links would lead nowhere there."""

import re
import runpy

import pytest
import setuptools

from tests import ROOT

URL = "https://code.example/chainer/mixprec"
RELATIVE = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")


@pytest.fixture
def setup(monkeypatch):
    """Runs setup.py without building, with an address in the environment; returns its module and what it hands on."""

    def run(url):
        handed = {}
        monkeypatch.setattr(setuptools, "setup", lambda **options: handed.update(options))
        monkeypatch.setenv("MIXPREC_URL", url)
        monkeypatch.chdir(ROOT)
        return runpy.run_path("setup.py"), handed

    return run


def _prose(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def test_without_an_address_the_text_of_a_link_stays(setup):
    _, handed = setup("")
    readme, made = (ROOT / "README.md").read_text(), handed["long_description"]
    assert RELATIVE.findall(_prose(readme))
    assert not RELATIVE.findall(_prose(made))
    assert re.findall(r"\]\((https?:[^)]+)", made) == re.findall(r"\]\((https?:[^)]+)", readme)
    assert handed["project_urls"] == {"Chainer": "https://chainer.org"}


def test_with_an_address_links_lead_to_the_files_of_the_version(setup):
    _, handed = setup(URL + "/")
    readme, made = (ROOT / "README.md").read_text(), handed["long_description"]
    assert not RELATIVE.findall(_prose(made))
    of_version = re.findall(re.escape(URL) + r"/(?:blob|raw)/v0\.1\.0/([^)\s]+)", made)
    assert of_version == RELATIVE.findall(_prose(readme))
    assert {name: url.startswith(URL) for name, url in handed["project_urls"].items()} == {
        "Source": True,
        "Documentation": True,
        "Issues": True,
        "Chainer": False,
    }


def test_images_and_code(setup):
    """An image's address is that of its bytes; what is in a block of code is no link."""
    module, _ = setup("")
    text = '![curve](docs/a.svg) [here](#top)\n\n```python\nf["x"](y)\n```\n\n[two\nlines](docs/b.md#c)\n'
    assert module["description"](text, "", "1") == text.replace("![curve](docs/a.svg)", "curve").replace(
        "[two\nlines](docs/b.md#c)", "two\nlines"
    )
    linked = module["description"](text, URL, "1")
    assert f"![curve]({URL}/raw/v1/docs/a.svg) [here](#top)" in linked
    assert f"[two\nlines]({URL}/blob/v1/docs/b.md#c)" in linked
