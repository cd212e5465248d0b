"""The pages without a browser: NiceGUI's simulated user, on one server for the whole session."""

import asyncio
import contextlib
import functools
import os
from unittest import mock

import pytest

from tests.app.monitor.made_runs import make_run


class Pages:
    """The server in this process.

    NiceGUI's own fixtures take imported packages out of ``sys.modules`` afterwards, mixprec among them; and its
    server is one for a process. So there is one, whose :attr:`monitor` each test replaces.
    """

    def __init__(self):
        self.monitor = None
        self._loop = asyncio.new_event_loop()
        self._stack = contextlib.AsyncExitStack()

    def start(self):
        self.run(self._start())

    def stop(self):
        self.run(self._stack.aclose())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def run(self, work):
        """Runs a coroutine in the loop of the server."""
        return self._loop.run_until_complete(work)

    async def _start(self):
        import httpx
        from nicegui import core, ui
        from nicegui.testing.general import prepare_simulation

        from mixprec.app.monitor import pages

        os.environ["NICEGUI_USER_SIMULATION"] = "true"
        self._stack.callback(os.environ.pop, "NICEGUI_USER_SIMULATION", None)
        prepare_simulation()
        with mock.patch("mixprec.app.monitor.log_limit.install"):  # a test is to see all errors, not one of each kind
            pages.add(_Current(self))
        ui.run(storage_secret="of a test")
        await self._stack.enter_async_context(core.app.router.lifespan_context(core.app))
        transport = httpx.ASGITransport(core.app)
        self.client = await self._stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://test")
        )


class _Current:
    """The monitor of the test that runs."""

    def __init__(self, pages):
        self._pages = pages

    def __getattr__(self, name):
        return getattr(self._pages.monitor, name)


@pytest.fixture(scope="session")
def _pages():
    pages = Pages()
    pages.start()
    yield pages
    pages.stop()


class Answers:
    """Stands for the processes: answers what a test has put in :attr:`answers`, and keeps what was asked."""

    def __init__(self):
        self.answers, self.asked = {}, []

    async def run(self, task, arguments, progress=lambda share, text: None):
        self.asked.append((task, arguments))
        progress(0.5, "half of it")
        answer = self.answers[task]
        if isinstance(answer, Exception):
            raise answer
        return answer

    share = run

    def is_shared(self, task, arguments):
        return False

    def stop(self, task, arguments):
        self.asked.append(("stop", arguments))


@pytest.fixture
def results(tmp_path):
    """A folder with two runs."""
    make_run(tmp_path / "results" / "digits" / "a")
    make_run(tmp_path / "results" / "digits" / "b", accuracies=(0.25,))
    return tmp_path / "results"


@pytest.fixture
def browse(_pages, results, caplog):
    """Runs a coroutine function with a simulated user, whose server shows ``results``; errors in logs fail the test."""
    from nicegui import Client
    from nicegui.testing.user import User

    from mixprec.app.monitor.server_state import Monitor

    def browse(story, jobs=None):
        _pages.monitor = Monitor(results, jobs)
        _pages.monitor.tasks = Answers()

        async def told():
            user = User(_pages.client)
            user.should_see = functools.partial(user.should_see, retries=200)  # of 0.1 s: a busy machine is no failure
            try:
                await story(user, _pages.monitor)
            finally:
                for client in list(Client.instances.values()):
                    client.delete()

        _pages.run(told())
        assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []

    return browse
