"""The pages, by a simulated user without a browser."""

import asyncio
import json

from nicegui import ui

from mixprec.app.monitor.jobs import Jobs
from mixprec.app.monitor.task_runner import TaskError
from tests.app.monitor.made_runs import make_run

EVIL = "<script>alert(1)<"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
EVALUATION = {
    "file": "evaluation-model.json", "images": 12, "loss": 0.25, "top1": 0.75, "top5": None, "classes": [EVIL, "b"],
    "confusion": [[5, 1], [2, 4]], "confused": [[1, 0, 2], [0, 1, 1]], "per_class": [[6, 5, 0.2], [6, 4, 0.3]],
    "worst": [[7, "b/7.png", 1, 0, 3.5, 0.01]],
}  # fmt: skip
INSIDE = {
    "top": [[EVIL, 0.9], ["b", 0.1]],
    "layers": [
        {"name": "/conv1", "type": "Convolution2D", "shape": [16, 8, 8], "minimum": -1.0, "maximum": 2.0, "mean": 0.1,
         "std": 0.5, "zeros": 0.0, "fp16_zeros": 0.25, "subnormals": 0.125, "overflows": 0.0, "png": PNG},
    ],
    "weights": [{"name": "/conv1/W", "shape": [16, 3, 3, 3], "png": PNG}],
}  # fmt: skip


def _table(user):
    (table,) = user.find(ui.table).elements
    return table


async def _row(user, count):
    """Waits until the table has so many rows; returns them."""
    for _ in range(100):
        rows = _table(user).rows
        if len(rows) == count:
            return rows
        await asyncio.sleep(0.05)
    raise AssertionError(f"{len(rows)} rows")


def test_the_table_shows_sorts_and_filters_runs(browse):
    async def story(user, monitor):
        await user.open("/")
        rows = {row["name"]: row for row in await _row(user, 2)}
        assert rows["digits/a"]["best"] == "0.9000"
        assert rows["digits/a"]["link"] == "/run?name=digits%2Fa"
        assert rows["digits/b"]["last"] == "0.2500"
        user.find(marker="filter").type("digits/a")
        assert [row["name"] for row in await _row(user, 1)] == ["digits/a"]
        user.find(marker="filter").clear()
        for descending, first in ((True, "digits/a"), (False, "digits/b")):
            paging = {"sortBy": "best", "descending": descending, "page": 1, "rowsPerPage": 10}
            user.find(ui.table).trigger("request", {"pagination": paging})
            assert (await _row(user, 2))[0]["name"] == first

    browse(story)


def test_the_table_is_cut_into_pages_by_the_server(browse, results):
    for number in range(40):
        make_run(results / "many" / f"{number:02}", accuracies=(number / 100,))

    async def story(user, monitor):
        await user.open("/")
        await _row(user, 25)
        assert _table(user).pagination["rowsNumber"] == 42
        paging = {"sortBy": "last", "descending": False, "page": 99, "rowsPerPage": 25}
        user.find(ui.table).trigger("request", {"pagination": paging})
        assert [row["last"] for row in await _row(user, 17)][-1] == "0.8000"

    browse(story)


def test_a_new_run_and_a_new_entry_appear_and_a_run_that_is_removed_goes(browse, results):
    async def story(user, monitor):
        await user.open("/")
        await _row(user, 2)
        make_run(results / "c")
        await _row(user, 3)
        with open(results / "c" / "log.jsonl", "a") as file:
            file.write(json.dumps({"iteration": 99, "epoch": 9, "validation/main/accuracy": 0.9876}) + "\n")
        for _ in range(100):
            if any(row["last"] == "0.9876" for row in _table(user).rows):
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError(_table(user).rows)
        for path in (results / "c").iterdir():
            path.unlink()
        (results / "c").rmdir()
        await _row(user, 2)

    browse(story)


