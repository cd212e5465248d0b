"""The record of the bars, the page of results and its charts: they say what was measured, and no more."""

import dataclasses
import json
import re
import shutil

import pytest

from benchmarks.bars import bars_run, chart, page, record, result_tables
from benchmarks.bars.record import RecordError
from benchmarks.bars.row_statistics import Row
from mixprec.app.parts import environment
from tests import ROOT
from tests.benchmarks import bars_record as examples

pytestmark = pytest.mark.slow

# The record


def test_what_is_written_can_be_read(tmp_path, monkeypatch):
    found = [environment.Component(*text.split("|")) for text in ("CUDA driver|ok|13.0", "GPU|ok")]
    monkeypatch.setattr(environment, "components", lambda: found)
    rows = [Row(4, "a", "plain", (8.0, 10.0), 9.0, 8.0, 10.0, 450.0), Row(4, "b", "peer", reason="needs a GPU")]
    settings = bars_run.Settings("resnet18", [4], 64, 2, 3, 60.0, 1.5, None, ["plain*"])
    written = record.as_json(rows, settings, examples.MADE, examples.GPU_DEVICE, "gpu", complete=True)
    (tmp_path / "a.json").write_text(json.dumps(written))
    read = record.read(tmp_path / "a.json")
    assert read.keys() == examples.gpu().keys()
    assert read["rows"] == [{**dataclasses.asdict(rows[0]), "blocks": [8.0, 10.0]}, dataclasses.asdict(rows[1])]
    assert read["versions"] == {"CUDA driver": "13.0"}
    assert read["settings"] == dataclasses.asdict(settings)
    assert examples.MADE.items() <= read.items()


NO_RECORDS = [
    (None, "No such file or directory"),
    (b"{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    (b'{"a": "\xe4"}', "not JSON: 'utf-8' codec can't decode byte 0xe4 in position 7"),
    (b"[" * 100_000, "not JSON: "),
    (b"[]", "no record with the format 'mixprec bars 1' and all of its keys"),
    (b'{"format": "mixprec bars 1"}', "no record with the format 'mixprec bars 1' and all of its keys"),
]


@pytest.mark.parametrize(("content", "message"), NO_RECORDS)
def test_a_file_that_is_no_record_leaves_everything_as_it_was(content, message, tmp_path):
    path, out = tmp_path / "x-bars.json", tmp_path / "results.md"
    out.write_text("old")
    (tmp_path / "a-bars.json").write_text(json.dumps(examples.cpu()))
    if content is None:
        path.symlink_to("nowhere")
    else:
        path.write_bytes(content)
    with pytest.raises(RecordError) as caught:
        page.write(tmp_path, out)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)
    assert (out.read_text(), list(tmp_path.glob("*.png"))) == ("old", [])


# Tables


def test_table_of_the_console():
    assert result_tables.console(examples.cpu(), 8).splitlines() == [
        "batch 8",
        "  row                           images/s    min-max  ms a step  ratio  peak MB",
        "  plain Chainer FP32                20.0  19.8-20.4     400.00   1.00    1,000",
        "  plain Chainer FP32, cuDNN" + 53 * " " + "not measured: needs a GPU",
        "  fp16.yaml                         16.0  15.8-16.3     500.00   0.80    1,000",
        "  dali.yaml                         16.0  15.8-16.3     500.00   0.80    1,000  the same step as fp16.yaml",
        "  static_graph.yaml, float32        40.0  39.6-40.8     200.00   2.00    1,000",
        "  static_graph.yaml, no fusion      50.0  49.5-51.0     160.00   2.50    1,000",
        "  PyTorch FP32                      70.0  69.3-71.4     114.29   3.50    1,000",
        "  PyTorch FP32, channels_last       85.5  84.6-87.2      93.57   4.28    1,000",
        "  static_graph.yaml, float32 over PyTorch FP32, channels_last: 0.47",
    ]
    assert result_tables.console(examples.gpu(), 32).splitlines() == [
        "batch 32",
        "  row                images/s      min-max  ms a step  host ms  launches  syncs  peak MB",
        "  static_graph.yaml     1,024  1,014-1,044      31.25     0.25     1,008      0   25,600",
    ]


ROW_NAMES = [
    ("fp32.yaml", "config", True),
    ("static_graph.yaml, no graph", "ablation", False),
    ("static_graph.yaml, no autotuning", "ablation", True),
    ("plain Chainer FP32", "plain", False),
]


@pytest.mark.parametrize(("name", "group", "is_ours"), ROW_NAMES)
def test_our_best_row_has_nothing_switched_off(name, group, is_ours):
    peer = examples.measured(8, "PyTorch", "peer", 4.0)
    rows = [examples.measured(8, name, group, 8.0), peer, examples.failed(8, "static_graph.yaml", "config", "no")]
    assert result_tables.comparison(rows) == ([f"{name} over PyTorch: 2.00"] if is_ours else [])


# The page


def _page(*records):
    return page.page({f"../results/{number}-bars.json": found for number, found in enumerate(records)})


