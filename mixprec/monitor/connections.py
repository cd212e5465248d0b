"""Connections whose request is not whole: they have little time, and few of them are kept.

Every account of the machine can connect. A connection that says nothing, or a letter each second, would otherwise hold
a descriptor for ever, and when there are none left no browser is answered.
"""

import asyncio
import collections
import resource

HEADER, BODY = "header", "body"  # what a connection still has to send
_SECONDS = {HEADER: 10, BODY: 120}
_MOST = 64


class Connections:
    """What each connection still has to send, and until when.

    Where too many owe the same, the oldest is closed: a browser sends a whole request at once, and is answered.

    Args:
        seconds: dict, for :data:`HEADER` and :data:`BODY`: after which a connection is closed.
        most: number of connections that may owe the same; default: so many that descriptors do not run out.
    """

    def __init__(self, seconds=None, most=None):
        self._most = min(_MOST, max(4, _descriptors() // 5)) if most is None else most
        self._seconds = seconds or _SECONDS
        self._transports = {}  # address of the client -> transport
        self._owing = {HEADER: collections.OrderedDict(), BODY: collections.OrderedDict()}  # address -> timer

    def settings(self):
        """Returns uvicorn's settings that belong to it, a dict."""
        from uvicorn.protocols.http.h11_impl import H11Protocol  # processes that only ask for constants have none

        connections = self

        class Watched(H11Protocol):  # it bounds the size of a header, which httptools does not
            def connection_made(self, transport):
                super().connection_made(transport)
                connections.made(transport)

            def connection_lost(self, error):
                connections.gone(self.transport.get_extra_info("peername"))
                super().connection_lost(error)

        return {
            "http": Watched,
            # asyncio's own loop accepts at most so many before it goes on with those that it has.
            "loop": "asyncio",
            "backlog": min(1024, max(4, _descriptors() // 8)),
            "timeout_graceful_shutdown": 5,  # seconds; a request that is not whole would go on for minutes
        }

    def made(self, transport):
        """A connection has been accepted."""
        client = transport.get_extra_info("peername")
        self.gone(client)  # an earlier one from the same port
        self._transports[client] = transport
        self.owes(client, HEADER)

    def owes(self, client, part):
        """A connection has to send a part from now on, or nothing.

        Args:
            client: its address, as in an ASGI scope.
            part: :data:`HEADER`, :data:`BODY` or ``None``.
        """
        for owing in self._owing.values():
            if client in owing:
                owing.pop(client).cancel()
        if part is None or client not in self._transports:
            return
        owing = self._owing[part]
        owing[client] = asyncio.get_running_loop().call_later(self._seconds[part], self._late, client, part)
        if len(owing) > self._most:
            self._close(next(iter(owing)))

    def gone(self, client):
        """A connection is closed, or about to be."""
        self.owes(client, None)
        self._transports.pop(client, None)

    def _late(self, client, part):
        if self._transports[client].get_write_buffer_size():
            self.owes(client, part)  # the answer to its last request is still on the way
        else:
            self._close(client)

    def _close(self, client):
        transport = self._transports[client]
        self.gone(client)
        transport.close()  # what is in the buffer is sent


def _descriptors():
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if limit == resource.RLIM_INFINITY else limit
