"""``mixprec monitor RESULTS`` offers the pages to a browser."""

import asyncio
import contextlib
import os
import signal
import socket

from mixprec.app.commands.command_line import failed, not_installed, one_line, parser_of
from mixprec.app.monitor import access_token
from mixprec.app.monitor.access import Access, Guard
from mixprec.app.monitor.connections import Connections
from mixprec.base import standard_streams, working_folder
from mixprec.base.announcements import announce
from mixprec.base.messages import OneLineError, reworded

_HOST = "127.0.0.1"  # this machine only; other machines come through a tunnel


class ServerError(OneLineError):
    """The pages cannot be offered in this way; the message is one line and says what would be right."""


def main(argv):
    """Runs the command until it is ended by Ctrl-C or SIGTERM.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        int: exit code: 0; 2 for bad input, with one line on standard error.

    Raises:
        SystemExit: SIGTERM or SIGHUP has ended it, with exit code 143.
    """
    parser = parser_of("monitor", "Shows runs in a browser.")
    parser.add_path("results", "RESULTS", "folder with the results of runs")
    parser.add_argument("--port", metavar="N", type=int, default=8080, help="port of this machine; default: 8080")
    parser.add_argument("--allow-jobs", action="store_true", help="let users with the token start and stop runs")
    arguments = parser.parse_args(argv)
    try:
        _serve(arguments)
    except OneLineError as error:
        return failed(error)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("mixprec"):
            raise
        return not_installed(error, "monitor")
    return 0


def _serve(arguments):
    given = access_token.take_given(os.environ)
    if not os.path.isdir(arguments.results):
        raise ServerError(f"{arguments.results}: no such folder; wanted: a folder with results of runs")
    _check_port(arguments.port)

    if working_folder.path() is None:  # NiceGUI asks where it is
        os.chdir(arguments.results)
    from nicegui import app, ui

    from mixprec.app.monitor import pages
    from mixprec.app.monitor.jobs import Jobs
    from mixprec.app.monitor.server_state import Monitor

    monitor = Monitor(arguments.results, Jobs(arguments.results) if arguments.allow_jobs else None)
    token, connections = given or access_token.draw(), Connections()
    app.on_startup(lambda: _guard(app, Access(app.middleware_stack, Guard(token), connections)))
    app.on_startup(lambda: asyncio.to_thread(monitor.runs.refresh))  # the first time takes seconds, of 2,000 runs
    app.on_shutdown(monitor.tasks.end)
    pages.add(monitor)
    _check_port(arguments.port)  # again, as the imports took seconds: the file of a server that has come first stays
    with _ended_by_signals(), contextlib.ExitStack() as stack:
        text = f"results of {one_line(monitor.runs.root)} at http://{_HOST}:{arguments.port}/?token={token}"
        if given is None:
            text += _keep(token, arguments.port, stack)
        stack.enter_context(standard_streams.view("the pages are served all the same"))
        ui.run(
            host=_HOST,
            port=arguments.port,
            title="mixprec monitor",
            favicon="data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg'/>",
            dark=None,
            show=False,
            reload=False,
            tailwind=False,
            show_welcome_message=False,
            binding_refresh_interval=None,
            proxy_headers=False,  # or a header of a request decides whose connection it is
            # Not before the port is taken: another account could take it first, and have the address opened there.
            callback_notify=_once(lambda: print(f"{text}\n(Ctrl-C ends it)", flush=True)),
            uvicorn_logging_level="error",  # a warning is a line of log for each bad request of any account
            **connections.settings(),
        )


def _guard(application, access):
    """Puts a middleware outside of NiceGUI's own, which has browsers keep each answer, refusals as well, for a year."""
    application.middleware_stack = access


def _once(function):
    """Returns what uvicorn calls when it serves, and from then on each half minute; it calls a function once."""
    calls = iter([function])

    async def called():
        next(calls, lambda: None)()

    return called


def _keep(token, port, stack):
    """Keeps a token in a file until the end, and returns what to say about it."""
    file = access_token.token_file(port)
    try:
        stack.enter_context(access_token.kept(token, file))
    except access_token.TokenError as error:
        announce("%s; the token is in no file, only in the address", error)
        return ""
    return f"\nthe token is in {one_line(file)}, too"


@contextlib.contextmanager
def _ended_by_signals():
    """In the block SIGTERM raises ``SystemExit``, so that what has been opened is closed, and SIGHUP does the same.

    uvicorn handles SIGTERM itself while it serves, and raises it again afterwards.
    """

    def end(number, frame):
        raise SystemExit(128 + number)

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, end)}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_port(port):
    """Raises :class:`ServerError` if nothing can be bound there, which the server would say at length."""
    if not 0 < port < 1 << 16:
        raise ServerError(f"--port {port}: not a port; allowed: 1 to 65535")
    wording = reworded(lambda reason: ServerError(f"--port {port}: {reason}; give another --port"))
    with wording, socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind((_HOST, port))
