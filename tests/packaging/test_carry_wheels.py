"""scripts/carry_wheels.py: what it asks of pip, without a network."""

import re
import subprocess

import pytest

from scripts import carry_wheels
from tests import ROOT


@pytest.fixture
def asked(monkeypatch):
    """The commands of pip, which put wheels of 1 MiB there; Chainer's is as large as ``asked.size`` says."""

    def run(command, **_):
        commands.append(command[1:])
        if command[3] == "install":
            return
        out = command[command.index("--dest" if command[3] == "download" else "--wheel-dir") + 1]
        for name in (word for word in command if "==" in word):
            with open(
                f"{out}/{name.replace('==', '-').replace('-', '_', name.count('-'))}-py3-none-any.whl", "wb"
            ) as file:
                file.truncate(sizes.get(name, 1 << 20))

    commands, sizes = [], {}
    monkeypatch.setattr(carry_wheels.subprocess, "run", run)
    monkeypatch.setattr(carry_wheels.venv, "create", lambda folder, with_pip: None)
    return commands, sizes


def test_the_folder_has_all_wheels_in_the_versions_of_the_project(asked, tmp_path, capsys):
    out = tmp_path / "new" / "wheels"
    assert carry_wheels.main(["--out", str(out)]) == 0
    download, install, build = asked[0]
    pinned = (ROOT / "constraints.txt").read_text()
    wanted = [word for word in (*download, *build) if "==" in word]
    assert {"chainer==7.8.1", "nvidia-cudnn-frontend==1.28.0"} < set(wanted)
    assert all(re.search(rf"^{re.escape(word)}( |$)", pinned, re.MULTILINE) for word in wanted)
    assert "setuptools<81" in install
    assert "--no-build-isolation" in build
    assert download[download.index("--python-version") + 1] == "3.12"
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(wanted) + 1
    assert lines[-1] == f"{len(wanted):6.1f} MiB  in {out}"


def test_what_is_too_large_to_travel_is_an_error(asked, tmp_path, capsys):
    asked[1]["chainer==7.8.1"] = 60 << 20
    assert carry_wheels.main(["--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "carry_wheels: more than the 56 MiB that may travel\n"
    assert carry_wheels.main(["--out", str(tmp_path)]) == 1  # the folder may have wheels


def test_what_pip_cannot_do_is_one_line(tmp_path, monkeypatch, capsys):
    def run(command, **_):
        raise subprocess.CalledProcessError(1, command, stderr="much\nERROR: No matching distribution found for six\n")

    monkeypatch.setattr(carry_wheels.subprocess, "run", run)
    assert carry_wheels.main(["--out", str(tmp_path)]) == 1
    line = "carry_wheels: -m pip download: ERROR: No matching distribution found for six\n"
    assert capsys.readouterr().err == line


BAD_ARGUMENTS = [
    (["--python", "4"], "--python: found '4', expected a version such as 3.12"),
    (["--out", "{folder}"], "--out {folder}: a.txt is no wheel; choose a new folder"),
    (["--out", ""], "argument --out: it is empty; give a folder"),
]


@pytest.mark.parametrize(("arguments", "error"), BAD_ARGUMENTS)
def test_bad_arguments_are_one_line(tmp_path, arguments, error, capsys):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(SystemExit) as ended:
        carry_wheels.main([argument.format(folder=tmp_path) for argument in arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {error.format(folder=tmp_path)} (see --help)\n"
    assert (tmp_path / "a.txt").exists()


def test_nothing_else_is_needed_than_what_is_carried_or_there():
    """What setup.cfg installs is carried, but for NumPy; the tests of a GPU import nothing else."""
    wanted = re.search(r"install_requires =\n((?:    .*\n)+)", (ROOT / "setup.cfg").read_text())[1]
    names = {re.match(r"\s*([A-Za-z_]+)", line)[1].lower().replace("_", "-") for line in wanted.splitlines()}
    assert names - {"numpy", carry_wheels.BUILT} <= set(carry_wheels.DOWNLOADED)
    assert carry_wheels.BUILT in names
