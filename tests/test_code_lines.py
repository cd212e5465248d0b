"""What `make lint` counts as a code line, and what it says of a folder that has too many."""

import importlib.util
import subprocess

from tests import ROOT

SOURCE = '''"""A module
of two lines."""

import os  # counts


def double(x):
    """Doubles."""
    # does not count
    text = """counts,

    three times"""
    return (
        x * 2
    )
'''


def _tool():
    spec = importlib.util.spec_from_file_location("code_lines", ROOT / ".ci" / "code_lines.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_words_and_blank_lines_do_not_count():
    assert _tool().code_lines(SOURCE.encode()) == 8


def test_a_folder_with_more_lines_than_its_number_is_named(tmp_path, capsys):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for folder in (".ci", "big", "new"):
        (tmp_path / folder).mkdir()
    (tmp_path / ".ci" / "code_lines.txt").write_text("big 7\n")
    (tmp_path / "big" / "double.py").write_text(SOURCE)
    assert _tool().main(tmp_path) == 1
    assert ".ci/code_lines.txt: big has 1 code lines more than its 7;" in capsys.readouterr().out
    (tmp_path / "new" / "one.py").write_text("x = 1\n")
    (tmp_path / ".ci" / "code_lines.txt").write_text("big 8\nnew 1\n")
    assert _tool().main(tmp_path) == 0
