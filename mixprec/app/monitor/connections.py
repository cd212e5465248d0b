"""Limits of connections: little time for each part of a request, and a limited number at a time.

Every account of the machine can connect. A connection that sends nothing, or a byte each second, or never reads its
answer, would otherwise hold a descriptor for ever, and without free descriptors no browser gets an answer.
"""

import asyncio
import collections
import resource

# The state of a connection: it sends a header or a body, waits for work, reads its answer, or is a WebSocket.
HEADER, BODY, WORK, ANSWER, SOCKET = "header", "body", "work", "answer", "socket"
_SECONDS = {HEADER: 10, BODY: 120, ANSWER: 20}  # of an answer: until some more of it has been read
_MOST = {HEADER: 64, BODY: 64, WORK: 256, ANSWER: 64, SOCKET: 256}
_MESSAGE = 1 << 20  # bytes of a message over a WebSocket


class Connections:
    """The state of each connection, and its deadline.

    If too many are in the same state, the oldest is closed: a browser sends a whole request at once, and is answered.

    Args:
        seconds: dict from states to seconds after which a connection is closed; states without a number have no limit.
        most: largest number of connections in the same state; default: a number that leaves descriptors free.
    """

    def __init__(self, seconds=None, most=None):
        self._most = {part: min(number, max(4, _descriptors() // 8)) for part, number in _MOST.items()}
        if most is not None:
            self._most = dict.fromkeys(_MOST, most)
        self._seconds = seconds or _SECONDS
        self._transports = {}  # address of the client -> transport
        self._at = {part: collections.OrderedDict() for part in _MOST}  # transport -> timer or None
        self._unsent = {}  # transport -> bytes in its buffer at the last check

    def settings(self):
        """Returns the matching settings of uvicorn, a dict."""
        from uvicorn.protocols.http.h11_impl import H11Protocol  # processes that only ask for constants have none

        connections = self

        class Watched(H11Protocol):  # it limits the size of a header, httptools does not
            def connection_made(self, transport):
                super().connection_made(transport)
                connections.made(transport)

            def connection_lost(self, error):
                connections.gone(self.transport)
                super().connection_lost(error)

        return {
            "http": Watched,
            # asyncio's loop accepts at most this many connections before it serves the existing ones, and does so a few
            # times before it reads from the first, which must not be closed by then.
            "loop": "asyncio",
            "backlog": max(4, self._most[HEADER] // 4),
            "timeout_graceful_shutdown": 5,  # seconds; an incomplete request would last for minutes
            "ws_max_size": _MESSAGE,
        }

    def made(self, transport):
        """A connection has been accepted."""
        client = transport.get_extra_info("peername")
        if client in self._transports:
            self.gone(self._transports[client])  # an earlier one from the same port
        self._transports[client] = transport
        self.enter(transport, HEADER)

    def of(self, client):
        """Returns the transport of a client's address, as in an ASGI scope; ``None`` if there is none."""
        return self._transports.get(client)

    def is_at(self, transport, part):
        """Returns ``True`` if a connection is in a state, see :meth:`enter`."""
        return transport in self._at[part]

    def enter(self, transport, part):
        """Sets the state of a connection, or restarts its time after progress.

        Args:
            transport: from :meth:`of`; a closed connection, or ``None``, is ignored.
            part: :data:`HEADER`, :data:`BODY`, :data:`WORK`, :data:`ANSWER` or :data:`SOCKET`.
        """
        if not self._is_known(transport):
            return
        self._forget(transport)
        held, seconds = self._at[part], self._seconds.get(part)
        timer = None
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(seconds, self._late, transport, part)
        held[transport] = timer
        if len(held) > self._most[part]:
            oldest = next(iter(held))
            self._abort(oldest) if part == ANSWER else self._close(oldest)

    def gone(self, transport):
        """A connection is closed, or about to be."""
        self._forget(transport)
        if self._is_known(transport):
            del self._transports[transport.get_extra_info("peername")]

    def _is_known(self, transport):
        """Whether it is counted; a new connection may have the port of a closed one."""
        return transport is not None and self._transports.get(transport.get_extra_info("peername")) is transport

    def _forget(self, transport):
        self._unsent.pop(transport, None)
        for held in self._at.values():
            timer = held.pop(transport, None)
            if timer is not None:
                timer.cancel()

    def _late(self, transport, part):
        unsent = transport.get_write_buffer_size()
        if part == ANSWER and unsent == self._unsent.get(transport):
            self._abort(transport)
        elif unsent:
            self.enter(transport, ANSWER)  # an answer is still on the way
            self._unsent[transport] = unsent
        else:
            self._close(transport)

    def _close(self, transport):
        transport.close()  # the buffer is still sent
        if transport.get_write_buffer_size():
            self.enter(transport, ANSWER)
        else:
            self.gone(transport)

    def _abort(self, transport):
        self.gone(transport)
        transport.abort()


def _descriptors():
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if limit == resource.RLIM_INFINITY else limit