def test_page_of_a_gpu_and_a_cpu():
    text = _page(examples.gpu(), examples.cpu(complete=False, cpu="a\n# <CPU>"))
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("## ")] == [
        "## NVIDIA H200: resnet50, 224x224 pixels, batch 32",
        "## NVIDIA H200: resnet50, 224x224 pixels, batch 256",
        r"## a # \<CPU\>, 2 threads: resnet18, 64x64 pixels, batch 8",
    ]
    for line in (
        "2026-11-22, commit 59a7725a0d52: [0-bars.json](../results/0-bars.json)",
        "2026-11-22, commit 59a7725a0d52: [1-bars.json](../results/1-bars.json)",
        "![chart](../results/0-bars.png)",
        "| row | images/s | min-max | ms a step | host ms | launches | syncs | peak MB |",
        "| static_graph.yaml | 8,192 | 8,110-8,356 | 31.25 | 0.25 | 1,008 | 0 | 25,600 |",
        "- static_graph.yaml, no fusion: not measured: block 1 of 5: OutOfMemoryError: 2 GiB",
        "- dali.yaml: the same step as fp16.yaml",
        "static_graph.yaml, float32 over PyTorch FP32, channels_last: 0.47",
        "**The run has not come to its end.**",
    ):
        assert line in lines


def test_text_of_a_record_breaks_no_table():
    rows = [examples.measured(8, "a | b\n*c* <d> `e` [f]", "plain", 1.0, note="g\n\n| h")]
    table = _page(examples.cpu(rows=rows)).splitlines()[-3:]
    assert {len(re.split(r"(?<!\\)\|", line)) for line in table} == {7}
    assert table[-1].startswith(r"| a \| b \*c\* \<d\> \`e\` \[f\] | 1.0 |")


def test_a_run_in_which_all_rows_failed_is_shown():
    text = _page(examples.cpu(rows=[examples.failed(8, "fp16.yaml", "config", "needs a GPU")]))
    assert text.endswith("| row |\n| --- |\n\n- fp16.yaml: not measured: needs a GPU\n")


@pytest.fixture
def drawn(monkeypatch):
    """The files of charts, which are not drawn."""
    drawn = []
    monkeypatch.setattr(chart, "save", lambda path, record: drawn.append(path))
    return drawn


@pytest.fixture
def shown(tmp_path, drawn):
    """Writes records; returns the numbers of those that the page shows, in its order."""

    def shown(*records):
        for number, found in enumerate(records):
            (tmp_path / f"{number}-bars x.json").write_text(json.dumps(found))
        page.write(tmp_path, tmp_path / "results.md")
        links = re.findall(r": \[(\d)-bars%20x.json\]\(\1-bars%20x.json\)", (tmp_path / "results.md").read_text())
        return list(dict.fromkeys(links))

    return shown


def test_of_each_machine_the_newest_run_is_shown_gpus_first(shown, drawn):
    old, new = {"date": "2026-11-22T09:30:00+02:00"}, {"date": "2026-11-22T08:00:00+00:00"}  # 7:30 and 8:00 in UTC
    other = examples.cpu(date="2026-11-22T08:00:01+00:00", cpu="another CPU")
    elsewhere = examples.GPU_DEVICE.replace("GPU 0 of 1", "GPU 3 of 8")
    gpus = examples.gpu(**old), examples.gpu(device=elsewhere, date="2026-11-21T00:00:00+00:00")
    assert shown(examples.cpu(**new), examples.cpu(**old), other, *gpus) == ["3", "2", "0"]
    assert [path.name for path in drawn] == ["3-bars x.png", "2-bars x.png", "0-bars x.png"]


def test_runs_of_other_batch_sizes_and_of_some_rows_are_shown_beside_a_whole_one(shown):
    def of(day, **settings):
        found = examples.cpu(date=f"2026-11-0{day}T00:00:00+00:00")
        found["settings"] |= settings
        return found

    assert shown(of(1), of(2, rows=["fp*"]), of(3, peer=None), of(4)) == ["3", "2", "1"]


def test_the_committed_page_is_made_of_the_committed_records(tmp_path, drawn):
    results, docs = tmp_path / "benchmarks" / "results", tmp_path / "docs"
    for folder in (results, docs):
        folder.mkdir(parents=True)
    for file in (ROOT / "benchmarks" / "results").glob("*.json"):
        shutil.copy(file, results)
    page.write(results, docs / "results.md")
    text = (docs / "results.md").read_text()
    assert text == (ROOT / "docs" / "results.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert all((ROOT / "docs" / link).is_file() for link in links)
    assert {path.name for path in drawn} == {link.rpartition("/")[2] for link in links if link.endswith(".png")}


# The chart


def test_bars_of_the_chart_are_the_rows_that_were_measured():
    figure = chart.figure(examples.gpu())
    assert figure.get_suptitle().endswith(f"training on synthetic data\n{examples.GPU_DEVICE}; 2026-11-22")
    assert [axes.get_title() for axes in figure.axes] == ["batch 32", "batch 256"]
    assert [[bar.get_width() for bar in axes.patches] for axes in figure.axes] == [[1024.0], [8192.0]]
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["static_graph.yaml", "static_graph.yaml, no fusion"]
    assert "a CPU of the tests" in chart.figure(examples.cpu()).get_suptitle()


def test_the_same_record_gives_the_same_file_without_date_and_version(tmp_path):
    for name in "ab":
        chart.save(tmp_path / name, examples.gpu())
    written = (tmp_path / "a").read_bytes()
    assert written == (tmp_path / "b").read_bytes()
    assert not any(word in written for word in (b"tEXt", b"tIME", b"Software"))
