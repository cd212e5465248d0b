"""Twenty open tabs on a training, two thousand runs, and a log of a hundred thousand lines."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid

import numpy as np
import pytest

from tests.monitor.made_runs import make_run
from tests.monitor.server import ENV, ROOT, TOKEN, Server, train

pytestmark = pytest.mark.slow
TABS = 20


class Tab:
    """An open page, as far as the server can tell: it takes part in what a browser and the server say to each other.

    Args:
        server: :class:`Server`.
        path: of the page.
    """

    def __init__(self, server, path):
        self._server, self._path, self.updates, self.text = server, path, 0, ""

    async def open(self, stack):
        import httpx
        import socketio

        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(base_url=self._server.address, timeout=60, headers=headers) as client:
            page = (await client.get(self._path)).text
        self.id = re.search(r"'client_id': '([0-9a-f-]+)'", page)[1]
        names = {"client_id": self.id, "next_message_id": 0}
        self.socket = socket = socketio.AsyncClient()
        socket.on("update", self._update)
        await socket.connect(
            self._server.address,
            headers=headers,
            socketio_path="/_nicegui_ws/socket.io",
            transports=["websocket"],
            wait_timeout=60,
        )
        stack.push_async_callback(socket.disconnect)
        assert await socket.call("handshake", {**names, "tab_id": str(uuid.uuid4()), "document_id": str(uuid.uuid4())})

    def _update(self, data):
        self.updates += 1
        self.text = json.dumps(data)


@contextlib.asynccontextmanager
async def tabs(server, *paths):
    """Opens pages; closes them at the end."""
    async with contextlib.AsyncExitStack() as stack:
        opened = [Tab(server, path) for path in paths]
        for tab in opened:
            await tab.open(stack)
        yield opened


def _entries(out):
    lines = (out / "log.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    speeds = [entry.pop("images/s") for entry in entries]
    for entry in entries:
        del entry["elapsed_time"]
    return entries, float(np.mean(speeds[1:]))


@pytest.mark.long
def test_training_does_not_notice_twenty_tabs(tmp_path):
    images, results = tmp_path / "images", tmp_path / "results"
    results.mkdir()
    subprocess.run([sys.executable, "scripts/make_digits.py", "--out", str(images)], cwd=ROOT, env=ENV, check=True)
    settings = "training.epochs=2", "log.every=30 iterations"
    train(results / "alone", images, *settings)

    async def watched():
        with Server(results) as server:
            paths = ("/", "/run?name=watched", "/compare?name=watched&name=alone", "/run?name=alone")
            training = asyncio.create_task(asyncio.to_thread(train, results / "watched", images, *settings))
            while not (results / "watched" / "log.jsonl").exists():
                await asyncio.sleep(0.1)
                assert not training.done()
            async with tabs(server, *(paths[number % len(paths)] for number in range(TABS))) as opened:
                before = [tab.updates for tab in opened]
                await training
                await asyncio.sleep(3)
                assert sum(tab.updates > count for tab, count in zip(opened, before, strict=True)) >= TABS // 4
        assert "Traceback" not in server.printed

    asyncio.run(watched())
    (alone, first), (seen, second) = _entries(results / "alone"), _entries(results / "watched")
    assert seen == alone
    with np.load(results / "alone/model.npz") as wanted, np.load(results / "watched/model.npz") as found:
        assert sorted(wanted.files) == sorted(found.files)
        for name in wanted.files:
            np.testing.assert_array_equal(found[name], wanted[name], strict=True)
    print(f"images/s with {TABS} open tabs over those without: {second / first:.3f}")


@pytest.mark.long
def test_memory_with_many_runs_and_a_long_log(tmp_path):
    for number in range(2000):
        make_run(tmp_path / f"{number % 20}" / f"{number:04}", accuracies=20 * (number / 2000,))
    long = make_run(tmp_path / "long")
    entry = json.loads((long / "log.jsonl").read_text().splitlines()[-1])
    with (long / "log.jsonl").open("w") as file:
        for number in range(100_000):
            file.write(
                json.dumps({**entry, "iteration": number, "epoch": number / 100, "main/loss": 1 / (1 + number)}) + "\n"
            )

    async def seen():
        with Server(tmp_path) as server:
            async with tabs(server, *(TABS // 2) * ["/"], *(TABS // 2) * ["/run?name=long"]) as opened:
                for _ in range(600):
                    if "iteration 99999" in opened[-1].text or opened[-1].updates > 5:
                        break
                    await asyncio.sleep(0.1)
                with (long / "log.jsonl").open("a") as file:
                    file.write(json.dumps({**entry, "iteration": 123456, "epoch": 1001}) + "\n")
                for _ in range(300):
                    if any("123456" in tab.text for tab in opened):
                        break
                    await asyncio.sleep(0.1)
                else:
                    raise AssertionError("the new entry did not appear")
                memory = server.memory()
        assert "Traceback" not in server.printed
        return memory

    memory = asyncio.run(seen())
    print(f"resident memory of the server: {memory:.0f} MB")
    assert memory < 140


def _get(server, path):
    """Loads a page as a program does that is no browser; returns its text, and the seconds that it took."""
    begin = time.monotonic()
    request = urllib.request.Request(server.address + path, headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode()
    assert "printed when it started" not in text  # the entrance, which costs nothing
    return text, time.monotonic() - begin


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
                text, seconds = _get(server, page.format(name))
                print(f"{page.format(name)}: {seconds:.2f} s")
                assert "resnet8" in text or "mixprec:" in text
                assert seconds < 20
        assert "reading log.jsonl 0%" in _get(server, "/run?name=huge")[0]
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


def test_forged_messages_leave_a_short_log(tmp_path):
    make_run(tmp_path / "a")

    async def forged():
        with Server(tmp_path) as server:
            async with tabs(server, "/run?name=a") as (tab,):
                odd = [None, 5, "x" * 50_000, [], {}, {"client_id": []}, {"client_id": tab.id}]
                odd += [{"client_id": tab.id, "id": key, "listener_id": key} for key in (0, [], {}, "x", 10**6)]
                odd += [{"client_id": tab.id, "level": "error", "message": "x" * 50_000, "args": [1]}]
                for event in ("event", "javascript_response", "ack", "log", "handshake", "nothing"):
                    for data in odd * 10:
                        await tab.socket.emit(event, data)
                assert await tab.socket.call("handshake", {"client_id": "x", "tab_id": "x"}, timeout=120) is False
            assert "accuracy 0.8000" in _get(server, "/run?name=a")[0]
        return server.printed

    printed = asyncio.run(forged())
    print(f"{printed.count(chr(10))} lines")
    assert len(printed) < 10_000
    assert "Traceback" not in printed
