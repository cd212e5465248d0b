"""The chart of the bars: what is drawn for each row, that nothing covers a text, that a file is whole or not there."""

import itertools
import os

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.container import BarContainer, ErrorbarContainer

from benchmarks.bars import chart
from tests.benchmarks import bars_record as examples

pytestmark = pytest.mark.slow

GROUPS = ("plain", "config", "precision", "peer")


def _texts(axes):
    return [text.get_text() for text in axes.texts]


def _bars(axes):
    """All bars of axes, in the order in which they were drawn."""
    return [patch for container in axes.containers if isinstance(container, BarContainer) for patch in container]


def _rows(record, groups, measured=True):
    """Rows of some groups in the order of the chart: by row, then by batch size."""
    rows = [row for row in record["rows"] if row["group"] in groups and (not row["reason"]) == measured]
    names = [row["name"] for group in GROUPS for row in record["rows"] if row["group"] == group]
    return sorted(rows, key=lambda row: names.index(row["name"]) if row["name"] in names else 0)


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_a_bar_for_each_measured_row(kind):
    record = getattr(examples, kind)()
    axes = chart.figure(record).axes[0]
    rows = _rows(record, GROUPS)
    assert [bar.get_height() for bar in _bars(axes)] == [row["median"] for row in rows]
    places = [record["settings"]["batch"].index(row["batch"]) for row in rows]
    assert [round(bar.get_x() + bar.get_width() / 2) for bar in _bars(axes)] == places
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [f"batch {n}" for n in record["settings"]["batch"]]
    assert axes.get_ylim()[0] == 0


def test_bars_of_a_batch_size_do_not_touch_those_of_the_next_one_nor_each_other():
    record = examples.gpu()
    bars = sorted(_bars(chart.figure(record).axes[0]), key=lambda bar: bar.get_x())
    for left, right in itertools.pairwise(bars):
        assert left.get_x() + left.get_width() <= right.get_x() + 1e-9
    # 17 rows in the chart; a group keeps its places free, also for what was not measured
    assert {round(bar.get_width(), 9) for bar in bars} == {round(bars[0].get_width(), 9)}
    assert 17 * bars[0].get_width() < 1


def test_a_colour_for_each_row_at_all_batch_sizes_and_in_the_legend():
    record = examples.gpu()
    axes = chart.figure(record).axes[0]
    colours = {}
    for bar, row in zip(_bars(axes), _rows(record, GROUPS), strict=True):
        colours.setdefault(row["name"], set()).add(to_rgba(bar.get_facecolor()))
    assert {len(found) for found in colours.values()} == {1}
    assert len(set.union(*colours.values())) == len(colours) == 16
    legend = axes.get_legend()
    names = [text.get_text() for text in legend.get_texts()]
    assert names[:3] == ["plain Chainer FP32, no cuDNN", "plain Chainer FP32, cuDNN", "plain Chainer mixed16"]
    assert names[3:8] == list(examples.CONFIGS)
    assert names[8:11] == [f"static_graph.yaml, {name}" for name in examples.PRECISIONS]
    assert names[11:] == [f"PyTorch {name}" for name in examples.PEERS]
    patches = zip(names, legend.get_patches(), strict=True)
    shown = {name: patch.get_facecolor() for name, patch in patches}
    assert {name: {shown[name]} for name in colours} == colours


def test_the_spread_is_from_the_slowest_to_the_fastest_block():
    record = examples.cpu()
    axes = chart.figure(record).axes[0]
    spreads = [bar for bar in axes.containers if isinstance(bar, ErrorbarContainer)]
    ends = [lines.get_segments()[0][:, 1] for *_, (lines,) in spreads]
    assert [tuple(end) for end in ends] == [
        pytest.approx((row["minimum"], row["maximum"])) for row in _rows(record, GROUPS)
    ]


