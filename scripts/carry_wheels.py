#!/usr/bin/env python
"""Puts into a folder the wheels that scripts/check_gpu.py needs on a machine without a network.

python scripts/carry_wheels.py [--out DIR] [--python 3.12]

They are of the versions in constraints.txt, for Linux x86-64. Chainer, which has an sdist only, is built here. Those
that the machine does not have are used. NumPy, CuPy, cuDNN, PyTorch and pytest it has to have.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import venv

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

from mixprec.app.commands.command_line import Parser, first_line, one_line, path

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUT = ROOT / ".whl"
LARGEST = 56 << 20  # bytes; of the 64 MiB that may travel the checkout takes some
BUILT = "chainer"
DOWNLOADED = (
    "nvidia-cudnn-frontend",
    *("ml-dtypes", "pyyaml", "pillow", "tqdm", "six", "filelock", "typing-extensions"),  # mixprec and Chainer
    *("matplotlib", "contourpy", "cycler", "fonttools", "kiwisolver", "packaging", "pyparsing", "python-dateutil"),
    *("hypothesis", "sortedcontainers", "pytest-xdist", "execnet"),  # tests
)
_GLIBC = range(5, 35)  # 2.N of manylinux tags: pip takes exactly those that are named


def main(argv=None):
    """Runs the script; returns the exit code.

    Args:
        argv: its arguments; ``None`` for those of the process.
    """
    parser = Parser(description=first_line(__doc__))
    help = "new folder, or one with wheels, which are removed (default: .whl in the checkout, which git ignores)"
    parser.add_argument("--out", type=path("a folder"), default=OUT, metavar="DIR", help=help)
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="of that machine (default: %(default)s)")
    settings = parser.parse_args(argv)
    if not re.fullmatch(r"3\.\d+", settings.python):
        parser.error(f"--python: found {settings.python!r}, expected a version such as 3.12")
    out = pathlib.Path(settings.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        others = sorted(found.name for found in out.iterdir() if found.suffix != ".whl")
        if others:
            parser.error(f"--out {out}: {one_line(others[0])} is no wheel; choose a new folder")
        for found in out.iterdir():
            found.unlink()
        _download(out, settings.python)
        _build(out)
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else error)
    except subprocess.CalledProcessError as error:
        return _failed(f"{' '.join(map(str, error.cmd[1:4]))}: {error.stderr.strip().splitlines()[-1]}")
    sizes = {found.name: found.stat().st_size for found in out.glob("*.whl")}
    for name, size in sorted(sizes.items()):
        print(f"{size / 2**20:6.1f} MiB  {name}")
    print(f"{sum(sizes.values()) / 2**20:6.1f} MiB  in {out}")
    if sum(sizes.values()) > LARGEST:
        return _failed(f"more than the {LARGEST >> 20} MiB that may travel")
    return 0


def _download(out, python):
    """Downloads wheels for the other machine's Python, whatever this one's is."""
    platforms = [f"manylinux_2_{number}_x86_64" for number in reversed(_GLIBC)] + ["manylinux2014_x86_64"]
    tags = [word for platform in platforms for word in ("--platform", platform)]
    tags += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    _pip(sys.executable, "download", *tags, "--dest", out, *map(_pinned, DOWNLOADED))


def _build(out):
    """Builds Chainer in an environment of its own: its setup.py needs a setuptools with pkg_resources."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = pathlib.Path(folder) / "bin" / "python"
        _pip(python, "install", "setuptools<81", "wheel")
        _pip(python, "wheel", "--no-build-isolation", "--wheel-dir", out, _pinned(BUILT))


def _pip(python, command, *words):
    deps = ["--no-deps"] if command != "install" else []
    line = [python, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *deps, *words]
    subprocess.run(list(map(str, line)), check=True, capture_output=True, text=True)


def _pinned(name):
    """Returns the requirement of the newest Python's line in constraints.txt, without its marker."""
    lines = re.findall(rf"^{re.escape(name)}==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return lines[-1]


def _failed(error):
    print(f"carry_wheels: {one_line(error)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(command_process.run(main))
