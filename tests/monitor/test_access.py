"""Who may see the pages."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import pytest

from mixprec.monitor import __main__ as command
from mixprec.monitor.access import LARGEST_UPLOAD, Access, AccessError, Guard, is_local, read_password
from tests.monitor import server

PASSWORD = "correct horse ü"


async def _pages(scope, receive, send):
    """Stands for the server: answers with what it was sent."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"pages " + body})


def _ask(access, path="/", *, kind="http", method="GET", body=(b"",), address="10.0.0.1", **headers):
    """Returns the messages that are sent: a list."""
    headers = {"host": "localhost:8080", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": kind,
        "path": path,
        "method": method,
        "client": (address, 1),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
    }
    parts = [{"type": "http.request", "body": part, "more_body": n < len(body)} for n, part in enumerate(body, 1)]
    sent = []

    async def receive():
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    asyncio.run(access(scope, receive, send))
    return sent


def _status(sent):
    return sent[0].get("status", sent[0]["type"]) if sent else None


def _login(access, password, **keywords):
    body = urllib.parse.urlencode({"password": password}).encode()
    return _ask(access, "/login", method="POST", body=(body,), **keywords)


def _cookie(sent):
    return dict(sent[0]["headers"])[b"set-cookie"].decode().partition(";")[0]


def test_without_password_a_program_of_this_machine_sees_the_pages():
    sent = _ask(Access(_pages, Guard(None), "127.0.0.1"))
    assert (_status(sent), sent[1]["body"]) == (200, b"pages ")
    policy = dict(sent[0]["headers"])[b"content-security-policy"].decode()
    assert "connect-src 'self'" in policy
    assert "http" not in policy


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "", "127.0.0.1.evil", "a:b:c"]
)
def test_a_name_that_leads_here_is_not_enough(host):
    access = Access(_pages, Guard(None), "127.0.0.1")
    assert _status(_ask(access, host=host)) == 400
    assert _status(_ask(access, kind="websocket", host=host)) == "websocket.close"


@pytest.mark.parametrize("name", ["host", "origin"])
def test_names_that_cannot_be_read_are_refused(name):
    for value in ("[", "[::1", "http://["):
        assert _status(_ask(Access(_pages, Guard(None), "127.0.0.1"), **{name: value})) in (400, 403)


def test_the_address_that_the_server_is_bound_to_is_its_name():
    assert _status(_ask(Access(_pages, Guard(None), "127.0.0.2"), host="127.0.0.2:8080")) == 200
    assert _status(_ask(Access(_pages, Guard(None), "127.0.0.1"), host="127.0.0.2:8080")) == 400


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"])
def test_names_of_this_machine(host):
    assert _status(_ask(Access(_pages, Guard(None), "127.0.0.1"), host=host)) == 200


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_pages_of_other_sites_are_refused(kind):
    access = Access(_pages, Guard(None), "127.0.0.1")
    assert _status(_ask(access, kind=kind, origin="http://evil.example")) in (403, "websocket.close")
    assert _status(_ask(access, kind=kind, origin="http://localhost:9999")) in (403, "websocket.close")
    assert _status(_ask(access, kind=kind, origin="null")) in (403, "websocket.close")
    assert _status(_ask(access, kind=kind, origin="http://localhost:8080")) in (200, "websocket.accept")


def test_with_a_password_nothing_is_seen_before_it_is_given():
    access = Access(_pages, Guard(PASSWORD), "0.0.0.0")
    for path in ("/", "/run", "/_nicegui/static/x.js", "/login"):
        sent = _ask(access, path, host="any.name")
        assert _status(sent) == 401
        assert b"pages" not in sent[1]["body"]
    assert _status(_ask(access, kind="websocket")) == "websocket.close"
    assert _status(_ask(access, kind="websocket", cookie="mixprec_monitor_8080=x")) == "websocket.close"


