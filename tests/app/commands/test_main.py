"""The command mixprec itself: what it does before one of its commands runs, and without one."""

import importlib
import subprocess
import sys

import pytest

from mixprec.app.commands import main, train
from mixprec.base import VERSION
from tests import ROOT
from tests.called import call
from tests.cases import first

DOORS = {"train_imagenet": "train", "convert_report": "convert-report", "convert_weights": "weights"}
DOORS |= {"export": "export", "make_digits": "digits", "pack_dataset": "pack", "predict": "predict", "tune": "tune"}


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_all_commands_on_one_screen(arguments):
    done = call(main.main, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "usage: mixprec COMMAND [ARGUMENT ...]"
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(main.COMMANDS)


def test_version():
    assert call(main.main, "--version") == (0, f"mixprec {VERSION}\n", "")


UNKNOWN = [
    ("trian", "'trian': no such command; did you mean 'train'?"),
    ("convert_report", "'convert_report': no such command; did you mean 'convert-report'?"),
    ("--versoin", "'--versoin': unrecognized argument; did you mean '--version'?"),
    ("xyz\n", f"'xyz\\\\n': no such command; allowed: {', '.join(main.COMMANDS)}"),
]


@pytest.mark.parametrize(("argument", "message"), UNKNOWN)
def test_an_unknown_command_is_one_line(argument, message):
    assert call(main.main, argument) == (2, "", f"error: {message} (see mixprec --help)\n")


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_of_a_command_fits_on_one_screen(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = call(main.main, name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: mixprec {name} ")
    assert len(done.stdout.splitlines()) <= 20


LACKS = "--set takes SECTION.KEY=VALUE; found 'optimizer.lr'"
BARE = "unrecognized argument: training.epochs=2; did you mean '--set training.epochs=2'?"


INCOMPLETE = [
    ("optimizer.lr 0.1", f"{LACKS}; did you mean '--set optimizer.lr=0.1'?"),
    (
        "optimizer.lr:0.1",
        "--set takes SECTION.KEY=VALUE; found 'optimizer.lr:0.1'; did you mean '--set optimizer.lr=0.1'?",
    ),
    ("optimizer.lr", LACKS),
    ("optimizer.lr=1 training.epochs=2", BARE),
]


@pytest.mark.parametrize(("words", "message"), INCOMPLETE)
def test_a_setting_without_its_value_or_its_set_is_one_line(words, message):
    done = call(train.main, "--config", "c.yaml", "--set", "optimizer.lr=1", "--set", *words.split())
    assert done == (2, "", f"error: {message} (see --help)\n")


MEANT = {
    "c.yaml": "the following arguments are required: --config; did you mean '--config c.yaml'?",
    "--cfg c.yaml": "unrecognized argument: --cfg; did you mean '--config'?",
    "--config c.yaml --dryrun": "unrecognized argument: --dryrun; did you mean '--dry-run'?",
    "--config c.yaml --dry_run": "unrecognized argument: --dry_run; did you mean '--dry-run'?",
    "--config c.yaml --lr 0.1": "unrecognized argument: --lr; did you mean '--set optimizer.lr=0.1'?",
    "--config c.yaml --batch-size=8": "unrecognized argument: --batch-size; did you mean '--set training."
    "batch_size=8'?",
    "--config c.yaml --epochs": "unrecognized argument: --epochs; did you mean '--set training.epochs=VALUE'?",
    "--config c.yaml --colour": "unrecognized arguments: --colour",
}


@pytest.mark.parametrize("words", MEANT)
def test_an_argument_of_another_name_is_answered_with_ours(words):
    assert call(train.main, *words.split()) == (2, "", f"error: {MEANT[words]} (see --help)\n")


@pytest.mark.parametrize("has_environment", [True, False])
@pytest.mark.parametrize("is_checkout", [True, False])
def test_a_python_without_the_packages_is_one_line(monkeypatch, tmp_path, has_environment, is_checkout):
    def load(name):
        raise ModuleNotFoundError("No module named 'chainer'", name="chainer")

    python = tmp_path / ".venv" / "bin" / "python"
    if has_environment:
        python.parent.mkdir(parents=True)
        python.touch()
    if is_checkout:
        (tmp_path / "Makefile").touch()
    monkeypatch.setattr(importlib, "import_module", load)
    monkeypatch.setattr(main, "_CHECKOUT", tmp_path)
    code, printed, errors = call(main.main, "train")
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"error: chainer is not installed for {sys.executable}: ")
    if not is_checkout:
        assert errors.endswith(": install mixprec with pip, which brings it\n")
    else:
        assert (f"run it with {python}\n" in errors) == has_environment
        assert ("'make install'" in errors) == (not has_environment)


def test_a_module_of_mixprec_that_is_missing_is_a_traceback(monkeypatch):
    def load(name):
        raise ModuleNotFoundError("No module named 'mixprec.x'", name="mixprec.x")

    monkeypatch.setattr(importlib, "import_module", load)
    with pytest.raises(ModuleNotFoundError):
        main.main(["train"])


@pytest.mark.parametrize("door", first(1, DOORS))
def test_a_door_with_a_python_without_packages_says_so(door):
    """As the system's Python is."""
    path = ROOT / "scripts" / f"{door}.py"
    assert f'main.console("{DOORS[door]}")' in path.read_text()
    done = subprocess.run([sys.executable, "-I", "-S", path, "--help"], capture_output=True, text=True, timeout=60)
    if done.returncode == 0:  # it imports its packages when it needs them
        assert done.stdout.startswith(f"usage: mixprec {DOORS[door]} ")
    else:
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert " is not installed for " in done.stderr


@pytest.mark.slow
def test_a_network_in_the_working_directory_is_found(tmp_path):
    """Also by the program that pip installs, whose folder is first on Python's path."""
    program = tmp_path / "bin" / "mixprec"
    program.parent.mkdir()
    program.write_text("from mixprec.app.commands.main import console\nconsole()\n")
    (tmp_path / "nets.py").write_text("import chainer.links as L\n\n\ndef net():\n    return L.Linear(3, 2)\n")
    for command in (
        [program, "convert-report"],
        ["-m", "mixprec", "convert-report"],
        [ROOT / "scripts/convert_report.py"],
    ):
        arguments = [sys.executable, *command, "nets:net", "--input", "2x3"]
        done = subprocess.run(
            arguments, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "compute:              float16, NHWC" in done.stdout


def test_the_dispatcher_and_the_monitor_import_neither_chainer_nor_numpy():
    """Both start at once, and the server stays small."""
    code = (
        "import sys\n"
        "from mixprec.app.commands import main, monitor\n"
        "from mixprec.app.monitor import jobs, server_state\n"
        "print({'chainer', 'numpy'} & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("set()\n", "")
