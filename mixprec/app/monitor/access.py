"""Access to the pages, and limits of requests: an ASGI middleware in front of the whole server."""

import hashlib
import hmac
import re
import urllib.parse

from mixprec.app.monitor.connections import ANSWER, BODY, HEADER, SOCKET, WORK

LARGEST_UPLOAD = 20_000_000  # bytes of a file
_LARGEST = LARGEST_UPLOAD + (1 << 20)  # bytes of a request
# A tunnel may have another port than the server at its other end.
_HOST = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::([0-9]{1,5}))?", re.IGNORECASE)
# Pages load everything from this server; browsers refuse to load anything from elsewhere.
_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; font-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval'; connect-src 'self'; frame-ancestors 'none'; form-action 'self'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # without a policy, browsers would not send the origin of a form
]
# The link helps users who followed the address on a page of another site: there the browser does not send the cookie.
_ENTRANCE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>mixprec monitor</title><style>:root{color-scheme:light dark}body{font:16px sans-serif;margin:4em auto;
max-width:30em;padding:0 1em}</style><h1>mixprec monitor</h1><p>These pages are opened by the address with
<code>?token=</code> that <code>mixprec monitor</code> printed when it started. The token is also in a file in the cache
of the account that started it: <code>~/.cache/mixprec/monitor/HOST-PORT.token</code>.</p> <p>You came by that address?
<a href="">Open the pages</a></p></html>"""


class Guard:
    """Decides about access to the pages: by the token, or by the cookie that a browser got for it.

    Args:
        token: text.
    """

    def __init__(self, token):
        self._token = token.encode()
        # Browsers keep this instead of the token, which users may have chosen for several servers.
        self._cookie = hmac.new(self._token, b"cookie", hashlib.sha256).hexdigest().encode()

    def is_token(self, text):
        """Returns ``True`` if a text is the token."""
        return hmac.compare_digest(text.encode("utf-8", "surrogatepass"), self._token)

    def is_open(self, headers, port):
        """Returns ``True`` if a request may see the pages.

        Args:
            headers: dict of its headers, with names in small letters.
            port: port of the request, as text: browsers keep the cookies of all ports of a host together.
        """
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(bearer.strip()):
            return True
        # By hand: Python's parser stops at the first cookie of another program that it cannot read.
        pairs = (cookie.strip().partition("=") for cookie in headers.get("cookie", "").split(";"))
        return any(
            name == _cookie_name(port) and hmac.compare_digest(value.encode("latin-1"), self._cookie)
            for name, _, value in pairs
        )

    def cookie(self, port):
        """Returns the header that gives a browser its cookie."""
        return f"{_cookie_name(port)}={self._cookie.decode()}; Path=/; HttpOnly; SameSite=Strict"


def _cookie_name(port):
    return f"mixprec_monitor_{port}"


class Access:
    """The middleware: it refuses requests without the token, from pages of other sites, and of excessive size.

    A request must name this machine by one of its own names: otherwise a page of another site could resolve its own
    name to 127.0.0.1 ("DNS rebinding"), and read the answers.

    Args:
        app: ASGI application behind it.
        guard: :class:`Guard`.
        connections: :class:`mixprec.app.monitor.connections.Connections`.
    """

    def __init__(self, app, guard, connections):
        self._app, self._guard, self._connections = app, guard, connections

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope, receive, send):
        headers = _headers(scope)
        port, refused = _checked(headers)
        if refused is not None:
            await _answer(send, *refused)
        elif scope["method"] in ("GET", "HEAD") and self._has_token(scope):
            more = [(b"location", _without_token(scope)), (b"set-cookie", self._guard.cookie(port).encode())]
            await _answer(send, 303, "", more=more)
        elif not self._guard.is_open(headers, port):
            more = [(b"www-authenticate", b"Bearer")]
            await _answer(send, 401, _ENTRANCE, kind=b"text/html; charset=utf-8", more=more)
        elif not _is_length(headers.get("content-length", "0")):
            await _answer(send, 413, f"at most {LARGEST_UPLOAD / 1e6:g} MB")
        else:
            has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
            connection = self._connections.of(scope.get("client"))
            self._connections.enter(connection, BODY if has_body else WORK)
            await self._app(scope, self._received(connection, receive), self._sent(connection, send))

    async def _websocket(self, scope, receive, send):
        headers, connection = _headers(scope), self._connections.of(scope.get("client"))
        port, refused = _checked(headers)
        if refused is not None or not self._guard.is_open(headers, port):
            await send({"type": "websocket.close", "code": 1008})
            return
        self._connections.enter(connection, SOCKET)
        try:
            await self._app(scope, receive, send)
        finally:
            self._connections.enter(connection, HEADER)  # with a time limit: nothing else reports that it is closed

    def _has_token(self, scope):
        return any(self._guard.is_token(value) for value in map(_token, _query(scope)) if value is not None)

    def _received(self, connection, receive):
        """Returns a ``receive`` that aborts requests longer than their header announces, or without this header."""
        size = 0

        async def received():
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > _LARGEST:
                return {"type": "http.disconnect"}
            if not message.get("more_body") and self._connections.is_at(connection, BODY):
                self._connections.enter(connection, WORK)
            return message

        return received

    def _sent(self, connection, send):
        async def sent(message):
            is_last = message["type"] == "http.response.body" and not message.get("more_body")
            # Before the next request can come; and each part is requested when some of the previous one has been read.
            self._connections.enter(connection, HEADER if is_last else ANSWER)
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *_HEADERS]}
            await send(message)

        return sent


def _headers(scope):
    """Returns the headers, a dict; a repeated header gets both values, so that neither is mistaken for it."""
    headers = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return {name: ", ".join(values) for name, values in headers.items()}


def _checked(headers):
    """Returns the requested port, and ``None`` or the status and text of a refusal."""
    host = headers.get("host", "")
    found = _HOST.fullmatch(host)
    if found is None:
        return None, (400, "the request names a host that is not this server")
    if headers.get("origin", f"http://{host}").lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
        return None, (403, "a page of another site asks")
    return found[1] or "80", None


def _is_length(text):
    return text.isdecimal() and len(text) < 20 and int(text) <= _LARGEST


def _query(scope):
    return scope.get("query_string", b"").decode("latin-1").split("&")


def _token(part):
    """Returns the value of a part of a query if it is the token's, otherwise ``None``."""
    name, _, value = part.partition("=")
    return urllib.parse.unquote(value) if name == "token" else None


def _without_token(scope):
    query = "&".join(part for part in _query(scope) if _token(part) is None)
    # One slash: what follows two would be the name of another host.
    path = "/" + urllib.parse.quote(scope["path"].lstrip("/"))
    return (f"{path}?{query}" if query else path).encode("latin-1")


async def _answer(send, status, text, *, kind=b"text/plain; charset=utf-8", more=()):
    """Answers and closes the connection, even if the client is still sending."""
    headers = [(b"content-type", kind), (b"connection", b"close"), (b"cache-control", b"no-store"), *_HEADERS, *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