@pytest.mark.parametrize(("kind", "failed"), [("gpu", 6), ("cpu", 2)])
def test_numbers_above_bars_and_why_there_is_none_at_the_foot(kind, failed):
    record = getattr(examples, kind)()
    axes = chart.figure(record).axes[0]
    numbers = [text for text in axes.texts if text.get_text()[0].isdigit()]
    rows = _rows(record, GROUPS)
    assert [text.xy[1] for text in numbers] == [row["maximum"] for row in rows]
    expected = [f"{row['median']:,.0f}" if row["median"] >= 100 else f"{row['median']:.1f}" for row in rows]
    assert [text.get_text() for text in numbers] == expected
    marks = [text for text in axes.texts if text not in numbers]
    assert [text.xy[1] for text in marks] == [0] * failed
    assert [text.get_text() for text in marks] == [
        chart.short(row["reason"]) for row in _rows(record, GROUPS, measured=False)
    ]
    assert {text.get_text() for text in marks} == (
        {"out of memory", "ValueError"} if kind == "gpu" else {"needs a GPU", "not measured"}
    )


def test_no_numbers_where_bars_are_too_narrow():
    record = examples.gpu()
    record["settings"]["batch"] = batches = list(range(1, 13))
    rows = [row for row in record["rows"] if row["batch"] == 32]
    record["rows"] = [{**row, "batch": batch} for batch in batches for row in rows]
    axes = chart.figure(record).axes[0]
    assert set(_texts(axes)) == {"ValueError"}
    assert len(_bars(axes)) == 16 * 12


# Ablations


def test_ablations_are_in_percent_of_everything_on():
    record = examples.gpu()
    _, axes = chart.figure(record).axes
    expected, texts = [], []
    for batch in (32, 64, 128, 256):
        base = examples.of(record, batch, "static_graph.yaml")["median"]
        for name in examples.ABLATIONS:
            row = examples.of(record, batch, f"static_graph.yaml, {name}")
            expected += [] if row["reason"] else [100 * row["median"] / base]
            texts.append("out of memory" if row["reason"] else f"{expected[-1]:.0f}%")
    assert [bar.get_width() for bar in _bars(axes)] == pytest.approx(expected)
    assert _texts(axes) == texts
    assert texts.count("out of memory") == 1
    assert [tick.get_text() for tick in axes.get_yticklabels()] == list(examples.ABLATIONS)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [f"batch {n}" for n in (32, 64, 128, 256)]
    assert axes.get_xlabel() == "images/s, % of static_graph.yaml"
    low, high = axes.get_ylim()
    assert low > high  # the first one is at the top


def test_an_ablation_with_nothing_to_compare_with():
    record = examples.cpu()
    base = examples.of(record, 8, "static_graph.yaml")
    base |= examples.failed(8, "static_graph.yaml", "config", examples.OUT_OF_MEMORY)
    _, axes = chart.figure(record).axes
    assert _bars(axes) == []
    assert _texts(axes) == ["nothing to compare"] * 2


def test_without_the_row_that_they_are_compared_with_ablations_are_bars_like_others():
    record = examples.cpu()
    record["rows"] = [row for row in record["rows"] if row["group"] in ("plain", "ablation")]
    (axes,) = chart.figure(record).axes
    rates = sorted(row["median"] for row in record["rows"] if not row["reason"])
    assert sorted(bar.get_height() for bar in _bars(axes)) == rates
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [row["name"] for row in record["rows"]]


def test_no_panel_without_ablations_and_no_bar_without_rows():
    record = examples.cpu()
    record["rows"] = [row for row in record["rows"] if row["group"] != "ablation"]
    (axes,) = chart.figure(record).axes
    assert len(_bars(axes)) == 10
    record["rows"] = []
    (axes,) = chart.figure(record).axes
    assert _bars(axes) == axes.texts[:] == []


# What it looks like


