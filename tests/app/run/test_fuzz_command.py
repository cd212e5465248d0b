"""30 odd training commands: each ends with 0, or with 2, one line that says why, and nothing left behind."""

import os
import shutil
from random import Random

import pytest

from mixprec.app.commands import train
from mixprec.app.parts import estimate
from mixprec.training.plots import Plots
from tests.app.run import odd_commands
from tests.called import call
from tests.cases import first
from tests.guard import guarded

SEEDS, COMMANDS = 3, 10


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with a config, images and a finished run, ``run``; to be copied."""
    folder = tmp_path_factory.mktemp("prepared") / "work"
    folder.mkdir()
    odd_commands.prepare(folder)
    before = os.getcwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder.parent / "cache"))
        patch.setattr(Plots, "__call__", lambda self, trainer: None)
        trained = call(train.main, "--config", "c.yaml", "--out", "run")
    assert trained.returncode == 0, trained.stderr
    assert os.getcwd() == before
    return folder


def tree(folder):
    """What is in a folder: names, kinds, sizes and times of files, and names of folders."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in files:
            status = os.lstat(os.path.join(parent, name))
            found[os.path.join(parent, name)] = status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino
        found.update(dict.fromkeys((os.path.join(parent, name) for name in folders), "folder"))
    return found


@pytest.mark.parametrize("seed", first(0, range(SEEDS), 1))
def test_an_odd_command_ends_with_0_or_with_2_and_one_line_and_leaves_nothing(prepared, tmp_path, monkeypatch, seed):
    random = Random(seed)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Plots, "__call__", lambda self, trainer: None)  # which takes most of the time
    monkeypatch.setattr(estimate, "available_on_host", lambda: (4 << 30, "this machine"))  # as on any machine
    for number in range(COMMANDS):
        work = tmp_path / str(number)
        shutil.copytree(prepared, work, symlinks=True, ignore=shutil.ignore_patterns("pipe"))
        os.mkfifo(work / "pipe")
        monkeypatch.chdir(work)
        kind, arguments, prepare = odd_commands.command(random)
        prepare()
        before = tree(work)
        what = f"seed {seed}, command {number} ({kind}): {arguments!r}"
        try:
            with guarded(120, mib=None):
                ended = call(train.main, *arguments)
        except BaseException as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        after = tree(work)
        left = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        what = f"{what}: {ended}"
        assert ended.returncode in (0, 2), what
        assert "Traceback" not in ended.stderr, what
        assert all(line.isprintable() for line in ended.stdout.split("\n")), what
        assert "ü\n" not in ended.stdout, what
        if ended.returncode == 2:
            line, *rest = ended.stderr.split("\n")
            assert rest == [""], what
            assert line.isprintable(), what
            assert len(line) <= 1100, what
            assert line.startswith("error: "), what
        if ended.returncode == 2 or "--dry-run" in arguments or "--help" in arguments:
            assert left == set(), f"{what}: left behind {left}"
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(work)
