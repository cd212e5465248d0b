"""A limit for pages that were sent but have no connected browser."""

import weakref

from nicegui import Client, app

_WAITING = 64  # pages; a browser connects within a second, and reloads the page if it was too late


class FewWaiting:
    """The middleware: before each request it removes the oldest unconnected pages, if there are many.

    NiceGUI keeps each for a minute, so that a program that only loads pages could fill the memory.

    Args:
        app: ASGI application behind it.
    """

    def __init__(self, app):
        self._app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            for client in _waiting()[:-_WAITING]:
                client.delete()
        await self._app(scope, receive, send)


_connected = weakref.WeakSet()


def prepare():
    """Adds the middleware to the server; called once."""
    app.on_connect(_connected.add)
    app.add_middleware(FewWaiting)


def _waiting():
    """Returns the pages that never had a browser, in the order in which they were made."""
    return [client for client in Client.instances.values() if client not in _connected]
