"""The pages, a file each; :func:`add` tells NiceGUI their addresses."""

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
_SECONDS = 60  # until a page must be there: on a slow disk the listing of many runs takes a while


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
    """Has the function ``page`` of a module make the page at a path, from the state and the query of its address."""

    @ui.page(path, response_timeout=_SECONDS)
    async def _(request: Request):
        await page(monitor, request.query_params)