def test_the_curves_of_a_run_follow_its_log(browse, results):
    async def story(user, monitor):
        await user.open("/run?name=digits/a")
        await user.should_see("accuracy 0.8000")
        charts = {chart.options["title"]["text"]: chart for chart in user.find(ui.echart).elements}
        assert set(charts) >= {"loss", "accuracy", "learning rate", "loss scale", "gradient norm", "images/s"}
        (validation,) = charts["accuracy"].options["series"]
        assert validation["data"] == [[1, 0.5], [2, 0.9], [3, 0.8]]
        with open(results / "digits" / "a" / "log.jsonl", "a") as file:
            file.write(json.dumps({"iteration": 40, "epoch": 4, "validation/main/accuracy": 0.95}) + "\n")
        await user.should_see("accuracy 0.9500")
        assert charts["accuracy"].options["series"][0]["data"][-1] == [4, 0.95]
        (results / "digits" / "a" / "log.jsonl").unlink()
        await user.should_not_see("accuracy 0.9500", retries=60)

    browse(story)


def test_gradients_settings_and_reports_of_a_run(browse, results):
    folder = results / "digits" / "a"
    entry = {"iteration": 10, "epoch": 1.0, "loss_scale": 8.0, "lowest": -30, "binades": [1, 2], "layers": {}}
    (folder / "gradients.jsonl").write_text(f"{json.dumps(entry)}\nnot JSON\n")
    (folder / "conversion.txt").write_text(f"{EVIL} in a report")
    (results / "digits" / "b" / "config.yaml").write_text("training:\n  epochs: 7\n")

    async def story(user, monitor):
        await user.open("/run?name=digits/a")
        await user.should_not_see(f"{EVIL} in a report")
        (report,) = [each for each in user.find(ui.expansion).elements if each.text == "conversion"]
        report.open()
        await user.should_see(f"{EVIL} in a report")
        report.close()
        await user.should_not_see(f"{EVIL} in a report")
        for _ in range(60):
            titles = [chart.options["title"]["text"] for chart in user.find(ui.echart).elements]
            if "gradients times the loss scale: share of each magnitude" in titles:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError(titles)
        (select,) = user.find(ui.select).elements
        select.value = "digits/b"
        rows = [list(row.values()) for row in _table(user).rows]
        assert ["training.epochs", "10", "7"] in rows

    browse(story)


def test_runs_are_compared(browse, results):
    (results / "digits" / "b" / "config.yaml").write_text("model:\n  arch: resnet50\n")

    async def story(user, monitor):
        await user.open("/compare?name=digits/a&name=digits/b&name=none&name=..")
        for _ in range(60):
            charts = list(user.find(ui.echart).elements)
            if charts:
                break
            await asyncio.sleep(0.05)
        names = [series["name"] for series in charts[0].options["series"]]
        assert names == ["digits/a", "digits/b"]
        assert charts[0].options["series"][1]["data"] == [[1, 0.25]]
        assert ["model.arch", "resnet8", "resnet50"] in [list(row.values()) for row in _table(user).rows]

    browse(story)


def test_before_the_start(browse, results):
    count = {"images": 3, "classes": [[EVIL, 2], ["b", 1]], "skipped": [["x.png", "no image"]], "skipped_count": 1}
    answers = {
        "schedule": {"points": [[0.0, 0, 0.1], [1.0, 9, 0.0]], "text": "0.1 at its peak", "steps_per_epoch": 9},
        "data": {"train": count, "val": None, "problem": None, "examples": [{"class": EVIL, "images": [{"png": PNG}]}]},
        "augment": {"original": PNG, "name": "x.png", "variants": [PNG, PNG]},
    }

    async def story(user, monitor):
        monitor.tasks.answers = answers
        await user.open("/before?run=digits/a")
        await user.should_see("0.1 at its peak; 9 steps in an epoch")
        await user.should_see("3 images in training")
        await user.should_see("1 files are left out")
        user.find(marker="augment").click()
        await user.should_see("as in training")
        task, asked = monitor.tasks.asked[-1]
        assert (task, asked["index"], asked["count"]) == ("augment", 0, 8)
        assert asked["config"] == str(results.resolve() / "digits/a/config.yaml")
        assert asked["overrides"] == []

    browse(story)


def test_weights_are_evaluated(browse, results):
    (results / "digits" / "a" / "model.npz").touch()

    async def story(user, monitor):
        images = {"images": [{"index": 7, "name": "b/7.png", "label": 1, "class": "b", "png": PNG}]}
        monitor.tasks.answers = {"evaluate": EVALUATION, "images": images}
        await user.open("/evaluate?name=digits/a")
        user.find(marker="evaluate").click()
        await asyncio.sleep(0.4)  # by then the page has looked for an earlier evaluation, which must not replace this
        await user.should_see("12 images: top-1 0.7500, loss 0.25")
        await user.should_see(f"b, taken for {EVIL}, loss 3.5")
        (chart,) = user.find(ui.echart).elements
        assert chart.options["series"][0]["data"] == [[0, 0, 5], [1, 0, 1], [0, 1, 2], [1, 1, 4]]
        task, asked = monitor.tasks.asked[0]
        assert (task, asked["weights"]) == ("evaluate", "model.npz")

    browse(story)


