"""The pages in a real browser: Chromium of the distribution, without a window. It takes the pictures of the docs, too.

``MIXPREC_SCREENSHOTS=docs/monitor .venv/bin/python -m pytest -m "" tests/app/monitor/test_browser.py`` writes them
there.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

from tests.app.monitor.server import ENV, ROOT, TOKEN, Server, train

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WAIT = 120_000  # milliseconds: for processes that import Chainer on a machine that does other work, too
EVIL = "<script>alert(1)<"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two runs of digits, one with a class that is called ``<script>``, and the images."""
    root = tmp_path_factory.mktemp("monitor")
    images, named = root / "images", root / "named"
    subprocess.run([sys.executable, "scripts/make_digits.py", "--out", str(images)], cwd=ROOT, env=ENV, check=True)
    shutil.copytree(images, named)
    for part in ("train", "val"):
        (named / part / "9").rename(named / part / EVIL)
    train(root / "results" / "digits" / "a", images, "training.epochs=8", "log.gradient_histogram=30 iterations")
    train(root / "results" / "digits" / EVIL, named, "training.epochs=2", "optimizer.lr=0.02")
    return root


@pytest.fixture
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=quiet)
        yield chromium
        chromium.close()


@pytest.fixture
def watched(browser):
    """``(open, problems)``: opens the pages; errors, and requests to other hosts, are gathered."""
    problems = []

    def opened(address, **settings):
        page = browser.new_page(**{"viewport": {"width": 1200, "height": 900}, **settings})
        page.on("console", lambda message: message.type == "error" and problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        here = (address, address.replace("http", "ws", 1), "data:", "blob:")
        page.on("request", lambda request: request.url.startswith(here) or problems.append(request.url))
        page.set_default_timeout(WAIT)
        page.goto(f"{address}/?token={TOKEN}")
        return page

    return opened, problems


def _picture(page, name):
    folder = os.environ.get("MIXPREC_SCREENSHOTS")
    if folder:
        page.wait_for_timeout(1000)
        page.screenshot(path=pathlib.Path(folder) / f"{name}.png", full_page=True)


def test_all_pages(results, watched):
    opened, problems = watched
    runs = results / "results" / "digits"
    with Server(results / "results", "--allow-jobs") as server:
        page = opened(server.address)

        page.goto(server.address)
        page.get_by_role("link", name="digits/a", exact=True).wait_for()
        page.get_by_role("link", name=f"digits/{EVIL}").wait_for()
        _picture(page, "runs")
        page.get_by_role("link", name="digits/a", exact=True).click()
        page.locator("canvas").nth(5).wait_for()
        _picture(page, "run")

        # A new point, without a reload.
        log = runs / "a" / "log.jsonl"
        entry = {**json.loads(log.read_text().splitlines()[-1]), "epoch": 9, "validation/main/accuracy": 0.4321}
        begin = time.monotonic()
        log.write_text(f"{log.read_text()}{json.dumps(entry)}\n")
        page.get_by_text("accuracy 0.4321").wait_for()
        print(f"a new point is seen after {time.monotonic() - begin:.1f} s")

        # Two runs are chosen by keyboard, and compared.
        page.goto(server.address)
        page.get_by_role("link", name="digits/a", exact=True).wait_for()
        for box in range(1, 3):
            page.get_by_role("checkbox").nth(box).focus()
            page.keyboard.press("Space")
        page.get_by_role("button", name="Compare").focus()
        page.keyboard.press("Enter")
        page.get_by_text("optimizer.lr").wait_for()
        page.locator("canvas").first.wait_for()
        _picture(page, "compare")

        page.goto(f"{server.address}/before?run=digits/{EVIL}")
        page.get_by_text("90 steps in an epoch").wait_for()
        page.get_by_role("button", name="Augment").click()
        page.get_by_text("as in training").nth(7).wait_for()
        page.get_by_text(EVIL).first.wait_for()
        _picture(page, "before")

        page.goto(f"{server.address}/evaluate?name=digits/a")
        page.get_by_role("button", name="Evaluate").click()
        page.get_by_text("355 images: top-1").wait_for()
        page.locator("canvas").first.wait_for()
        page.get_by_text("largest loss").wait_for()
        _picture(page, "evaluate")
        written = json.loads((runs / "a" / "evaluation-model.json").read_text())
        assert sum(map(sum, written["confusion"])) == 355

        page.goto(f"{server.address}/evaluate?name=digits/{EVIL}")
        page.get_by_role("button", name="Evaluate").click()
        page.get_by_text("355 images: top-1").wait_for()
        page.get_by_text(EVIL).first.wait_for()

        page.goto(f"{server.address}/inside?name=digits/a")
        page.locator("input[type=file]").set_input_files(sorted((results / "images/val/3").iterdir())[0])
        page.get_by_text("Outputs of layers").wait_for()
        top = page.locator("table").first.locator("tbody tr").first
        assert top.locator("td").first.inner_text() == "3"
        assert page.locator("figure img").count() > 10
        _picture(page, "inside")

        for name, content in (("bad.png", b"no image"), ("empty.png", b"")):
            page.goto(f"{server.address}/inside?name=digits/a")
            page.locator("input[type=file]").set_input_files({"name": name, "mimeType": "image/png", "buffer": content})
            page.locator("[role=alert]").wait_for()

        page.goto(f"{server.address}/jobs")
        page.get_by_role("button", name="Start").wait_for()
        assert problems == []
    assert server.process.returncode in (0, 130), server.printed
    assert "Traceback" not in server.printed


def test_a_token(results, browser):
    with Server(results / "results") as server:
        page = browser.new_page()
        page.set_default_timeout(WAIT)
        page.goto(server.address)
        page.get_by_text("printed when it started").wait_for()
        page.goto(f"{server.address}/run?name=digits/a&token={TOKEN}")
        page.locator("canvas").first.wait_for()
        assert page.url == f"{server.address}/run?name=digits/a"

        # A browser that follows the address on a page of another site keeps the new cookie back for one request.
        page = browser.new_page()
        page.set_default_timeout(WAIT)
        page.goto(f"data:text/html,<a href='{server.address}/?token={TOKEN}'>training</a>")
        page.get_by_role("link").click()
        page.get_by_role("link", name="Open the pages").click()
        page.get_by_role("link", name="digits/a", exact=True).wait_for()
