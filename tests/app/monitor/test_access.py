"""Who may see the pages."""

import asyncio

import pytest

from mixprec.app.commands import monitor as command
from mixprec.app.monitor.access import LARGEST_UPLOAD, Access, Guard
from mixprec.app.monitor.connections import ANSWER, BODY, HEADER, SOCKET, WORK

TOKEN = "correct-horse.battery~staple"
BEARER = f"Bearer {TOKEN}"
COOKIE = Guard(TOKEN).cookie("8080").partition(";")[0]


class Entered:
    """Stands for the connections: keeps what the only one has been at."""

    def __init__(self):
        self.said = []

    def of(self, client):
        return client

    def is_at(self, connection, part):
        return self.said[-1] == part

    def enter(self, connection, part):
        self.said.append(part)


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


def _ask(path="/", *, kind="http", method="GET", body=(b"",), entered=None, twice=(), **headers):
    """Returns the messages that are sent: a list."""
    path, _, query = path.partition("?")
    headers = {"host": "localhost:8080", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": kind,
        "path": path,
        "query_string": query.encode(),
        "method": method,
        "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in [*headers.items(), *twice]],
    }
    parts = [{"type": "http.request", "body": part, "more_body": n < len(body)} for n, part in enumerate(body, 1)]
    sent = []

    async def receive():
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    asyncio.run(Access(_pages, Guard(TOKEN), entered or Entered())(scope, receive, send))
    return sent


def _asked(path="/", **keywords):
    """Asks with the token."""
    return _ask(path, authorization=BEARER, **keywords)


def _status(sent):
    return sent[0].get("status", sent[0]["type"]) if sent else None


def test_who_has_the_token_sees_the_pages():
    sent = _asked()
    assert (_status(sent), sent[1]["body"]) == (200, b"pages ")
    policy = dict(sent[0]["headers"])[b"content-security-policy"].decode()
    assert "connect-src 'self'" in policy
    assert "http" not in policy
    assert _status(_ask(authorization=f"bearer  {TOKEN}")) == 200
    assert _status(_asked(kind="websocket")) == "websocket.accept"


