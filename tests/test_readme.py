"""The Python of README and docs/primitives.md runs as printed, and what they name exists."""

import itertools
import re
import subprocess
import sys

import pytest

from tests import ROOT

README = (ROOT / "README.md").read_text()
PRIMITIVES = (ROOT / "docs/primitives.md").read_text()
BLOCKS = [re.findall(r"```python\n(.*?)```", page, re.DOTALL) for page in (README, PRIMITIVES)]


def test_there_is_python_to_run():
    assert all(BLOCKS)


@pytest.mark.parametrize("block", list(itertools.chain(*BLOCKS)), ids=itertools.count())
def test_python_runs_as_printed(block, tmp_path):
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr


def test_every_file_it_names_exists():
    paths = re.findall(r"\b(?:benchmarks|configs|docs|scripts)/[\w.-]+\w", README)
    for name in re.findall(r"\]\(([\w./-]+)\)", README) + paths:
        assert (ROOT / name).exists(), name


def test_every_file_that_the_primitives_name_exists():
    folders = "benchmarks|backends|models|scripts|tests"
    for name in re.findall(rf"(?<![\w/-])((?:mixprec/)?(?:{folders})/[\w./]+\.\w+)", PRIMITIVES):
        assert (ROOT / name).exists() or (ROOT / "mixprec" / name).exists(), name


def test_every_make_target_it_names_exists():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for name in re.findall(r"\bmake ([\w-]+)`", README):
        assert name in targets
