"""Names with a line break, ESC or 5,000 characters: what the scripts say of them is one printable line."""

import os

import pytest

from mixprec.app.commands import convert_report, digits, pack
from scripts import benchmark, check_gpu, make_textures
from tests.called import call
from tests.guard import guarded

ODD = "a\nb\x1b[31m\udce4/" + 5000 * "x"


REFUSED = [
    (convert_report.main, [f"{ODD}:a"]),
    (convert_report.main, ["scripts:a", ODD]),
    (convert_report.main, ["chainer.links:Linear(3, 2)", "--input", "2x3", "--json", f"{ODD}/a.json"]),
    (convert_report.main, ["chainer.links:Linear(3, 2)", "--input", "2x3", "--json", "/dev/null"]),
    (pack.main, ["--source", ODD, "--out", "out", "--format", "tfrecord"]),
    (pack.main, ["--source", "/dev/zero", "--out", "out", "--format", "tfrecord"]),
    (pack.main, ["--verify", ODD]),
    (pack.main, ["--seed", ODD]),
    (digits.main, ["--size", ODD]),
    (make_textures.main, ["--images", ODD]),
    (benchmark.main, ["parity", "--config", ODD]),
    (benchmark.main, ["parity", "--config", "/dev/zero"]),
    (benchmark.main, ["parity", "--arms", ODD]),
    (digits.main, ["--out", ODD]),
    (digits.main, ["--out", "/dev/null"]),
    (benchmark.main, ["page", "--results", ODD]),
    (benchmark.main, ["parity", "--seeds", ODD]),
    (benchmark.main, ["loader", "--data", ODD]),
    (benchmark.main, ["loader", "--data", "/dev/zero"]),
    (benchmark.main, ["bars", "--json", f"{ODD}.json"]),
    (benchmark.main, ["profile", "--config", "/dev/zero"]),
]


@pytest.mark.parametrize(("main", "arguments"), REFUSED)
def test_an_odd_name_is_refused_in_one_printable_line(tmp_path, monkeypatch, main, arguments):
    monkeypatch.chdir(tmp_path)
    null = os.stat("/dev/null")
    with guarded(60, mib=4096):
        called = call(main, *arguments)
    assert called.returncode == 2, called
    line, end = called.stderr.split("\n")
    assert end == ""
    assert line.isprintable()
    assert len(line) < 1100
    assert os.stat("/dev/null") == null
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("main", [check_gpu.main, digits.main, make_textures.main, pack.main])
def test_an_empty_out_is_refused(main):
    ended = call(main, "--out", "")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: argument --out: it is empty; give a folder (see --help)\n"
