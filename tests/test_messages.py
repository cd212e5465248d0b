"""Text from outside in messages."""

import pickle

import pytest

from mixprec.app.commands.command_line import Parser, one_line
from mixprec.app.config import ConfigError
from mixprec.base.messages import OneLineError, beside, counted, hint, printable
from mixprec.data.data_error import DataError
from tests.called import call

HOSTILE = "a\nb\r\0\x1b[31m\x85\u2028\udce4"
ESCAPED = r"a\nb\r\x00\x1b[31m\x85\u2028\udce4"


def test_what_cannot_be_printed_is_escaped_and_letters_of_any_language_stay():
    assert printable(HOSTILE) == one_line(HOSTILE) == ESCAPED
    assert one_line("Größe 漢字 \U0001f600") == "Größe 漢字 \U0001f600"


def test_a_long_line_is_cut_in_the_middle_and_keeps_its_ends():
    line = one_line("file.yaml: " + 5000 * "x" + "; give another --out", limit=100)
    assert len(line) == 100
    assert line.startswith("file.yaml: ")
    assert line.endswith("; give another --out")
    assert one_line(100 * "x", limit=100) == 100 * "x"
    assert len(one_line(5000 * "\0")) == 1000


@pytest.mark.parametrize("kind", [ConfigError, DataError, OneLineError])
def test_an_error_is_one_printable_line_of_bounded_length(kind):
    error = kind(HOSTILE + 5000 * "x")
    assert str(error).startswith(ESCAPED)
    assert len(str(error)) == 1000
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_two_dashes_are_no_value_of_an_argument():
    """argparse makes an empty list of them."""
    parser = Parser(prog="x")
    parser.add_argument("--out")
    parser.add_argument("names", nargs="*")
    called = call(parser.parse_args, "--out=--")
    assert called == (2, "", "error: argument --out: found '--', expected a value (see --help)\n")
    assert parser.parse_args(["--out=a", "--", "--out=--"]).names == ["--out=--"]


def test_a_wrong_argument_is_one_printable_line():
    called = call(Parser(prog="x").parse_args, HOSTILE)
    assert called == (2, "", f"error: unrecognized arguments: {ESCAPED} (see --help)\n")


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_an_exception_whose_text_raises_has_none(kind):
    class Speechless(Exception):
        def __str__(self):
            raise kind

    assert one_line(Speechless()) == ""


SIMILAR = [
    ("modle.npz", "model.npz"),
    ("./modle.npz", "./model.npz"),
    ("digit/", "digits"),
    ("other", None),
    ("no/model", None),
]


@pytest.mark.parametrize(("name", "near"), SIMILAR)
def test_a_missing_file_is_answered_with_a_similar_name(tmp_path, monkeypatch, name, near):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.npz").touch()
    (tmp_path / "digits").mkdir()
    assert beside(name) == hint(near)


def test_nouns_agree_with_their_number():
    assert counted(1, "image") == "1 image"
    assert counted(0, "image") == "0 images"
    assert counted(2, "class", "classes") == "2 classes"
