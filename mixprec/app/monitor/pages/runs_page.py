"""The table of all runs."""

import asyncio

from nicegui import ui

from mixprec.app.monitor.pages import frame, inputs


def _epoch(row):
    return frame.number(row.epoch, "{:.2f}") + (f" / {row.epochs:g}" if row.epochs is not None else "")


# Name of a column, by which rows are sorted -> its heading, and a function from a row to its text.
_COLUMNS = {
    "name": ("run", lambda row: row.name),
    "state": ("state", lambda row: row.state + frame.reading(row.share)),
    "arch": ("network", lambda row: row.arch),
    "precision": ("precision", lambda row: row.precision),
    "epoch": ("epoch", _epoch),
    "last": ("accuracy", lambda row: frame.number(row.last, "{:.4f}")),
    "best": ("best", lambda row: frame.number(row.best, "{:.4f}")),
    "speed": ("images/s", lambda row: frame.number(row.speed, "{:.1f}")),
    "scale": ("loss scale", lambda row: frame.number(row.scale, "{:g}")),
    "skipped": ("skipped", lambda row: frame.number(row.skipped, "{:g}")),
    "left": ("left", lambda row: frame.span(row.left)),
    "changed": ("age", lambda row: frame.age(row.changed)),
}
_SECONDS = 2.0  # between two reads of the files
_ROWS = 25  # of a page of the table
_LINK = '<q-td :props="props"><a :href="props.row.link">{{ props.row.name }}</a></q-td>'


class Table:
    """The visible rows of any number of runs: the server filters, sorts and pages.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
    """

    def __init__(self, monitor):
        self._monitor, self._sent, self._words = monitor, None, ""
        self._paging = {"sortBy": "changed", "descending": False, "page": 1, "rowsPerPage": _ROWS, "rowsNumber": 0}
        with ui.row().classes("items-center"):
            inputs.Text("filter", placeholder="name, state, network", on_change=self._filter).props(
                "dense clearable"
            ).mark("filter")
            self._compare = ui.button("Compare", on_click=self._go).props("flat dense no-caps").mark("compare")
        described = [
            frame.table_column(name, label, align="left" if name == "name" else "right")
            for name, (label, _) in _COLUMNS.items()
        ]
        self.table = inputs.Table(
            columns=described, rows=[], row_key="name", selection="multiple", pagination=dict(self._paging)
        )
        self.table.props("flat dense").classes("full-width").add_slot("body-cell-name", _LINK)
        self.table.on("request", self._request, ["pagination"])
        self._problem = ui.label().classes("faint")

    async def refresh(self):
        """Shows the current contents of the files."""
        rows = await asyncio.to_thread(self._monitor.runs.refresh, _SECONDS / 2)
        self._show(rows)

    def _show(self, rows):
        words = self._words.lower().split()
        found = [row for row in rows if all(word in f"{row.name} {row.state} {row.arch}".lower() for word in words)]
        key, paging = self._paging["sortBy"] or "changed", self._paging
        known = [row for row in found if getattr(row, key) is not None]
        # The age is shown; it ascends as the time of the last change descends.
        known.sort(key=lambda row: getattr(row, key), reverse=bool(paging["descending"]) != (key == "changed"))
        found = known + [row for row in found if getattr(row, key) is None]
        paging["rowsNumber"] = len(found)
        size = paging["rowsPerPage"] or len(found)
        paging["page"] = max(1, min(paging["page"], -(-len(found) // max(1, size))))
        start = (paging["page"] - 1) * size
        shown = [_cells(row) for row in found[start : start + size]]
        if (shown, paging) != self._sent:
            self._sent = shown, dict(paging)
            self.table.rows = shown
            self.table.pagination = dict(paging)
        self._problem.text = "" if rows else f"There are no runs in {self._monitor.runs.root}."

    def _filter(self, event):
        self._words = event.value or ""
        self._paging["page"] = 1
        self._show(self._monitor.runs.rows)

    def _request(self, event):
        asked = event.args["pagination"]
        self._paging.update(
            sortBy=asked.get("sortBy") if asked.get("sortBy") in _COLUMNS else None,
            descending=bool(asked.get("descending")),
            page=max(1, int(asked.get("page") or 1)),
            rowsPerPage=min(100, int(asked.get("rowsPerPage") or 100)),
        )
        self._show(self._monitor.runs.rows)

    def _go(self):
        names = list(dict.fromkeys(row["name"] for row in self.table.selected))
        if len(names) < 2:
            ui.notify("Select two runs or more.")
        else:
            ui.navigate.to(frame.link_to("/compare", name=names))


def _cells(row):
    return {"link": frame.link_to("/run", name=row.name)} | {name: show(row) for name, (_, show) in _COLUMNS.items()}


async def page(monitor, query):
    """Makes the page; it takes no query."""
    with frame.frame(monitor, "Runs", "/"):
        table = Table(monitor)
    await table.refresh()
    ui.timer(_SECONDS, table.refresh, immediate=False)
