"""The command: what it prints, what it leaves behind, and what it answers to those who have no token."""

import contextlib
import http.client
import os
import re
import signal
import stat
import subprocess
import sys

import pytest

from tests.app.monitor.server import ENV, ROOT, TOKEN, Server

pytestmark = pytest.mark.slow


def _answer(server, path, method="GET", **headers):
    """Returns status, headers and body."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()


def _socket(server, **headers):
    """Returns the status of a WebSocket's handshake."""
    names = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    names["Sec-WebSocket-Key"] = "MDEyMzQ1Njc4OWFiY2RlZg=="
    return _answer(server, "/_nicegui_ws/socket.io/?EIO=4&transport=websocket", **names, **headers)[0]


def test_who_has_no_token_sees_the_entrance_only(tmp_path):
    with Server(tmp_path) as server:
        address = f"http://localhost:{server.port}"
        status, headers, page = _answer(server, f"/?token={TOKEN}")
        assert (status, headers["location"]) == (303, "/")
        cookie = headers["set-cookie"].partition(";")[0]
        status, _, page = _answer(server, "/", Cookie=cookie)
        assert (status, b"mixprec: Runs" in page) == (200, True)
        files = sorted({path.decode() for path in re.findall(rb'["\'](/_nicegui/[^"\']+\.(?:js|css))["\']', page)})
        assert len(files) > 3
        polling = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
        paths = [*files, "/", "/run?name=a", "/favicon.ico", "/docs", "/openapi.json", "/redoc", polling, "/none", "//"]
        for path in paths:
            for method in ("GET", "HEAD", "POST", "OPTIONS", "PUT"):
                status, headers, body = _answer(server, path, method)
                assert (path, method, status, headers["cache-control"]) == (path, method, 401, "no-store")
                assert (b"printed when it started" in body) == (method != "HEAD")
        assert _answer(server, files[0], Cookie=cookie)[0] == 200
        assert _answer(server, files[0], Authorization=f"Bearer {TOKEN}")[0] == 200
        assert _answer(server, polling, Cookie=cookie)[0] == 200
        assert _socket(server) == 403
        assert _socket(server, Cookie=cookie, Origin="http://evil.example") == 403
        assert _socket(server, Cookie=cookie, Host=f"localhost:{server.port}", Origin=address) == 101
    assert "Traceback" not in server.printed


def _started(tmp_path):
    """Returns a server with a token that it draws, and what it has printed: the address and the file."""
    (tmp_path / "results").mkdir(exist_ok=True)
    server = Server(tmp_path / "results", environment={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    server.__enter__()
    lines = [server.process.stdout.readline().rstrip() for _ in range(3)]
    token = re.search(rf"at http://127\.0\.0\.1:{server.port}/\?token=([\w-]{{43}})$", lines[0])[1]
    return server, token, lines[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_the_token_is_printed_and_kept_until_the_end(tmp_path, number):
    server, token, line = _started(tmp_path)
    folder = tmp_path / "cache" / "mixprec" / "monitor"
    (name,) = os.listdir(folder)
    assert name.endswith(f"-{server.port}.token")
    assert line == f"the token is in {folder / name}, too"
    assert (folder / name).read_text() == f"{token}\n"
    assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert _answer(server, "/", Authorization=f"Bearer {token}")[0] == 200
    assert token not in subprocess.run(["ps", "axww"], capture_output=True, text=True, check=False).stdout
    server.end(number)
    assert server.process.returncode == {signal.SIGINT: 130}.get(number, 143)
    assert os.listdir(folder) == []
    assert "Traceback" not in server.printed


def test_a_file_that_a_killed_server_left_is_replaced(tmp_path):
    server, token, _ = _started(tmp_path)
    server.end(signal.SIGKILL)
    (file,) = (tmp_path / "cache" / "mixprec" / "monitor").iterdir()
    assert file.read_text() == f"{token}\n"
    again = Server(
        tmp_path / "results", "--port", str(server.port), environment={"XDG_CACHE_HOME": str(tmp_path / "cache")}
    )
    again.port, again.address = server.port, server.address
    with again:
        assert file.read_text() != f"{token}\n"
        assert _answer(again, "/", Authorization=f"Bearer {token}")[0] == 401
    assert not file.exists()


def test_a_second_server_on_a_port_is_refused_in_one_line(tmp_path):
    server, token, _ = _started(tmp_path)
    command = [sys.executable, "-m", "mixprec", "monitor", str(tmp_path / "results"), "--port", str(server.port)]
    environment = {**ENV, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    (file,) = (tmp_path / "cache" / "mixprec" / "monitor").iterdir()
    assert file.read_text() == f"{token}\n"
    server.end(signal.SIGTERM)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: --port {server.port}: Address already in use; give another --port\n"


def test_without_a_cache_the_address_is_enough(tmp_path):
    (tmp_path / "cache").write_text("no folder")
    server = Server(tmp_path, environment={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    with server:
        lines = [server.process.stdout.readline() for _ in range(3)]
        assert lines[0].endswith(
            "cache/mixprec/monitor: Not a directory; the token is in no file, only in the address\n"
        )
        token = lines[1].rstrip().partition("?token=")[2]
        assert _answer(server, "/", Authorization=f"Bearer {token}")[0] == 200


@pytest.mark.parametrize("redirected", ["<&- >&- 2>&-", ">/dev/full 2>&1"])
def test_the_server_goes_on_when_its_output_cannot_be_written(tmp_path, redirected):
    with Server(tmp_path, redirected=redirected) as server:
        assert _answer(server, "/", Authorization=f"Bearer {TOKEN}")[0] == 200
    assert server.process.returncode == 130
