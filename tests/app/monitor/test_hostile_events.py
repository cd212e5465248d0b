"""What a page does with messages that no browser sends: nothing, and it goes on."""

import asyncio
import json
import logging
import math

import pytest
from nicegui import ui

from mixprec.app.monitor.access import Access, Guard
from mixprec.app.monitor.connections import Connections
from mixprec.app.monitor.jobs import Jobs
from mixprec.app.monitor.log_limit import Once
from mixprec.app.monitor.pages import frame
from tests.app.monitor.test_pages import EVALUATION, INSIDE, PNG
from tests.cases import first

ODD = [
    None, True, False, 0, 1, -1, 7, 10**9 + 1, 10**400, 1.5, -1e308, math.nan, math.inf, "", "0", "nan", "-5", "1e400",
    "x" * 200_000, [], [1], ["a"], [None], [[]], {}, {"value": -1}, {"value": 10**6}, {"value": True}, {"value": [1]},
    {"value": None}, {"value": "x"}, [{"value": -1}], [{"value": {}}], [{"label": "x"}], {"pagination": None},
    {"pagination": []}, {"pagination": {"page": "x"}}, {"pagination": {"page": -3, "rowsPerPage": -5}},
    {"pagination": {"page": math.nan, "rowsPerPage": 10**30}}, {"pagination": {"sortBy": [1]}},
    {"pagination": {"sortBy": {}, "descending": {}}}, {"added": True}, {"added": True, "rows": 5, "keys": 5},
    {"added": True, "rows": [1], "keys": [[]]}, {"added": True, "rows": [{}], "keys": [{}]},
    {"added": False, "rows": [], "keys": None}, {"rowsPerPage": "x"}, {"page": []},
]  # fmt: skip
COUNT = {"images": 3, "classes": [["a", 2], ["b", 1]], "skipped": [["x.png", "no image"]], "skipped_count": 1}
ANSWERS = {
    "schedule": {"points": [[0.0, 0, 0.1], [1.0, 9, 0.0]], "text": "a rate", "steps_per_epoch": 9},
    "data": {"train": COUNT, "val": None, "problem": None, "examples": [{"class": "a", "images": [{"png": PNG}]}]},
    "augment": {"original": PNG, "name": "x.png", "variants": [PNG, PNG]},
    "inside": INSIDE,
    "evaluate": EVALUATION,
    "images": {"images": [{"png": PNG}]},
}
PAGES = {
    "/": "Compare", "/run?name=digits/a": "accuracy 0.8000", "/compare?name=digits/a&name=digits/b": "runs, 12 at most",
    "/before?run=digits/a": "a rate; 9 steps in an epoch", "/evaluate?name=digits/a": "weights",
    "/inside?name=digits/a": "weights", "/jobs": "Jobs of this server",
}  # fmt: skip


def _forge(client, odd):
    """Sends odd arguments to all listeners, as a forged message would; returns how many there are."""
    count = 0
    for element in list(client.elements.values()):
        for listener in list(element._event_listeners.values()):
            if listener.type != "click" and not element.is_deleted:
                args = json.loads(json.dumps(odd))
                element._handle_event({"listener_id": listener.id, "args": args})
                count += 1
    return count


@pytest.mark.parametrize("path", first(2, PAGES))
def test_a_page_goes_on_after_odd_events_of_all_kinds(browse, results, path):
    (results / "digits" / "a" / "model.npz").write_bytes(b"")
    (results / "digits" / "a" / "conversion.txt").write_text("a report")

    async def story(user, monitor):
        monitor.tasks.answers = ANSWERS
        await user.open(path)
        await user.should_see(PAGES[path])
        for odd in ODD:
            count = _forge(user.client, odd)
            await asyncio.sleep(0)
        assert count >= 1
        await asyncio.sleep(2.5)  # all timers
        await user.should_see(PAGES[path])

    browse(story, Jobs(results))


def test_rows_that_are_selected_are_those_of_the_server(browse, monkeypatch):
    async def story(user, monitor):
        await user.open("/")
        await user.should_see("Compare")
        (table,) = user.find(ui.table).elements
        for _ in range(100):
            if table.rows:
                break
            await asyncio.sleep(0.05)
        forged = {"name": "digits/a", "extra": "x" * 1000}
        for _ in range(1100):
            user.find(ui.table).trigger("selection", {"added": True, "rows": [forged, {"a": 1}], "keys": ["digits/a"]})
        assert {row["name"] for row in table.selected} == {"digits/a"}
        assert "extra" not in table.selected[0]
        user.find(ui.table).trigger("selection", {"added": True, "rows": [], "keys": ["digits/b"]})
        went = []
        monkeypatch.setattr(user.navigate, "to", went.append)
        user.find(marker="compare").click()
        assert went == [frame.link_to("/compare", name=["digits/a", "digits/b"])]

    browse(story)


@pytest.fixture
def once():
    """``(logger, printed)``: a logger with the filter, and what it has printed."""
    printed, logger = [], logging.getLogger("mixprec.test_once")
    handler = logging.Handler()
    handler.emit = lambda record: printed.append(handler.format(record))
    logger.addHandler(handler)
    limit = Once()
    logger.addFilter(limit)
    logger.propagate = False
    yield logger, printed
    logger.removeHandler(handler)
    logger.removeFilter(limit)


@pytest.mark.slow
@pytest.mark.parametrize("is_ours", [False, True])
def test_an_error_that_comes_again_and_again_is_printed_once(once, is_ours):
    logger, printed = once
    for number in range(100):
        evil = f"\x1b{number}\n" * 10_000
        try:
            frame.number(5, "{" + evil + "}") if is_ours else int(evil)
        except (KeyError, ValueError):
            logger.exception("an error with %s", evil)
    assert len(printed) == 1
    assert len(printed[0]) < 3000
    assert "\x1b" not in printed[0]
    assert ("in number\n" in printed[0]) == is_ours
    assert printed[0].count("\n") == 0 or is_ours


def test_an_error_of_other_code_has_no_traceback_for_the_middleware_that_it_passes(once):
    logger, printed = once

    async def fails(scope, receive, send):
        raise KeyError("REQUEST_METHOD")

    scope = {"type": "websocket", "headers": [(b"host", b"localhost"), (b"authorization", b"Bearer a-token")]}
    with pytest.raises(KeyError) as raised:
        asyncio.run(Access(fails, Guard("a-token"), Connections())(scope, None, None))
    logger.error("an error", exc_info=raised.value)
    logger.warning("a page that is gone", stack_info=True)
    assert [line.count("\n") for line in printed] == [0, 0]


def test_messages_of_different_places_are_printed(once):
    logger, printed = once
    for number in range(3):
        logger.warning("first %d", number)
        logger.error("second %d", number)
        logger.debug("of no interest")
    assert [line.partition(" (more")[0] for line in printed] == ["first 0", "second 0"]
