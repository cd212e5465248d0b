"""The pages, a file each; :func:`add` tells NiceGUI their addresses."""

from fastapi import Request
from nicegui import ui

from mixprec.monitor.pages import before, compare, evaluate, frame, inside, jobs, run, runs


def add(monitor):
    """Adds all pages.

    Args:
        monitor: :class:`mixprec.monitor.state.Monitor`.
    """
    frame.prepare()

    @ui.page("/")
    async def _():
        await runs.page(monitor)

    @ui.page("/run")
    async def _(name: str = ""):
        await run.page(monitor, name)

    @ui.page("/compare")
    async def _(request: Request):
        await compare.page(monitor, request.query_params.getlist("name"))

    @ui.page("/before")
    async def _(request: Request):
        await before.page(monitor, request.query_params.get("run", ""))

    @ui.page("/evaluate")
    async def _(name: str = ""):
        await evaluate.page(monitor, name)

    @ui.page("/inside")
    async def _(name: str = ""):
        await inside.page(monitor, name)

    @ui.page("/jobs")
    async def _():
        await jobs.page(monitor)