@pytest.mark.parametrize("path", ["/", "/run", "/_nicegui/static/x.js", "/favicon.ico", "/docs", "/login", "//x"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_without_the_token_nothing_is_seen_except_the_entrance(path, method):
    sent = _ask(path, method=method)
    assert _status(sent) == 401
    assert b"printed when it started" in sent[1]["body"]
    assert not sent[1]["body"].startswith(b"pages")
    headers = dict(sent[0]["headers"])
    assert (headers[b"connection"], headers[b"cache-control"]) == (b"close", b"no-store")
    assert TOKEN.encode() not in repr(sent).encode()


NO_TOKENS = [
    *({}, {"authorization": f"Bearer {TOKEN[:-1]}"}, {"authorization": f"Bearer {TOKEN}x"}),
    *({"authorization": "Bearer"}, {"authorization": "Bearer \xfc"}, {"authorization": f"Basic {TOKEN}"}),
    *({"authorization": TOKEN}, {"cookie": "mixprec_monitor_8080="}, {"cookie": "mixprec_monitor_8080=\xfc"}),
    *({"cookie": f"mixprec_monitor_8080={TOKEN}"}, {"cookie": COOKIE[:-1]}, {"cookie": COOKIE.replace("8080", "8081")}),
]


@pytest.mark.parametrize("headers", NO_TOKENS)
def test_what_is_not_the_token_opens_nothing(headers):
    assert _status(_ask(**headers)) == 401
    assert _status(_ask(kind="websocket", **headers)) == "websocket.close"


def test_the_address_gives_a_browser_its_cookie_and_loses_the_token():
    sent = _ask(f"/run?name=a%2Fb&token={TOKEN}&x=1?")
    assert _status(sent) == 303
    headers = dict(sent[0]["headers"])
    assert headers[b"location"] == b"/run?name=a%2Fb&x=1?"
    cookie, *settings = headers[b"set-cookie"].decode().split("; ")
    assert settings == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert cookie == COOKIE
    assert TOKEN not in repr(sent)
    assert _status(_ask(cookie=f"other=1; {cookie}")) == 200
    assert _status(_ask(cookie=f'path=/; x={{"a":1}}; foo; a b=\xfc; {cookie}')) == 200
    assert _status(_ask(kind="websocket", cookie=cookie)) == "websocket.accept"
    assert _status(_ask(f"/?token={TOKEN}", method="HEAD")) == 303


def test_the_cookie_has_the_port_that_the_browser_asks_for():
    # Two tunnels to two machines have other ports here, where the server's are the same.
    sent = _ask(f"/?token={TOKEN}", host="localhost:9001")
    cookie = dict(sent[0]["headers"])[b"set-cookie"].decode().partition(";")[0]
    assert cookie.startswith("mixprec_monitor_9001=")
    assert _status(_ask(cookie=cookie, host="localhost:9001")) == 200
    assert _status(_ask(cookie=cookie)) == 401


REDIRECTIONS = [
    ("//evil.example/", b"/evil.example/"),
    ("///evil.example", b"/evil.example"),
    ("/\\evil.example", b"/%5Cevil.example"),
    ("http://evil.example/", b"/http%3A//evil.example/"),
    ("/a\r\nx: y", b"/a%0D%0Ax%3A%20y"),
    ("/ü", b"/%C3%BC"),
]


@pytest.mark.parametrize(("path", "location"), REDIRECTIONS)
def test_the_redirection_stays_here(path, location):
    sent = _ask(f"{path}?token={TOKEN}")
    assert (_status(sent), dict(sent[0]["headers"])[b"location"]) == (303, location)


def test_a_token_in_the_address_is_for_pages_only():
    assert _status(_ask(f"/?token={TOKEN}", method="POST")) == 401
    assert _status(_ask(f"/?token={TOKEN}", kind="websocket")) == "websocket.close"
    for query in ("token=", "token", f"token={TOKEN}x", f"tokens={TOKEN}", f"Token={TOKEN}", "token=%FF%00"):
        assert _status(_ask(f"/?{query}")) == 401
    assert _status(_ask("/?token=of-before", cookie=COOKIE)) == 200
    assert _status(_ask(f"/?token={TOKEN.replace('~', '%7E')}")) == 303


HOSTS = [
    *("evil.example", "localhost.evil.example", "127.0.0.1.evil", "127.0.0.2", "127.1", "0.0.0.0:8080", ""),
    *("a:b:c", "127.0.0.1:80:90", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:123456", "127.0.0.1:8080@evil.example"),
    *("user@127.0.0.1:8080", "127.0.0.1/evil", "127.0.0.1 ", "127.0.0.1\n", "::1", "[::1", "[", "localhost."),
]


@pytest.mark.parametrize("host", HOSTS)
def test_a_name_that_leads_here_is_not_enough(host):
    assert _status(_asked(host=host)) == 400
    assert _status(_ask(f"/?token={TOKEN}", host=host)) == 400
    assert _status(_asked(kind="websocket", host=host)) == "websocket.close"


@pytest.mark.parametrize(
    ("name", "status"), [("host", 400), ("Host", 400), ("origin", 403), ("authorization", 401), ("content-length", 413)]
)
def test_of_two_headers_of_a_name_none_is_taken(name, status):
    good = {"host": "localhost:8080", "origin": "http://localhost:8080", "authorization": BEARER, "content-length": "1"}
    value = good[name.lower()]
    for other in ("evil.example", value):
        for pair in ((value, other), (other, value)):
            headers = {**good, name.lower(): pair[0]}
            assert _status(_ask(method="POST", twice=[(name, pair[1])], **headers)) == status
    assert _status(_ask(method="POST", **good)) == 200


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:9000", "[::1]:8080", "LOCALHOST"])
def test_names_of_this_machine(host):
    assert _status(_asked(host=host)) == 200
    assert _status(_asked(host=host, origin=f"http://{host}")) == 200


ORIGINS = [
    *("http://evil.example", "http://localhost:9999", "null", "", "[", "http://[", "localhost:8080"),
    *("http://localhost:8080@evil.example", "http://user@localhost:8080", "ftp://localhost:8080"),
]


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("origin", ORIGINS)
def test_pages_of_other_sites_are_refused(kind, origin):
    assert _status(_asked(kind=kind, origin=origin)) in (403, "websocket.close")
    assert _status(_asked(kind=kind, origin="http://localhost:8080")) in (200, "websocket.accept")


def test_what_is_too_large_is_not_read():
    for length in (str(2 * LARGEST_UPLOAD), "-1", "\xb2", "", 5000 * "9"):
        assert _status(_asked(method="POST", content_length=length)) == 413
    part = bytes(1 << 20)
    assert _status(_asked(method="POST", body=[part] * 20)) == 200
    assert _asked(method="POST", body=[part] * 22) == []  # it has not said so before: broken off


REQUESTS = [
    ({"authorization": BEARER}, [WORK, ANSWER, HEADER]),
    ({"authorization": BEARER, "body": [b"a", b"b"], "content_length": "2"}, [BODY, WORK, ANSWER, HEADER]),
    ({"authorization": BEARER, "body": [b"a"], "transfer_encoding": "chunked"}, [BODY, WORK, ANSWER, HEADER]),
    ({"content_length": "2"}, []),
    ({"authorization": BEARER, "kind": "websocket"}, [SOCKET, HEADER]),
    ({"kind": "websocket"}, []),
]


@pytest.mark.parametrize(("request_", "said"), REQUESTS)
def test_only_the_token_gives_a_connection_more_time(request_, said):
    entered = Entered()
    _ask(entered=entered, **request_)
    assert entered.said == said


BAD_ARGUMENTS = [
    (["{results}/none"], "no such folder; wanted: a folder with results of runs"),
    (["{results}", "--port", "70000"], "not a port; allowed: 1 to 65535"),
    (["{results}", "--port", "0"], "not a port; allowed: 1 to 65535"),
    (["{results}", "--port", "x"], "invalid int value"),
    (["{results}", "--host", "0.0.0.0"], "unrecognized arguments: --host 0.0.0.0"),
    ([""], "it is empty; give a folder"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_one_line(tmp_path, capsys, arguments, message):
    try:
        code = command.main([argument.format(results=tmp_path) for argument in arguments])
    except SystemExit as error:
        code = error.code
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
