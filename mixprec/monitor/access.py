"""Who may see the pages, and how much they may send: an ASGI middleware in front of everything that the server has."""

import collections
import hashlib
import hmac
import html
import ipaddress
import os
import secrets
import time
import urllib.parse

from mixprec import files
from mixprec.messages import OneLineError

LARGEST_UPLOAD = 20_000_000  # bytes of a file
_LARGEST = LARGEST_UPLOAD + (1 << 20)  # bytes of a request
_ATTEMPTS, _MINUTES = 5, 5  # wrong passwords of one address in so many minutes, before it has to wait
_ADDRESSES = 10_000  # that are remembered
_LOCAL = ("localhost", "127.0.0.1", "::1")
# All that a page needs comes from this server; a browser refuses to load anything from elsewhere.
_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; font-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval'; connect-src 'self'; frame-ancestors 'none'; form-action 'self'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # without any, a browser would not say which site a form comes from
]
_FORM = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>mixprec monitor</title><style>:root{{color-scheme:light dark}}body{{font:16px sans-serif;margin:4em auto;
max-width:20em;padding:0 1em}}input,button{{font:inherit;width:100%;padding:.5em;margin:.3em 0;box-sizing:border-box}}
</style><h1>mixprec monitor</h1><form method="post" action="/login"><label>Password
<input type="password" name="password" autofocus autocomplete="current-password"></label><button>Open</button></form>
<p role="alert">{message}</p></html>"""


class AccessError(OneLineError):
    """The pages cannot be offered in this way; the message is one line and says what would be right."""


def is_local(host):
    """Returns ``True`` if only programs of this machine can reach a server that is bound to ``host``."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_password(path):
    """Returns the password in the first line of a file.

    Raises:
        AccessError: the file cannot be read, others than its owner can read it, or the password is shorter than 8.
    """
    try:
        password = files.read(path, 4096).decode().partition("\n")[0].strip()
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise AccessError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if mode & 0o077:
        raise AccessError(f"{path}: others can read it; chmod 600 {path}")
    if len(password) < 8:
        raise AccessError(f"{path}: its first line has {len(password)} characters; a password needs 8 or more")
    return password


class Guard:
    """Decides who has a session.

    Args:
        password: text, or ``None`` where everybody who can reach the server may see it.
        port: of the server; cookies are named by it, as browsers keep those of all ports of a host together.
        clock: function that returns seconds.
    """

    def __init__(self, password, port=8080, clock=time.monotonic):
        self._cookie = f"mixprec_monitor_{port}"
        self._digest = None if password is None else _digest(password)
        self._clock = clock
        self._sessions = collections.OrderedDict()
        self._failures = collections.OrderedDict()  # address -> times of wrong passwords

    def is_open(self, cookies):
        """Returns ``True`` if a request with these cookies, a ``Cookie`` header, may see the pages."""
        if self._digest is None:
            return True
        # By hand: Python's parser stops at the first cookie of another program that it cannot read.
        pairs = (cookie.strip().partition("=") for cookie in cookies.split(";"))
        return any(name == self._cookie and _digest(value) in self._sessions for name, _, value in pairs)

    def login(self, address, password):
        """Returns the cookie of a new session; ``None`` if the password is wrong, or the address has to wait.

        Args:
            address: where the request comes from.
            password: what was entered.
        """
        if self.seconds_to_wait(address):
            return None
        if self._digest is None or not hmac.compare_digest(_digest(password), self._digest):
            self._failures.setdefault(address, []).append(self._clock())
            self._failures.move_to_end(address)
            while len(self._failures) > _ADDRESSES:
                self._failures.popitem(last=False)
            return None
        self._failures.pop(address, None)
        token = secrets.token_urlsafe(32)
        self._sessions[_digest(token)] = None
        while len(self._sessions) > 1000:
            self._sessions.popitem(last=False)
        return f"{self._cookie}={token}; Path=/; HttpOnly; SameSite=Strict"

    def seconds_to_wait(self, address):
        """Returns in how many seconds an address may try again, 0 if now."""
        now = self._clock()
        recent = [at for at in self._failures.get(address, []) if now - at < 60 * _MINUTES]
        if address in self._failures:
            self._failures[address] = recent
        return 0 if len(recent) < _ATTEMPTS else 60 * _MINUTES - (now - recent[-_ATTEMPTS])


def _digest(text):
    # Passwords of unequal length become digests of equal length, which are compared in constant time.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class Access:
    """The middleware: a password where there is one, no requests by pages of other sites, none that is too large.

    Args:
        app: ASGI application behind it.
        guard: :class:`Guard`.
        host: that the server is bound to. If it is one of this machine, requests must name it so: a page of another
            site could otherwise have its own name lead to 127.0.0.1 ("DNS rebinding"), and read what it is answered.
    """

    def __init__(self, app, guard, host):
        self._app, self._guard = app, guard
        self._names = (*_LOCAL, host) if is_local(host) else None

    async def __call__(self, scope, receive, send):
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            refused = self._refused(headers)
        except ValueError:  # of urlsplit: brackets that do not match
            refused = 400, "Host or Origin cannot be read"
        is_page = scope["type"] == "http"
        is_open = self._guard.is_open(headers.get("cookie", ""))
        if is_page and refused is not None:
            await _answer(send, *refused)
        elif is_page and not is_open:
            await self._login(scope, receive, send)
        elif is_page:
            await self._app(scope, _limited(receive), _with_headers(send))
        elif refused is not None or not is_open:
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._app(scope, receive, send)

    def _refused(self, headers):
        host = headers.get("host", "")
        if self._names is not None and urllib.parse.urlsplit(f"//{host}").hostname not in self._names:
            return 400, "the server is asked for by a name that is not its own"
        origin = headers.get("origin")
        if origin is not None and urllib.parse.urlsplit(origin).netloc != host:
            return 403, "a page of another site asks"
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > _LARGEST:
            return 413, f"at most {LARGEST_UPLOAD / 1e6:g} MB"
        return None

    async def _login(self, scope, receive, send):
        address = (scope.get("client") or ("",))[0]
        if scope["path"] != "/login" or scope["method"] != "POST":
            await _answer(send, 401, _FORM.format(message=""), html_=True)
            return
        body = await _body(receive, 4096)
        entered = urllib.parse.parse_qs(body.decode("latin-1")).get("password", [""])[0]
        cookie = self._guard.login(address, entered)
        if cookie is not None:
            await _answer(send, 303, "", more=[(b"location", b"/"), (b"set-cookie", cookie.encode())])
            return
        wait = self._guard.seconds_to_wait(address)
        message = f"Too many wrong passwords; try again in {wait:.0f} s." if wait else "This is not the password."
        await _answer(send, 429 if wait else 401, _FORM.format(message=html.escape(message)), html_=True)


def _limited(receive):
    """Returns ``receive`` of a request, which breaks off one that sends more than its header said, or has no header."""
    size = 0

    async def limited():
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        return {"type": "http.disconnect"} if size > _LARGEST else message

    return limited


def _with_headers(send):
    async def with_headers(message):
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *_HEADERS]}
        await send(message)

    return with_headers


async def _body(receive, most):
    body = b""
    while len(body) <= most:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return body[:most]


async def _answer(send, status, text, *, html_=False, more=()):
    kind = b"text/html; charset=utf-8" if html_ else b"text/plain; charset=utf-8"
    headers = [(b"content-type", kind), (b"cache-control", b"no-store"), *_HEADERS, *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