def test_an_earlier_evaluation_is_shown_and_a_damaged_one_is_not(browse, results):
    folder = results / "digits" / "a"
    (folder / "model.npz").touch()
    (folder / "evaluation-model.json").write_text(json.dumps(EVALUATION))

    async def story(user, monitor):
        monitor.tasks.answers = {"images": {"images": []}}
        monitor.tasks.answers["images"] = TaskError("the images are gone")
        await user.open("/evaluate?name=digits/a")
        await user.should_see("12 images: top-1 0.7500, loss 0.25")
        await user.should_see("the images are gone")
        (folder / "evaluation-model.json").write_text('{"classes": 3}')
        await user.open("/evaluate?name=digits/a")
        await asyncio.sleep(0.5)
        await user.should_not_see("12 images")

    browse(story)


def test_what_a_network_sees_in_an_upload(browse, results):
    (results / "digits" / "a" / "model.npz").touch()

    async def story(user, monitor):
        from nicegui.elements.upload_files import SmallFileUpload

        monitor.tasks.answers = {"inside": INSIDE}
        await user.open("/inside?name=digits/a")
        (upload,) = user.find(ui.upload).elements
        await upload.handle_uploads([SmallFileUpload("../../evil.png", "image/png", b"bytes of an image")])
        await user.should_see("/conv1, Convolution2D 16x8x8")
        await user.should_see("/conv1/W 16x3x3x3")
        rows = [list(row.values()) for table in user.find(ui.table).elements for row in table.rows]
        assert [EVIL, "0.9000"] in rows
        assert any("25.000%" in row and "12.500%" in row for row in rows)
        task, asked = monitor.tasks.asked[0]
        assert (task, asked["weights"], asked["image"]) == ("inside", "model.npz", "Ynl0ZXMgb2YgYW4gaW1hZ2U=")

    browse(story)


def test_a_run_without_weights_says_so(browse):
    async def story(user, monitor):
        for page in ("evaluate", "inside"):
            await user.open(f"/{page}?name=digits/a")
            await user.should_see("This run has no weights yet")

    browse(story)


def test_names_that_are_not_listed_lead_nowhere(browse):
    async def story(user, monitor):
        for page in ("run", "evaluate", "inside"):
            for name in ("none", "../results/digits/a", "/etc", ""):
                await user.open(f"/{page}?name={name}")
                await user.should_see("There is no run")

    browse(story)


def test_names_are_text_and_never_html(browse, results):
    make_run(results / EVIL)

    async def story(user, monitor):
        await user.open("/")
        await _row(user, 3)
        await user.open(f"/run?name={EVIL}")
        await user.should_see(EVIL)
        html = (await user.http_client.get(f"/run?name={EVIL}")).text
        assert "<script>alert" not in html

    browse(story)


def test_jobs_are_not_there_unless_they_are_allowed(browse, results):
    async def story(user, monitor):
        await user.open("/jobs")
        await user.should_see("This server is read-only")

    browse(story)


def test_a_job_is_started_and_a_wrong_one_is_refused(browse, results, monkeypatch):
    started = []
    monkeypatch.setattr(Jobs, "start", lambda self, *arguments: started.append(arguments))

    async def story(user, monitor):
        await user.open("/jobs")
        user.find(marker="start").click()
        await user.should_see("choose a config")
        (config, *_) = [element for element in user.find(ui.select).elements if "config" in element.props["label"]]
        config.value = "clone digits/a"
        user.find(marker="start").click()
        for _ in range(200):
            if started:
                break
            await asyncio.sleep(0.05)
        ((path, name, overrides),) = started
        assert path == str(results.resolve() / "digits/a/config.yaml")
        assert name.startswith("job/")
        assert overrides == []
        user.find(marker="stop").click()
        await user.should_see("choose a run")

    browse(story, Jobs(results))