def test_the_right_password_opens_a_session():
    access = Access(_pages, Guard(PASSWORD), "0.0.0.0")
    sent = _login(access, PASSWORD)
    assert _status(sent) == 303
    assert {"HttpOnly", "SameSite=Strict"} <= set(dict(sent[0]["headers"])[b"set-cookie"].decode().split("; "))
    cookie = _cookie(sent)
    assert _status(_ask(access, cookie=f"other=1; {cookie}")) == 200
    assert _status(_ask(access, cookie=f'path=/; x={{"a":1}}; foo; a b=\xfc; {cookie}')) == 200
    assert _status(_ask(access, kind="websocket", cookie=cookie)) == "websocket.accept"
    assert _status(_ask(access, cookie=cookie[:-1])) == 401


@pytest.mark.parametrize("password", ["", "x", PASSWORD[:-1], PASSWORD + " ", PASSWORD.upper()])
def test_a_wrong_password_does_not(password):
    sent = _login(Access(_pages, Guard(PASSWORD), "0.0.0.0"), password)
    assert _status(sent) == 401
    assert b"set-cookie" not in dict(sent[0]["headers"])


def test_an_address_that_guesses_has_to_wait():
    now = 1000.0
    guard = Guard(PASSWORD, clock=lambda: now)
    access = Access(_pages, guard, "0.0.0.0")
    assert [_status(_login(access, "wrong")) for _ in range(6)] == [401, 401, 401, 401, 429, 429]
    assert _status(_login(access, PASSWORD)) == 429
    assert _status(_login(access, PASSWORD, address="10.0.0.2")) == 303
    now += 299
    assert _status(_login(access, PASSWORD)) == 429
    now += 2
    assert _status(_login(access, PASSWORD)) == 303


def test_what_is_too_large_is_not_read():
    access = Access(_pages, Guard(None), "127.0.0.1")
    assert _status(_ask(access, method="POST", content_length=str(2 * LARGEST_UPLOAD))) == 413
    assert _status(_ask(access, method="POST", content_length="-1")) == 413
    part = bytes(1 << 20)
    assert _status(_ask(access, method="POST", body=[part] * 20)) == 200
    assert _ask(access, method="POST", body=[part] * 22) == []  # it has not said so before: broken off


@pytest.mark.parametrize(
    ("hosts", "local"),
    [(("127.0.0.1", "localhost", "::1", "127.5.5.5"), True), (("0.0.0.0", "::", "10.0.0.1", "", "node7"), False)],
)
def test_is_local(hosts, local):
    assert {is_local(host) for host in hosts} == {local}


def test_password_files(tmp_path):
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\nsecond line\n")
    path.chmod(0o644)
    with pytest.raises(AccessError, match="others can read it; chmod 600"):
        read_password(str(path))
    path.chmod(0o600)
    assert read_password(str(path)) == PASSWORD
    path.write_text("short\n")
    with pytest.raises(AccessError, match="5 characters"):
        read_password(str(path))
    with pytest.raises(AccessError, match="No such file"):
        read_password(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{results}/none"], "no such folder; wanted: a folder with results of runs"),
        (["{results}", "--host", "0.0.0.0"], "others can reach it; give a --password-file, too"),
        (["{results}", "--host", "0.0.0.0", "--password-file", "{results}/none"], "cannot be read"),
        (["{results}", "--port", "70000"], "no port; allowed: 1 to 65535"),
        (["{results}", "--host", "203.0.113.7", "--password-file", "{results}/password"], "give another --port"),
        (["{results}", "--port", "x"], "invalid int value"),
        ([""], "it is empty; give a folder"),
    ],
)
def test_bad_arguments_are_one_line(tmp_path, capsys, arguments, message):
    (tmp_path / "password").write_text("long enough")
    (tmp_path / "password").chmod(0o600)
    try:
        code = command.main([argument.format(results=tmp_path) for argument in arguments])
    except SystemExit as error:
        code = error.code
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err


@pytest.mark.sweep
@pytest.mark.parametrize("state", ["<&- >&- 2>&-", ">/dev/full 2>&1"])
def test_the_server_goes_on_when_its_output_cannot_be_written(tmp_path, state):
    pytest.importorskip("nicegui")
    port = server.free_port()
    words = [sys.executable, "-m", "mixprec.monitor", tmp_path, "--port", str(port)]
    process = subprocess.Popen(["bash", "-c", f'exec "$@" {state}', "bash", *words], cwd=server.ROOT, env=server.ENV)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=60) as page:
                assert page.status == 200
                break
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
