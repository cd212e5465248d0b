"""``python -m mixprec.monitor RESULTS`` offers the pages to a browser."""

import asyncio
import os
import socket
import sys

from mixprec import interruption, variables, working_folder

if __name__ == "__main__":
    interruption.end_quietly()  # before the seconds that the imports below take
    variables.check_for_command()

from mixprec.command_line import Parser, one_line, path
from mixprec.messages import OneLineError
from mixprec.monitor.access import Access, AccessError, Guard, is_local, read_password


def main(argv):
    """Runs the command until it is ended by Ctrl-C or SIGTERM.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        int: exit code: 0; 2 for bad input, with one line on standard error.
    """
    parser = Parser(prog="python -m mixprec.monitor", description="Shows in a browser what training does.")
    parser.add_argument("results", type=path("a folder"), help="folder with the results of runs")
    parser.add_argument("--port", type=int, default=8080, help="default: 8080")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind to; default: 127.0.0.1, this machine only")
    parser.add_argument("--password-file", type=path("a file"), metavar="F", help="its first line is the password")
    parser.add_argument("--allow-jobs", action="store_true", help="pages may start and stop runs")
    arguments = parser.parse_args(argv)
    try:
        _serve(arguments)
    except OneLineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("mixprec"):
            raise
        print(f"error: {error.name} is not installed: pip install -e '.[monitor]'", file=sys.stderr)
        return 2
    return 0


def _serve(arguments):
    if not os.path.isdir(arguments.results):
        raise AccessError(f"{arguments.results}: no such folder; wanted: a folder with results of runs")
    password = None if arguments.password_file is None else read_password(arguments.password_file)
    if password is None and not is_local(arguments.host):
        raise AccessError(f"--host {arguments.host}: others can reach it; give a --password-file, too")
    _check_port(arguments.host, arguments.port)

    if working_folder.path() is None:  # NiceGUI asks where it is
        os.chdir(arguments.results)
    from nicegui import app, ui

    from mixprec.monitor import pages
    from mixprec.monitor.jobs import Jobs
    from mixprec.monitor.server_state import Monitor

    monitor = Monitor(arguments.results, Jobs(arguments.results) if arguments.allow_jobs else None)
    app.add_middleware(Access, guard=Guard(password, arguments.port), host=arguments.host)
    app.on_startup(lambda: asyncio.to_thread(monitor.runs.refresh))  # the first time takes seconds, of 2,000 runs
    app.on_shutdown(monitor.tasks.end)
    pages.add(monitor)
    shown = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    print(f"results of {one_line(monitor.runs.root)} at http://{shown}:{arguments.port}/ (Ctrl-C ends it)", flush=True)
    ui.run(
        host=arguments.host,
        port=arguments.port,
        title="mixprec monitor",
        favicon="data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg'/>",
        dark=None,
        show=False,
        reload=False,
        tailwind=False,
        show_welcome_message=False,
        binding_refresh_interval=None,
        proxy_headers=False,  # or a header of a request decides whose wrong passwords are counted
    )


def _check_port(host, port):
    """Raises :class:`AccessError` if nothing can be bound there, which the server would say at length."""
    if not 0 < port < 1 << 16:
        raise AccessError(f"--port {port}: no port; allowed: 1 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        raise AccessError(f"--host {host} --port {port}: {error.strerror}; give another --port") from error


if __name__ == "__main__":
    sys.exit(interruption.run(lambda: main(sys.argv[1:])))
