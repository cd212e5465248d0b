"""The pages, a file each; :func:`add` tells NiceGUI their addresses."""

from fastapi import Request
from nicegui import ui

from mixprec.monitor import log_limit
from mixprec.monitor.pages import (
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

_SECONDS = 60  # until a page must be there: on a slow disk the listing of many runs takes a while


def add(monitor):
    """Adds all pages.

    Args:
        monitor: :class:`mixprec.monitor.server_state.Monitor`.
    """
    frame.prepare()
    clients.prepare()
    log_limit.install()

    @ui.page("/", response_timeout=_SECONDS)
    async def _():
        await runs_page.page(monitor)

    @ui.page("/run", response_timeout=_SECONDS)
    async def _(name: str = ""):
        await run_page.page(monitor, name)

    @ui.page("/compare", response_timeout=_SECONDS)
    async def _(request: Request):
        await compare_page.page(monitor, request.query_params.getlist("name"))

    @ui.page("/before", response_timeout=_SECONDS)
    async def _(request: Request):
        await before_page.page(monitor, request.query_params.get("run", ""))

    @ui.page("/evaluate", response_timeout=_SECONDS)
    async def _(name: str = ""):
        await evaluate_page.page(monitor, name)

    @ui.page("/inside", response_timeout=_SECONDS)
    async def _(name: str = ""):
        await inside_page.page(monitor, name)

    @ui.page("/jobs", response_timeout=_SECONDS)
    async def _():
        await jobs_page.page(monitor)
