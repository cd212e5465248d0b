"""Pages of runs whose files are huge, and pages that are asked for again and again."""

import os
import urllib.error
import urllib.request

import pytest

from tests.app.monitor.made_runs import make_run
from tests.app.monitor.server import TOKEN, Server

pytestmark = pytest.mark.slow


def _get(server, path):
    """Loads a page as a program does that is no browser; returns its text."""
    request = urllib.request.Request(server.address + path, headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode()
    assert "printed when it started" not in text  # the entrance, which costs nothing
    return text


def _files_of_gigabytes(folder):
    """Sparse files in place of all that a page reads of a run."""
    make_run(folder)
    names = ("log.jsonl", "gradients.jsonl", "conversion.txt", "skipped.txt", "status.json", "evaluation-model.json")
    for name in names:
        (folder / name).write_bytes(b"")
        os.truncate(folder / name, 10 << 30)
    (folder / "model.npz").write_bytes(b"")


def test_files_of_gigabytes_hold_up_no_page(tmp_path):
    for number in range(20):
        (make_run(tmp_path / f"{number}") / "model.npz").write_bytes(b"")
    _files_of_gigabytes(tmp_path / "huge")
    with Server(tmp_path) as server:
        for page in ("/", "/run?name={}", "/compare?name={}&name=0", "/before", "/evaluate?name={}", "/inside?name={}"):
            for name in ("huge", "1"):
                text = _get(server, page.format(name))
                assert "resnet8" in text or "mixprec:" in text
        assert "reading log.jsonl 0%" in _get(server, "/run?name=huge")
        assert server.memory() < 250
    assert "Traceback" not in server.printed


def test_pages_that_no_browser_connects_to_cost_little(tmp_path):
    folder = make_run(tmp_path / "a")
    for name in ("environment", "conversion", "capture", "skipped"):
        (folder / f"{name}.txt").write_text("abcdefgh " * 116_000)
    with Server(tmp_path) as server:
        for path in ("/run?name=a", "/", "/no-such-page"):
            _get(server, path)
            before = server.memory()
            for _ in range(200):
                _get(server, path)
            print(f"{path}: {before:.0f} to {server.memory():.0f} MB")
            assert server.memory() - before < 100
