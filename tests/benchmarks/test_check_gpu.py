"""scripts/check_gpu.py as it runs here, where there is no GPU: its files, a second call, signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile

import pytest

from benchmarks.gpu_check import archive, stages
from scripts import check_gpu
from tests import ROOT

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "scripts" / "check_gpu.py"
HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1"}  # a machine with a GPU behaves as one without
STAGES = [stage.name for stage in stages.stages(ROOT) if stage.needs_device and not stage.on_request]
FILES = ["check.tgz", "summary.json", "summary.txt"]


def start(*arguments, **variables):
    return subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, arguments)],
        env={**os.environ, **HIDDEN, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def record_in(out):
    record = json.loads((out / "summary.json").read_text())
    assert json.loads(archive.unpacked(out / "check.tgz")["summary.json"]) == record
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
    expected = {"device": "no device", "environment": "ok", **dict.fromkeys(STAGES, "no device")}
    assert list(states_in(out).items()) == list(expected.items())
    assert sorted(os.listdir(out)) == FILES
    members = archive.unpacked(out / "check.tgz")
    assert set(members) == {"summary.json", "summary.txt", "device.log", "environment.log"}
    assert b"\nnumpy " in members["environment.log"]
    assert record_in(out)["complete"] is True
    reason = members["device.log"].decode().strip()
    assert reason
    assert {stage["note"] for stage in record_in(out)["stages"]} == {"", " ".join(reason.split())}
    (found,) = printed[printed.index("== in short") + 1 : -1]  # the end of the output has all that was found
    assert found.startswith("environment: ok: cores: ")
    assert printed[-1] == f"nothing failed, but no GPU was looked at; all is in {out / 'check.tgz'}"
    assert [line for line in printed if line.endswith(" s ...")] == [
        "device: at most 30 s ...",
        "environment: at most 27 s ...",
    ]
    text = (out / "summary.txt").read_text().splitlines()[3:]
    assert text == [line for line in printed[1 : printed.index("== in short")] if not line.endswith(" s ...")]


def test_a_second_call_goes_on(finished, tmp_path):
    """What went well is not run again, and the new archive has the results of both."""
    former, _ = finished
    out = tmp_path / "out"
    process = start("--out", out, "--resume", former / "check.tgz")
    printed, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert "environment: at most" not in printed
    assert "device: at most 30 s ..." in printed.splitlines()  # a machine may have gone
    assert states_in(out) == states_in(former)
    assert "environment.log" in archive.unpacked(out / "check.tgz")
    assert f"in the check of {record_in(former)['date']}" in (out / "summary.txt").read_text()


BAD_ARGUMENTS = [
    (["--stage", "tset"], "--stage: found 'tset', expected one of environment, smoke, captured-256, "),
    (["--out", "{used}"], "--out {used}: check.tgz of another check is there; go on with it by --resume"),
    (["--resume", "{used}/no.tgz"], "--resume {used}/no.tgz: "),
    (["--resume", "{used}/other.tgz"], "--resume {used}/other.tgz: no archive of a check: it has no summary.json"),
    (["--resume", "{used}/odd.tgz"], "--resume {used}/odd.tgz: no summary of a check: "),
    (["--resume", "{used}/damaged.tgz"], "--resume {used}/damaged.tgz: no archive of a check: error: Error -3 "),
]


@pytest.mark.parametrize(("arguments", "error"), BAD_ARGUMENTS)
def test_bad_arguments_are_one_line(tmp_path, arguments, error, capsys):
    for name, text in {"file": "", "summary.json": "[]", "check.tgz": ""}.items():
        (tmp_path / name).write_text(text)
    for name, member in (("other.tgz", "file"), ("odd.tgz", "summary.json")):
        with tarfile.open(tmp_path / name, "w:gz") as packed:
            packed.add(tmp_path / member, member)
    content = (tmp_path / "odd.tgz").read_bytes()
    (tmp_path / "damaged.tgz").write_bytes(content[:18] + b"\xff" + content[19:])
    with pytest.raises(SystemExit) as ended:
        check_gpu.main([argument.format(used=tmp_path) for argument in arguments])
    printed, errors = capsys.readouterr()
    assert (ended.value.code, printed) == (2, "")
    (line,) = errors.splitlines()
    assert line.startswith(f"error: {error.format(used=tmp_path)}")


def line_of(process, beginning):
    for line in process.stdout:
        if line.startswith(beginning):
            return
    raise AssertionError(f"the process ended without a line {beginning}")


def test_a_signal_ends_the_stage_and_keeps_the_archive(tmp_path):
    out = tmp_path / "out"
    process = start("--out", out, "--stage", "nccl", "--stage", "environment")
    line_of(process, "device: at most")
    process.send_signal(signal.SIGTERM)
    printed, errors = process.communicate()
    assert (process.returncode, errors) == (128 + signal.SIGTERM, "")
    assert states_in(out) == {"device": "interrupted", "environment": "skipped", "nccl": "skipped"}
    assert record_in(out)["complete"] is False
    assert record_in(out)["stages"][0]["note"] == "SIGTERM"
    assert printed.splitlines()[-1].startswith("not well: device")
    assert sorted(os.listdir(out)) == FILES


def test_it_runs_from_a_checkout_without_a_repository_and_anywhere(tmp_path):
    """As on a machine to which files alone were copied, with a bare interpreter; nothing else stays there."""
    copy, temporary = tmp_path / "copy", tmp_path / "temporary"
    temporary.mkdir()
    for name in ("benchmarks", "configs", "mixprec", "models", "scripts", "tests"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-I", copy / "scripts" / "check_gpu.py", "--stage", "environment"]
    variables = {**os.environ, **HIDDEN, "TMPDIR": str(temporary)}
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    (out,) = (tmp_path / "results" / "check_gpu").iterdir()
    assert states_in(out) == {"device": "no device", "environment": "ok"}
    assert record_in(out)["commit"] is None
    assert os.listdir(temporary) == []


def test_stages_find_the_checkout_first_then_what_was_carried(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "broken-1.0-py3-none-any.whl").write_text("no wheel")
    members = {"cache/mixprec/x.json": b"{}", "summary.json": b"{}", "../out": b"", "/tmp/mixprec-no/out": b""}
    variables = check_gpu.prepared(tmp_path / "scratch", tmp_path / "wheels", members)
    scratch = tmp_path / "scratch"
    assert variables["PYTHONPATH"].split(os.pathsep) == [str(ROOT), str(scratch / "site"), "/elsewhere"]
    assert variables["XDG_CACHE_HOME"] == str(scratch / "cache")
    assert all(value.startswith(str(scratch)) for name, value in variables.items() if name != "PYTHONPATH")
    assert [path.name for path in scratch.rglob("*")] == ["cache", "mixprec", "x.json"]  # engines that were chosen
    assert not os.path.exists("/tmp/mixprec-no")
    line = "check_gpu: broken-1.0-py3-none-any.whl: BadZipFile: File is not a zip file; the check goes on without\n"
    assert capsys.readouterr().out == line
