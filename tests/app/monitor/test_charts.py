"""The options of charts."""

import json
import math

from mixprec.app.monitor import charts
from mixprec.app.monitor.log import Log


def _log(tmp_path, entries):
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    log = Log(tmp_path / "log.jsonl")
    log.refresh()
    return log


def test_curves_of_a_run(tmp_path):
    losses = [2.0, None]
    both = enumerate(losses, 1)
    log = _log(
        tmp_path, [{"iteration": n, "epoch": n, "main/loss": loss, "skipped": 0, "my/f1": n} for n, loss in both]
    )
    assert charts.curves(log, "loss", "iteration") == {"training": [[1, 2.0], [2, None]]}
    assert charts.curves(log, "accuracy", "epoch") == {}
    assert charts.curves(log, charts.OTHERS, "epoch") == {"my/f1": [[1, 1], [2, 2]]}


def test_skipped_steps_are_marked_where_their_number_rises(tmp_path):
    skipped = [0, 0, 1, 1, 3]
    log = _log(tmp_path, [{"epoch": n, "loss_scale": 2.0**n, "skipped": count} for n, count in enumerate(skipped)])
    options = charts.curve_chart(log, "loss scale", "epoch")
    assert (options["yAxis"]["type"], options["yAxis"]["logBase"]) == ("log", 2)
    scale, marks = options["series"]
    assert scale["data"] == [[n, 2.0**n] for n in range(5)]
    assert (marks["type"], marks["data"]) == ("scatter", [[2, 4], [4, 16]])


def test_no_logarithm_of_zero_is_drawn(tmp_path):
    log = _log(tmp_path, [{"epoch": 1, "gradient_norm": 0}, {"epoch": 2, "gradient_norm": 3}])
    assert charts.curves(log, "gradient norm", "epoch") == {"gradient norm": [[1, None], [2, 3]]}


def test_gradients_over_time_as_fp16_has_them():
    entries = [
        {"iteration": 10, "loss_scale": 2.0**10, "lowest": -40, "binades": [10, 0, 90]},
        {"iteration": 20, "loss_scale": 2.0**11, "lowest": -30, "binades": [100]},
    ]
    options = charts.gradients(entries)
    rows = options["yAxis"]["data"]
    cells = [(column, rows[row], share) for column, row, share in options["series"][0]["data"]]
    assert cells == [(0, "2^-30", -1.0), (0, "2^-28", round(math.log10(0.9), 2)), (1, "2^-19", 0.0)]
    zero, subnormal, overflow = options["series"][0]["markArea"]["data"]
    assert [part["yAxis"] for part in zero] == [0, rows.index("2^-25")]
    assert [part["yAxis"] for part in subnormal] == [rows.index("2^-25"), rows.index("2^-14")]
    assert overflow[0]["yAxis"] == rows.index("2^16")
    assert charts.gradients([]) is None


def test_very_many_entries_of_gradients_are_thinned_out():
    entry = {"loss_scale": 1.0, "lowest": 0, "binades": [1]}
    options = charts.gradients([{**entry, "iteration": number} for number in range(5000)])
    assert len(options["xAxis"]["data"]) <= 200


def test_a_confusion_matrix():
    options = charts.confusion([[5, 1], [0, 7]], ["<script>", "b"])
    assert options["series"][0]["data"] == [[0, 0, 5], [1, 0, 1], [1, 1, 7]]
    assert options["visualMap"]["max"] == 7
    assert charts.confusion([], [])["visualMap"]["max"] == 1


def test_tooltips_are_never_html(tmp_path):
    log = _log(tmp_path, [{"epoch": 1, "main/loss": 1}])
    for options in (charts.curve_chart(log, "loss", "epoch"), charts.confusion([[1]], ["a"])):
        assert options["tooltip"]["renderMode"] == "richText"
        json.dumps(options, allow_nan=False)
