"""`make release`: what is in the folder, and that any Python installs mixprec from it without a compiler."""

import contextlib
import hashlib
import io
import platform
import re
import shutil
import subprocess
import tarfile
import zipfile

import pytest

from scripts import release
from tests.packaging.conftest import Downloaded

VERSIONS = ("3.10", "3.12", "3.13")
CAN_BUILD = shutil.which("g++") is not None and platform.machine() == "x86_64" and release.python_of("3.10")
MANYLINUX = r"manylinux2014_x86_64\.manylinux_2_17_x86_64"


@pytest.fixture(scope="module")
def folder(pypi, tmp_path_factory):
    if not CAN_BUILD:
        pytest.skip("needs g++ on x86-64, and Python 3.10")
    out = tmp_path_factory.mktemp("release") / "dist"
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = release.main(["--out", str(out), "--url", "https://code.example/mixprec"])
    assert code == 0, errors.getvalue()
    return out


@pytest.fixture(scope="module", params=VERSIONS)
def environment(request, folder, tmp_path_factory):
    python = release.python_of(request.param)
    if python is None:
        pytest.skip(f"Python {request.param} is not at hand")
    return Downloaded(python, tmp_path_factory.mktemp("fresh") / "venv")


@pytest.mark.long
def test_contents(folder):
    names = sorted(file.name for file in folder.iterdir())
    assert names[:2] == ["SHA256SUMS", "chainer-7.8.1-py3-none-any.whl"]
    assert re.fullmatch(rf"mixprec-0\.1\.0-cp310-cp310-{MANYLINUX}\.whl", names[2])
    assert re.fullmatch(rf"mixprec-0\.1\.0-cp311-abi3-{MANYLINUX}\.whl", names[3])
    assert names[4:] == ["mixprec-0.1.0.tar.gz"]
    sums = dict(reversed(line.split()) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names[1:]}
    with zipfile.ZipFile(folder / names[1]) as chainer:
        assert "Permission is hereby granted" in chainer.read("chainer-7.8.1.dist-info/licenses/LICENSE").decode()
    for name in names[2:4]:
        with zipfile.ZipFile(folder / name) as wheel:
            files = set(wheel.namelist())
            metadata = wheel.read("mixprec-0.1.0.dist-info/METADATA").decode()
        assert {"mixprec/docs/config.md", "mixprec_startup.pth", "mixprec-0.1.0.dist-info/licenses/LICENSE"} <= files
        assert "Project-URL: Source, https://code.example/mixprec\n" in metadata
    with tarfile.open(folder / names[4]) as sdist:
        files = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"LICENSE", "build-constraints.txt", "mixprec/native/source/module.cpp", "mixprec/docs/config.md"} <= files
    assert not [name for name in files if name.endswith((".so", ".pyc"))]


@pytest.mark.long
def test_a_users_first_minutes(environment, folder, tmp_path):
    """From the folder to a prediction."""
    environment.run(f"pip install --find-links {folder} mixprec", cwd=tmp_path)
    printed = environment.run("mixprec info", cwd=tmp_path)
    assert re.search(r"^native library   ok +AVX", printed, re.MULTILINE)
    environment.run("mixprec digits data/digits", cwd=tmp_path)
    short = "--set training.epochs=2 --set data.loader=pillow"
    environment.run(f"mixprec train --config digits.yaml --out out {short}", cwd=tmp_path)
    printed = environment.run("mixprec evaluate --run out", cwd=tmp_path)
    assert "top-1" in printed
    (image,) = list((tmp_path / "data" / "digits" / "val" / "3").iterdir())[:1]
    assert image.name in environment.run(f"mixprec predict --run out {image}", cwd=tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("extra", ["cuda12", "cuda13", "legacy"])
def test_an_extra_resolves(environment, folder, tmp_path, extra):
    printed = environment.run(f"pip install --dry-run --find-links {folder} 'mixprec[{extra}]'", cwd=tmp_path)
    expected = "protobuf-3.20." if extra == "legacy" else f"cupy-{extra}x-14."
    assert expected in printed
    assert "nvidia-cutlass-dsl" not in printed


def test_bad_arguments_are_one_line(tmp_path, capsys):
    for arguments, error in (
        (["--url", "code.example"], "--url: found 'code.example', expected https://..."),
        (["--python", "/no/python"], "--python /no/python: it does not run as Python with venv"),
    ):
        with pytest.raises(SystemExit) as ended:
            release.main(arguments)
        assert ended.value.code == 2
        assert capsys.readouterr().err == f"error: {error} (see --help)\n"


def test_a_folder_with_other_files_is_left_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(release, "python_of", lambda version: "python")
    (tmp_path / "notes.txt").write_text("")
    assert release.main(["--out", str(tmp_path)]) == 1
    error = f"release: --out {tmp_path}: notes.txt is no part of a release; choose a new folder\n"
    assert capsys.readouterr().err == error


def test_a_failure_leaves_the_release_of_before(tmp_path, capsys, monkeypatch):
    out = tmp_path / "dist"
    out.mkdir()
    (out / "SHA256SUMS").write_text("old")
    monkeypatch.setattr(release, "python_of", lambda version: "python")

    def without_network(command, **_):
        errors = "much\nERROR: No matching distribution found for ziglang\n"
        return subprocess.CompletedProcess(command, "pip" in command, "", errors)

    monkeypatch.setattr(release.subprocess, "run", without_network)
    monkeypatch.setattr(release, "_copy", lambda names, folder: None)
    assert release.main(["--out", str(out)]) == 1
    assert capsys.readouterr().err.splitlines()[-1].endswith("ERROR: No matching distribution found for ziglang")
    assert [file.name for file in tmp_path.iterdir()] == ["dist"]
    assert (out / "SHA256SUMS").read_text() == "old"


def test_a_missing_python_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(release, "python_of", lambda version: None)
    assert release.main(["--out", str(tmp_path / "dist")]) == 1
    error = "release: no Python 3.11 or 3.12 or 3.13 is found; name those to build with: --python PATH\n"
    assert capsys.readouterr().err == error
