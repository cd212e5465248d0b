"""Connections that send no whole request."""

import asyncio
import contextlib
import itertools
import selectors
import socket
import time
import urllib.request

import pytest

from mixprec.app.monitor.connections import ANSWER, BODY, HEADER, SOCKET, WORK, Connections
from tests.app.monitor.server import TOKEN, Server

BEARER = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
FLOODS = {
    "half a header": b"GET / HTTP/1.1\r\nHo",
    "a body with the token": b"POST / HTTP/1.1\r\nContent-Length: 9\r\n" + BEARER + b"\r\n",
    "nothing": b"",
    "half a handshake": b"GET /_nicegui_ws/socket.io/ HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n",
    "no handshake": b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a body without": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
    "idle with the token": b"POST / HTTP/1.1\r\nContent-Length: 0\r\n" + BEARER + b"\r\n",
    "idle without": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a long header": b"GET / HTTP/1.1\r\nX: " + 100_000 * b"x",
}


class Transport:
    """Stands for a connection."""

    def __init__(self, client, unsent=0):
        self.client, self.unsent, self.closed = client, unsent, False

    def get_extra_info(self, name):
        return {"peername": self.client}[name]

    def get_write_buffer_size(self):
        return self.unsent

    def close(self):
        self.closed = True

    def abort(self):
        self.closed, self.unsent = True, 0


def _send(connection, data):
    with contextlib.suppress(OSError):  # it is closed already
        connection.setblocking(False)
        connection.send(data)


def _gets_a_page(server):
    request = urllib.request.Request(server.address, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=9) as answer:  # before half a header is given up, after 10 s
        assert b"mixprec: Runs" in answer.read()


class Clock(selectors.DefaultSelector):
    """The clock of an event loop that jumps to what is due next, in place of waiting for it."""

    now = 0.0

    def select(self, timeout=None):
        self.now += timeout or 0.0
        return super().select(0)


def _told(story, **settings):
    """Runs a story, an async function of connections with short times; returns what it returns."""

    async def told():
        return await story(Connections({HEADER: 0.2, BODY: 0.4, ANSWER: 0.2}, **settings))

    clock = Clock()
    with contextlib.closing(asyncio.SelectorEventLoop(clock)) as loop:
        loop.time = lambda: clock.now
        return loop.run_until_complete(told())


def test_a_connection_without_a_whole_request_is_closed_in_time():
    async def story(connections):
        silent, busy, slow = (Transport(("127.0.0.1", port)) for port in (1, 2, 3))
        for transport in (silent, busy, slow):
            connections.made(transport)
        connections.enter(busy, WORK)
        connections.enter(slow, BODY)
        await asyncio.sleep(0.3)
        early = silent.closed, busy.closed, slow.closed
        await asyncio.sleep(0.4)
        return early, (silent.closed, busy.closed, slow.closed)

    assert _told(story) == ((True, False, False), (True, False, True))


def test_an_idle_connection_has_the_time_of_a_header():
    async def story(connections):
        idle = Transport(("127.0.0.1", 1))
        connections.made(idle)
        connections.enter(idle, WORK)
        connections.enter(idle, HEADER)
        await asyncio.sleep(0.5)
        return idle.closed

    assert _told(story)


def test_an_answer_on_its_way_is_waited_for_as_long_as_the_client_takes_some_of_it():
    async def story(connections):
        slow, stuck = Transport(("127.0.0.1", 1), unsent=100), Transport(("127.0.0.1", 2), unsent=100)
        connections.made(slow)
        connections.made(stuck)
        for _ in range(16):
            await asyncio.sleep(0.05)
            slow.unsent -= 1
        before, slow.unsent = (slow.closed, stuck.closed, stuck.unsent), 0
        await asyncio.sleep(0.5)
        return before, slow.closed

    assert _told(story) == ((False, True, 0), True)


def test_too_many_that_take_no_answer_are_cut_off_and_half_headers_cut_off_none_of_them():
    async def story(connections):
        downloads = [Transport(("127.0.0.1", port), unsent=100) for port in range(5)]
        for transport in downloads[:3]:
            connections.made(transport)
            connections.enter(transport, HEADER)  # the last part of its answer is on its way
        for port in range(5, 20):
            connections.made(Transport(("127.0.0.1", port)))
        before = [transport.unsent for transport in downloads[:3]]
        for transport in downloads[3:]:
            connections.made(transport)
            connections.enter(transport, ANSWER)
        return before, [transport.unsent for transport in downloads]

    assert _told(story, most=3) == ([100, 100, 100], [0, 0, 100, 100, 100])


def test_of_too_many_sockets_the_oldest_is_closed():
    async def story(connections):
        opened = [Transport(("127.0.0.1", port)) for port in range(4)]
        for transport in opened:
            connections.made(transport)
            connections.enter(transport, SOCKET)
        return [transport.closed for transport in opened]

    assert _told(story, most=3) == [True, False, False, False]


def test_too_many_close_the_oldest_of_those_at_the_same():
    async def story(connections):
        opened = [Transport(("127.0.0.1", port)) for port in range(8)]
        for transport in opened[:2]:
            connections.made(transport)
        connections.enter(opened[0], WORK)
        connections.enter(opened[1], BODY)
        for transport in opened[2:]:
            connections.made(transport)
        return [transport.closed for transport in opened]

    assert _told(story, most=3) == [False, False, True, True, True, False, False, False]


def test_what_is_gone_is_forgotten():
    async def story(connections):
        gone, other = Transport(("127.0.0.1", 1)), Transport(("127.0.0.1", 1))
        connections.made(gone)
        connections.gone(gone)
        connections.enter(gone, HEADER)
        connections.enter(None, HEADER)
        connections.made(other)  # from the same port
        connections.gone(gone)  # said late
        assert connections.of(other.client) is other
        await asyncio.sleep(0.5)
        return gone.closed, other.closed

    assert _told(story) == (False, True)


@pytest.mark.slow
def test_a_new_client_is_answered_whatever_hundreds_of_others_hold_back(tmp_path):
    with Server(tmp_path, descriptors=256) as server:
        _gets_a_page(server)
        with contextlib.ExitStack() as held:
            connections = []
            for _, begin in zip(range(400), itertools.cycle(FLOODS.values()), strict=False):
                connections.append(socket.create_connection(("127.0.0.1", server.port), timeout=20))
                held.enter_context(connections[-1])
                _send(connections[-1], begin)
                time.sleep(0.01)  # a connection that finds the backlog full tries again after a second
            _gets_a_page(server)
            for _ in range(3):
                time.sleep(1)
                for connection in connections:
                    _send(connection, b"x")
                _gets_a_page(server)
    assert server.printed.count("\n") < 10, server.printed
