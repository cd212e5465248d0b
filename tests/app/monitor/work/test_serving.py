"""The protocol: lines of JSON only, errors in one line, exit codes, limits; and text from anywhere."""

import base64
import json
import os
import subprocess
import sys
import types

import pytest

from mixprec.app.finished import json_lines
from mixprec.app.monitor.work import fields
from mixprec.app.monitor.work.tasks import TASKS
from tests import ROOT
from tests.app.monitor.work.asking import lines


def _task(run, **wanted):
    return {"it": types.SimpleNamespace(run=run, fields=wanted, seconds=None)}


def _process(program, text="", **options):
    return subprocess.run(
        [sys.executable, *program], input=text, capture_output=True, text=True, timeout=100, cwd=ROOT, **options
    )


def test_a_process(work):
    image = base64.b64encode((work / "images/val/a/00.jpg").read_bytes()).decode()
    request = json.dumps({"run": str(work / "run"), "image": image})
    done = _process(["-m", "mixprec.app.monitor.work", "inside"], request)
    assert (done.returncode, done.stderr) == (0, "")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert set(found[0]) == {"progress", "text"}
    assert set(found[-1]) == {"top", "layers", "weights"}


PROCESSES = {
    "prints": ("print('a library'); os.system('echo a child'); return {'done': 1}", 0, {"done": 1}),
    "loops": ("while True: pass", 2, {"error": "it: more than 1 s of processor time"}),
    "is killed": ("os.kill(os.getpid(), 15)", 143, {"error": "ended by SIGTERM"}),
    "raises": ("raise KeyError('a\\nb')", 1, {"error": "KeyError: 'a\\nb' (<string>, line 4)"}),
}


@pytest.mark.parametrize("what", PROCESSES)
def test_only_json_on_standard_output(what):
    body, code, answer = PROCESSES[what]
    program = f"""import os, sys, types
from mixprec.app.monitor.work import serving
def run(request, progress):
    {body}
sys.exit(serving.main(["it"], {{"it": types.SimpleNamespace(run=run, fields={{}}, seconds=1)}}))
"""
    done = _process(["-c", program], "{}")
    assert (done.returncode, json.loads(done.stdout)) == (code, answer)
    assert ("a library" in done.stderr) == ("a child" in done.stderr) == (what == "prints")
    assert ("Traceback" in done.stderr) == (what == "raises")


ERRORS = [
    (fields.RequestError("one\ntwo"), 2, r"one\ntwo"),
    (MemoryError(), 2, "memory is full"),
    (MemoryError("Unable to allocate 9 GiB"), 2, "memory is full: Unable to allocate 9 GiB"),
    (PermissionError(13, "Permission denied", "a\nb"), 2, r"a\nb: Permission denied"),
    (OSError("strange"), 2, "OSError: strange"),
    (ModuleNotFoundError("No module named 'x'"), 1, "ModuleNotFoundError: No module named 'x' ("),
    (RuntimeError("over\n two lines"), 1, "RuntimeError: over two lines ("),
]


@pytest.mark.parametrize(("raised", "code", "message"), ERRORS)
def test_errors(raised, code, message, capsys):
    def run(request, progress):
        raise raised

    found, (line,) = lines("it", {}, _task(run))
    assert (found, list(line)) == (code, ["error"])
    assert line["error"].startswith(message)
    assert ("Traceback" in capsys.readouterr().err) == (code == 1)


BAD = {
    "no object": (b"[1]", "it: found [1]; wanted: a JSON object with path, count"),
    "nothing": (b"", "it: standard input is not JSON"),
    "no UTF-8": (b'{"path": "\xff"}', "it: standard input is not JSON"),
    "deep": (b"[" * 100_000, "it: standard input is not JSON"),
    "an unknown key": (b'{"paht": "x"}', "it: unknown key 'paht'; allowed: path, count; did you mean 'path'?"),
    "a missing key": (b"{}", "it: 'path' is missing; wanted: a file"),
    "an empty path": (b'{"path": ""}', "it: 'path' is ''; wanted: a file"),
    "NUL": (b'{"path": "a\\u0000b"}', r"it: 'path' is 'a\x00b'; wanted: a file"),
    "a truth": (b'{"path": "x", "count": true}', "it: 'count' is true; wanted: a whole number from 1 to 8"),
    "a fraction": (b'{"path": "x", "count": 1.5}', "it: 'count' is 1.5; wanted: a whole number from 1 to 8"),
    "too much": (b'{"path": "x", "count": 9}', "it: 'count' is 9; wanted: a whole number from 1 to 8"),
    "too large": (b" " * (33 << 20), "it: a request of more than 32 MiB"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_requests(what):
    content, message = BAD[what]
    wanted = {"path": fields.path("a file"), "count": fields.whole(1, 8, 2)}
    code, (line,) = lines("it", content, _task(lambda request, progress: {}, **wanted))
    assert code == 2
    assert line["error"].startswith(message)


def test_defaults_and_null():
    wanted = {"path": fields.path("a file", None), "count": fields.whole(1, 8, 2)}
    for values in ({}, {"path": None}):
        found = fields.parse("it", values, wanted)
        assert (found.path, found.count) == (None, 2)


def test_an_unknown_task():
    code, (line,) = lines("evaluat", {})
    assert (code, line["error"].partition(";")[0]) == (2, "found evaluat")
    assert all(name in line["error"] for name in TASKS)


def test_any_text_becomes_valid_utf_8():
    hostile = "<script>\n\x1b[31m" + os.fsdecode(b"\xff") + "\ud800 ü"
    text = json_lines.line({hostile: [hostile, (float("nan"), float("-inf"), 1.5, True, None, 7)]})
    assert "\n" not in text
    (key, (value, numbers)) = next(iter(json.loads(text).items()))
    assert key == value == r"<script>\n\x1b[31m\udcff\ud800 ü"
    key.encode()
    assert numbers == [None, None, 1.5, True, None, 7]


@pytest.mark.slow
def test_the_tasks_need_no_onnx_and_no_dali():
    missing = "sys.modules.update({'onnx': None, 'onnxruntime': None, 'nvidia': None})"
    done = _process(["-c", f"import sys; {missing}; import mixprec.app.monitor.work.tasks"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
