"""scripts/check_gpu.py as it runs here, where there is no GPU: its files, a second call, signals, a full disk."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile

import pytest

from benchmarks.gpu_check import archive
from benchmarks.gpu_check import stages as all_stages
from scripts import check_gpu
from tests import ROOT

SCRIPT = ROOT / "scripts" / "check_gpu.py"
HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1"}  # a machine with a GPU behaves as one without
GPU_STAGES = [stage.name for stage in all_stages.stages(ROOT, ROOT) if stage.needs_device]
FILES = ["check.tgz", "summary.json", "summary.txt"]


def start(*arguments, **variables):
    return subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, arguments)],
        env={**os.environ, **HIDDEN, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def members_in(out):
    return archive.unpacked(out / "check.tgz")


def record_in(out):
    record = json.loads((out / "summary.json").read_text())
    assert json.loads(members_in(out)["summary.json"]) == record
    return record


def states_in(out):
    return {stage["name"]: stage["state"] for stage in record_in(out)["stages"]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder and the printed lines of a run of all stages."""
    out = tmp_path_factory.mktemp("check") / "new" / "folder"
    process = start("--out", out)
    printed, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    return out, printed.splitlines()


def test_without_a_gpu_it_comes_to_its_end(finished):
    out, printed = finished
    expected = {"device": "no device", "environment": "ok", **dict.fromkeys(GPU_STAGES, "no device")}
    assert list(states_in(out).items()) == list(expected.items())
    assert sorted(os.listdir(out)) == FILES
    assert set(members_in(out)) == {"summary.json", "summary.txt", "device.log", "environment.log"}
    assert record_in(out)["format"] == "mixprec check_gpu 2"
    assert record_in(out)["complete"] is True
    reason = json.loads(members_in(out)["device.log"])["reason"]
    notes = {stage["name"]: stage["note"] for stage in record_in(out)["stages"]}
    assert reason
    assert [notes[name] for name in GPU_STAGES] == [reason] * len(GPU_STAGES)
    (found,) = printed[printed.index("== in short") + 1 : -1]  # the end of the output has all that was found
    assert re.fullmatch(r"environment: ok: cpu .*; memory .*", found)
    assert printed[-1] == f"nothing failed, but no GPU was looked at; all is in {out / 'check.tgz'}"
    begun = [line for line in printed if line.endswith(" s ...")]
    assert begun == ["device: at most 60 s ...", "environment: at most 15 s ..."]
    for name in GPU_STAGES:
        assert f"{name}: no device: {reason}" in printed


def test_the_text_says_the_same(finished):
    out, _ = finished
    lines = (out / "summary.txt").read_text().splitlines()
    stages = {line.split()[0]: line for line in lines[4:] if not line.startswith(" ")}
    assert list(stages) == list(states_in(out))
    for name, state in states_in(out).items():
        assert stages[name].split(None, 1)[1].startswith(state)


def test_the_environment(finished):
    out, _ = finished
    text = members_in(out)["environment.log"].decode()
    titles = [line[3:] for line in text.splitlines() if line.startswith("== ")]
    assert titles == ["machine", "distributions", "nvidia-smi", "python -m mixprec", "nvidia-smi topo -m"]
    import numpy

    assert f"\nnumpy=={numpy.__version__}\n" in text
    assert "\nfree disk " in text
    assert any(line.startswith("memory") for line in record_in(out)["stages"][1]["quotes"])


@pytest.mark.parametrize("name", ["check.tgz", "summary.json"])
def test_a_second_call_goes_on(finished, tmp_path, name):
    """What went well is not run again, and the new archive has the results of both."""
    former, _ = finished
    out = tmp_path / "out"
    process = start("--out", out, "--resume", former / name)
    printed, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    date = record_in(former)["date"]
    assert f"environment: ok, in the check of {date}" in printed.splitlines()
    assert "environment: at most" not in printed
    assert "device: at most 60 s ..." in printed.splitlines()  # a machine may have gone
    assert states_in(out) == states_in(former)
    assert ("environment.log" in members_in(out)) == (name == "check.tgz")
    assert f"in the check of {date}" in (out / "summary.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--stage", "tset"], "--stage: found 'tset', expected one of environment, smoke-kernel, "),
        (["--out", "{used}"], "--out {used}: check.tgz of another check is there; go on with it by --resume"),
        (["--stages"], "unrecognized arguments: --stages"),
        (["--budget", "0"], "argument --budget: found '0', expected a finite number above 0"),
        (["--resume", "{used}/no.tgz"], "--resume {used}/no.tgz: "),
        (["--resume", "{used}/file"], "--resume {used}/file: no archive of a check: "),
        (["--resume", "{used}/odd.json"], "--resume {used}/odd.json: no summary of a check: "),
        (["--resume", "{used}/other.tgz"], "--resume {used}/other.tgz: no archive of a check: it has no summary.json"),
        (["--scratch", "{used}/file"], "--scratch: "),
    ],
)
def test_bad_arguments_are_one_line(tmp_path, arguments, error, capsys):
    for name, text in {"file": "", "odd.json": "[]", "check.tgz": ""}.items():
        (tmp_path / name).write_text(text)
    with tarfile.open(tmp_path / "other.tgz", "w:gz") as other:
        other.add(tmp_path / "file", "file")
    with pytest.raises(SystemExit) as ended:
        check_gpu.main([argument.format(used=tmp_path) for argument in arguments])
    printed, errors = capsys.readouterr()
    assert ended.value.code == 2
    assert printed == ""
    (line,) = errors.splitlines()
    assert line.startswith(f"error: {error.format(used=tmp_path)}")


