"""Configs that would be read or thought about for ever, and what their messages show of them."""

import os

import pytest

from tests.app.config.refusal import refusal
from tests.app.config.test_bounds import SMALL
from tests.guard import guarded

NO_FILE = "cannot be read: a device, pipe or socket, not a file"


@pytest.fixture(autouse=True)
def _bounded():
    with guarded():
        yield


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(SMALL)
    return tmp_path


def test_a_config_that_is_no_file_is_refused(work):
    os.mkfifo(work / "pipe.yaml")
    assert refusal("/dev/zero") == f"/dev/zero: {NO_FILE}"
    assert refusal("pipe.yaml") == f"pipe.yaml: {NO_FILE}"


def test_a_base_that_is_no_file_is_refused(work):
    os.mkfifo(work / "pipe.yaml")
    for base in ("/dev/zero", "pipe.yaml"):
        (work / "d.yaml").write_text(f"base: {base}\n")
        assert refusal("d.yaml") == f"{base}: {NO_FILE}"


def test_a_config_has_a_largest_size(work):
    (work / "c.yaml").write_text(SMALL + 300 * 1024 * "#")
    assert refusal("c.yaml") == "c.yaml: cannot be read: larger than 256 KiB"
    os.truncate("c.yaml", 1 << 34)
    assert refusal("c.yaml") == "c.yaml: cannot be read: larger than 256 KiB"


@pytest.mark.parametrize(
    "text", ["1" * 200_000 + "x", "1" * 200_000 + "e", "." * 200_000, "-" * 200_000, "1." * 100_000]
)
def test_what_is_nearly_a_number_is_read_in_no_time(work, text):
    (work / "c.yaml").write_text(f"optimizer: {{lr: {text}}}\n")
    assert "'optimizer.lr' is '" in refusal("c.yaml")


def test_an_avalanche_of_aliases_is_not_expanded(work):
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for name, before in zip("bcdefghij", "abcdefghi", strict=True):
        bomb += f"{name}: &{name} [{', '.join(9 * [f'*{before}'])}]\n"
    (work / "c.yaml").write_text(bomb + "model: {arch: *j}\n")
    assert refusal("c.yaml").startswith("c.yaml:1: unknown section 'a'; allowed: ")
    (work / "c.yaml").write_text(f"data:\n  mean: &a [1]\n  std: {500 * '['}*a{500 * ']'}\n")
    refusal("c.yaml")


QUOTED = [
    ("{name}: 1", "{name}=1"),
    ("model: {{{name}: 1}}", "model.{name}=1"),
    ("model: {{arch: {name}, classes: {name}}}", "model.classes={name}"),
    ("model: !<{name}> {{}}", "model.arch=!<{name}> a"),
    ("model: *{name}", "model.arch=*{name}"),
    ("base: {name}", "{name}"),
    ("model: {{classes: [{name}, {name}]}}", "model.classes=[{name}, {name}]"),
]


@pytest.mark.parametrize(("text", "override"), QUOTED)
@pytest.mark.parametrize("name", ["x" * 5000, '"a\\n\\0\\e[31m"', "\x1b[31m", "\0", '"\\ud800"', "ä\u2028\x85"])
def test_whatever_is_quoted_a_message_is_one_printable_line_that_is_not_too_long(work, name, text, override):
    (work / "bad.yaml").write_text(text.format(name=name) + "\n")
    refusal("bad.yaml")
    refusal("c.yaml", [override.format(name=name)])
    refusal(name[:200].replace("\0", "") + "/none.yaml")


def test_a_message_about_a_long_key_keeps_what_is_allowed(work):
    assert refusal("c.yaml", [f"model.{5000 * 'x'}=1"]).endswith(
        "; allowed: arch, classes, weights, memory_format, fuse, conv_statistics, zero_init_residual, stochastic_depth"
    )