def _tick_labels(axis):
    """Those that are drawn: matplotlib has labels beyond the ends of an axis, too."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


def _drawn_texts(figure):
    FigureCanvasAgg(figure).draw()
    axes = figure.axes
    texts = [text for panel in axes for text in (*panel.texts, *panel.get_legend().get_texts())]
    texts += [label for panel in axes for axis in (panel.xaxis, panel.yaxis) for label in _tick_labels(axis)]
    texts += [label for panel in axes for label in (panel.xaxis.label, panel.yaxis.label)]
    return [text for text in (*texts, figure._suptitle) if text.get_text()]


def _alike(*batches):
    """A run whose bars are all of one height, so that each number stands between two others."""
    record = examples.gpu()
    record["settings"]["batch"] = list(batches)
    rows = [row for row in record["rows"] if row["batch"] == 32]
    record["rows"] = [examples.measured(batch, row["name"], row["group"], 8888.0) for batch in batches for row in rows]
    return record


LOOKS = {"gpu": examples.gpu(), "cpu": examples.cpu(), "five": _alike(1, 2, 3, 4, 5), "four": _alike(1, 2, 3, 4)}
LOOKS |= {"three": _alike(1, 2, 3), "two": _alike(1, 2), "one": _alike(1)}


@pytest.mark.parametrize("record", LOOKS.values(), ids=LOOKS.keys())
def test_texts_are_inside_and_none_is_on_another(record):
    figure = chart.figure(record)
    texts = _drawn_texts(figure)
    assert len(texts) > 30
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    for text, box in boxes:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1, text
    for (one, box), (other, second) in itertools.combinations(boxes, 2):
        assert not box.padded(-0.5).overlaps(second.padded(-0.5)), (one, other)


def test_title():
    record = examples.gpu()
    assert chart.figure(record)._suptitle.get_text() == (
        f"resnet50, 224x224 pixels, training on synthetic data\n{examples.GPU_DEVICE}; 2026-11-22"
    )
    record = examples.cpu() | {"complete": False}
    assert chart.figure(record)._suptitle.get_text() == (
        "resnet18, 64x64 pixels, training on synthetic data\n"
        "a CPU of the tests; 2026-11-22, the run has not come to its end"
    )


def test_a_dollar_is_a_dollar(tmp_path):
    record = examples.cpu() | {"cpu": "a $CPU_{1$"}
    for name, row in zip((r"$\x$, a", r"b $\frac{$"), record["rows"][5:7], strict=True):
        row["name"] = name
    examples.of(record, 8, "static_graph.yaml, no fusion")["name"] = r"static_graph.yaml, $\no$"
    figure = chart.figure(record)
    assert not any(text.get_parse_math() for text in _drawn_texts(figure) if "$" in text.get_text())
    assert sum("$" in text.get_text() for text in _drawn_texts(figure)) == 4
    chart.save(tmp_path / "a.png", record)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (examples.OUT_OF_MEMORY, "out of memory"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out of memory"),
        ("_ArrayMemoryError: Unable to allocate 3.0 GiB for an array", "out of memory"),
        ("RuntimeError: CUDNN_STATUS_ALLOC_FAILED", "out of memory"),
        ("cudaErrorMemoryAllocation: out of memory", "out of memory"),
        ("needs a GPU", "needs a GPU"),
        ("block 2 of 5: ValueError: what", "ValueError"),
        ("not begun: 2 minutes were over", "not begun"),
        ("its process died: a crash, or the memory of the machine was not enough", "its process died"),
        ('torch is not installed, pip install -e ".[torch]"', "not measured"),
    ],
)
def test_short_reasons(reason, text):
    assert chart.short(reason) == text


# The file


def test_the_same_record_gives_the_same_file_without_date_and_version(tmp_path):
    record = examples.gpu()
    chart.save(tmp_path / "a.png", record)
    chart.save(tmp_path / "b.png", record)
    written = (tmp_path / "a.png").read_bytes()
    assert written == (tmp_path / "b.png").read_bytes()
    assert written.startswith(b"\x89PNG")
    assert not any(word in written for word in (b"tEXt", b"tIME", b"Software"))
    assert sorted(os.listdir(tmp_path)) == ["a.png", "b.png"]


def test_a_failure_leaves_the_old_picture(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def broken(record):
        figure = draw(record)
        savefig = figure.savefig

        def half(file, **options):
            savefig(file, **options)
            raise OSError("No space left on device")

        figure.savefig = half
        return figure

    draw = chart.figure
    monkeypatch.setattr(chart, "figure", broken)
    with pytest.raises(OSError, match="No space left"):
        chart.save(path, examples.cpu())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.png"]