def line_of(process, beginning):
    for line in process.stdout:
        if line.startswith(beginning):
            return
    raise AssertionError(f"the process ended without a line {beginning}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_stage_and_keeps_the_archive(tmp_path, number):
    out = tmp_path / "out"
    process = start("--out", out, "--stage", "train", "--stage", "environment")
    line_of(process, "device: at most")
    process.send_signal(number)
    printed, errors = process.communicate()
    assert (process.returncode, errors) == (128 + number, "")
    assert states_in(out) == {"device": "interrupted", "environment": "skipped", "train": "skipped"}
    assert record_in(out)["complete"] is False
    assert record_in(out)["stages"][0]["note"] == number.name
    assert printed.splitlines()[-1].startswith("not well: device")
    assert sorted(os.listdir(out)) == FILES


def test_a_killed_check_leaves_what_is_known(tmp_path):
    out = tmp_path / "out"
    process = start("--out", out, "--stage", "properties", "--stage", "environment")
    line_of(process, "environment: at most")
    process.kill()
    process.communicate()
    record = json.loads((out / "summary.json").read_text())
    states = {stage["name"]: stage["state"] for stage in record["stages"]}
    assert states == {"device": "no device", "environment": "running", "properties": "waiting"}
    assert record["complete"] is False
    assert "environment       running" in (out / "summary.txt").read_text()
    members = members_in(out)  # of the end of the stage before
    assert json.loads(members["device.log"])["device"] is None
    assert json.loads(members["summary.json"])["stages"][1]["state"] == "waiting"


def test_a_driver_that_ends_whoever_asks_does_not_end_the_check(tmp_path):
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text("import os\n\nos._exit(99)\n")
    process = start("--out", tmp_path / "out", "--stage", "properties", PYTHONPATH=str(tmp_path))
    printed, errors = process.communicate()
    assert (process.returncode, errors) == (1, "")
    assert states_in(tmp_path / "out") == {"device": "failed", "properties": "skipped"}
    assert "exit status 99" in printed


def test_a_folder_that_takes_no_files_is_one_line_and_the_check_goes_on(tmp_path):
    (tmp_path / "file").write_text("")
    process = start("--out", tmp_path / "file" / "out", "--stage", "environment")
    printed, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    lines = printed.splitlines()
    said = [line for line in lines if line.startswith("check_gpu: ")]
    assert said == [
        f"check_gpu: {tmp_path}/file/out/{name} cannot be written: Not a directory; the check goes on, and prints all"
        for name in ("summary.json", "summary.txt", "check.tgz")
    ]
    assert any(line.startswith("environment: ok, ") for line in lines)
    assert any(line.startswith("    memory ") for line in lines)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, to mount a small disk")
def test_a_full_disk_ends_no_stage(tmp_path):
    """Neither the disk of the results nor that of all other files has any room: what was found is printed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (disk / "scratch").mkdir()
        with pytest.raises(OSError, match="No space left"):
            (disk / "filling").write_bytes(bytes(1 << 20))
        process = start("--out", disk / "out", "--scratch", disk / "scratch")
        printed, errors = process.communicate()
    finally:
        subprocess.run(["umount", disk], check=True)
    assert errors == ""
    lines = printed.splitlines()
    assert f"check_gpu: {disk}/out/check.tgz cannot be written: No space left on device" in printed
    assert any(line.startswith("device: no device") for line in lines)
    assert any(line.startswith("    memory ") for line in lines)
    assert process.returncode == 0


def test_the_scratch_folder_stays_and_a_temporary_one_does_not(tmp_path):
    temporary, scratch = tmp_path / "temporary", tmp_path / "scratch"
    temporary.mkdir()
    for number, more in enumerate(([], ["--scratch", scratch])):
        process = start("--out", tmp_path / str(number), "--stage", "environment", *more, TMPDIR=str(temporary))
        process.communicate()
        assert process.returncode == 0
        assert os.listdir(temporary) == []
    assert (scratch / "environment").is_dir()


def test_it_runs_from_a_checkout_without_a_repository_and_anywhere(tmp_path):
    """As on a machine to which files alone were copied, with a bare interpreter."""
    copy = tmp_path / "copy"
    for name in ("benchmarks", "configs", "mixprec", "models", "scripts", "tests"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-I", copy / "scripts" / "check_gpu.py", "--stage", "environment"]
    ended = subprocess.run(command, cwd=tmp_path, env={**os.environ, **HIDDEN}, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    (out,) = (tmp_path / "results" / "check_gpu").iterdir()
    assert states_in(out) == {"environment": "ok"}
    assert record_in(out)["commit"] is None


def test_stages_find_the_checkout_first_then_what_was_carried(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "broken-1.0-py3-none-any.whl").write_text("no wheel")
    variables = check_gpu._prepared(
        tmp_path, tmp_path / "wheels", {"cache/mixprec/x.json": b"{}", "summary.json": b"{}"}
    )
    assert variables["PYTHONPATH"].split(os.pathsep) == [str(ROOT), str(tmp_path / "site"), "/elsewhere"]
    assert variables["XDG_CACHE_HOME"] == str(tmp_path / "cache")
    assert all(value.startswith(str(tmp_path)) for name, value in variables.items() if name != "PYTHONPATH")
    assert {"CUPY_CACHE_DIR", "CUDA_CACHE_PATH", "MPLCONFIGDIR", "HYPOTHESIS_STORAGE_DIRECTORY"} < set(variables)
    assert (tmp_path / "cache" / "mixprec" / "x.json").read_bytes() == b"{}"  # engines that were chosen before
    assert not (tmp_path / "summary.json").exists()
    assert capsys.readouterr().out == "check_gpu: File is not a zip file; the check goes on without\n"
