"""The pages, a file each; :func:`add` registers them with NiceGUI.

Reading order. ``frame`` has the layout and shared pieces, ``inputs`` the checked inputs, ``working`` waits for work of
other processes, ``clients`` limits pages without a browser. The pages: ``runs_page`` (the table), ``run_page``,
``compare_page``, ``evaluate_page``, ``inside_page``, ``before_page``, ``jobs_page``.
"""

from fastapi import Request
from nicegui import ui

from mixprec.app.monitor import log_limit
from mixprec.app.monitor.pages import (
    before_page,
    clients,
    compare_page,
    evaluate_page,
    frame,
    inside_page,
    jobs_page,
    run_page,
    runs_page,
)

_PAGES = {
    "/": runs_page,
    "/run": run_page,
    "/compare": compare_page,
    "/before": before_page,
    "/evaluate": evaluate_page,
    "/inside": inside_page,
    "/jobs": jobs_page,
}
_SECONDS = 60  # limit for building a page: on a slow disk the listing of many runs takes a while


def add(monitor):
    """Adds all pages.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
    """
    frame.prepare()
    clients.prepare()
    log_limit.install()
    for path, module in _PAGES.items():
        _offer(path, module.page, monitor)


def _offer(path, page, monitor):
    """Registers the function ``page`` of a module for a path; it gets the state and the query of the address."""

    @ui.page(path, response_timeout=_SECONDS)
    async def _(request: Request):
        await page(monitor, request.query_params)
