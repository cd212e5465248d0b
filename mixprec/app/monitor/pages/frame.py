"""The layout of the pages, and their shared pieces. All text is shown as text, never as HTML."""

import asyncio
import contextlib
import time
import urllib.parse

from nicegui import ui

from mixprec.app.monitor.pages import inputs

_CSS = """
body { font-family: system-ui, sans-serif; }
.nicegui-content { padding: 12px; max-width: 1500px; margin: 0 auto; align-items: stretch; }
.bar { border-bottom: 1px solid #85858555; margin-bottom: 8px; }
.bar a, .q-td a { color: inherit; }
.bar a { padding: 10px 6px; text-decoration: none; }
.bar a[aria-current="page"] { border-bottom: 2px solid #0072b2; }
.plain { white-space: pre-wrap; overflow-wrap: anywhere; font-family: monospace; font-size: 12px; max-height: 28em;
    overflow-y: auto; }
.faint { opacity: .7; overflow-wrap: anywhere; }
.chart { height: 300px; width: 100%; }
.tall { height: 520px; }
h1 { font-size: 20px; line-height: 1.4; margin: 4px 0; overflow-wrap: anywhere; font-weight: 500; }
h2 { font-size: 16px; line-height: 1.4; margin: 12px 0 4px; font-weight: 500; }
.tile { width: 112px; font-size: 12px; overflow-wrap: anywhere; }
.tile img { width: 96px; height: 96px; object-fit: contain; image-rendering: pixelated; }
.grid img { min-width: 128px; max-width: 100%; image-rendering: pixelated; }
:focus-visible { outline: 2px solid #0072b2; outline-offset: 2px; }
"""
_PAGES = (("/", "Runs"), ("/compare", "Compare"), ("/before", "Before the start"), ("/jobs", "Jobs"))


def prepare():
    """Adds the style that all pages have; called once."""
    ui.add_css(_CSS, shared=True)


@contextlib.contextmanager
def frame(monitor, title, path):
    """The header of a page; elements made inside this context follow below it.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
        title: title of the page.
        path: path of the page, which the header marks.
    """
    # NiceGUI listens for its sub pages, which ours do not have, and accepts any message.
    ui.context.client.layout._event_listeners.clear()
    ui.page_title(f"mixprec: {title}")
    with ui.element("nav").classes("bar row items-center q-gutter-x-md"):
        for target, name in _PAGES:
            if target != "/jobs" or monitor.jobs is not None:
                link = ui.link(name, target)
                if target == path:
                    link.props("aria-current=page")
    with ui.element("main"):
        heading(title, 1)
        yield


def heading(text, level=2):
    """A heading."""
    with ui.element(f"h{level}"):
        return ui.label(text)


def plain(text):
    """A block of text as it is, with its line breaks."""
    return ui.label(text).classes("plain").props("tabindex=0")


def columns():
    """A context whose parts, made in :func:`column`, lie side by side where there is room."""
    return ui.element("div").classes("row q-col-gutter-md")


def column():
    """A part of :func:`columns`, half of it on a wide screen."""
    return ui.element("div").classes("col-12 col-md-6")


def figure(options, *, tall=False):
    """A chart from the options of :mod:`mixprec.app.monitor.charts`."""
    return ui.echart(options).classes("chart tall" if tall else "chart")


def picture(png, caption, *, of_grid=False):
    """A PNG file, as base64, with a caption."""
    with ui.element("figure").classes("grid q-ma-xs" if of_grid else "tile q-ma-xs"):
        image = ui.element("img")
        image.props["src"], image.props["alt"] = f"data:image/png;base64,{png}", caption
        with ui.element("figcaption"):
            ui.label(caption)


def table_column(name, label, **more):
    """Returns the description of a table's column for NiceGUI."""
    return {"name": name, "field": name, "label": label, "sortable": True, **more}


def table(names, rows, *, pagination=10):
    """A table of text.

    Args:
        names: headings of the columns.
        rows: list of tuples; their first elements differ.
        pagination: number of rows of a page.
    """
    described = [table_column(str(at), name, align="left", classes="ellipsis") for at, name in enumerate(names)]
    cells = [{str(index): cell for index, cell in enumerate(row)} for row in rows]
    made = inputs.Table(columns=described, rows=cells, row_key="0", pagination=pagination)
    return made.props("flat dense wrap-cells").classes("full-width")


def link_to(page, **names):
    """Returns the address of a page about runs: ``link_to("/run", name=run.name)``."""
    return f"{page}?{urllib.parse.urlencode(names, doseq=True)}"


def number(value, form="{:.4g}"):
    """Returns a number as text; a dash for ``None``."""
    return "-" if value is None else form.format(value)


def span(seconds):
    """Returns a time in its largest unit: ``"5 min"``; a dash for ``None``."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{max(0, seconds):.0f} s"


def reading(share, name=""):
    """Returns the share of a log that has been read, as the end of a text; nothing if it is complete."""
    return "" if share == 1 else f", reading {name}{' ' if name else ''}{share:.0%}"


def age(changed):
    """Returns the age of a time, as text."""
    return "-" if not changed else span(time.time() - changed)


def listed(monitor, name):
    """Returns a run; if it is not listed (any more), writes that on the page and returns ``None``."""
    run = monitor.runs.get(name)
    if run is None:
        ui.label(f"There is no run {name!r} in {monitor.runs.root}.")
        ui.link("All runs", "/")
    return run


async def with_weights(monitor, name, title, path, make):
    """Makes a page about weights of a run, or a message if there is no such run, or if it has none.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
        name: name of the run.
        title: title of the page.
        path: path of the page.
        make: makes the contents below the heading, from the run and the names of its files of weights.

    Returns:
        The result of ``make``; ``None`` if it was not called.
    """
    await asyncio.to_thread(monitor.runs.refresh, 1.0)
    with frame(monitor, title, path):
        run = listed(monitor, name)
        if run is None:
            return None
        ui.link("The run", link_to("/run", name=name))
        try:
            weights = await asyncio.to_thread(run.weights)
        except OSError as error:
            ui.label(f"{run.folder} cannot be listed now: {error.strerror}").props("role=alert")
            return None
        if weights:
            return make(run, weights)
        ui.label("This run has no weights yet: neither model.npz nor a snapshot.")
        return None
