"""``scripts/benchmark.py loader``: the table, what it is made of, and what loaders do."""

import json
import sys

import chainer
import numpy as np
import pytest

from benchmarks import compared_loaders, loader
from benchmarks.compared_loaders import CHAINER, DALI, ON_GPU, PILLOW, SERIAL
from benchmarks.loader import Row
from mixprec.data.data_error import DataError
from scripts import benchmark

pytestmark = pytest.mark.slow

NAMES = [DALI, CHAINER, SERIAL, PILLOW]


def test_table_and_the_same_numbers_as_json(tmp_path, capsys):
    pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    small = ("--images", "12", "--batch", "4", "--repeats", "1", "--seconds", "1")
    benchmark.main(["loader", *small, "--json", str(tmp_path / "loader.json")])
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "loader.json").read_text())
    assert record["settings"]["batch"] == 4
    assert {"date", "python", "numpy", "chainer", "mixprec", "commit", "cpu", "pillow"} <= record.keys()
    rows = {row["name"]: row for row in record["rows"]}
    assert [name for name in rows if name != ON_GPU] == NAMES
    for row in rows.values():
        assert row["rate"] > 0, row["note"]
        assert row["ratio"] == pytest.approx(rows[DALI]["rate"] / row["rate"])
        assert f"  {row['name']:38}{row['rate']:10.0f}{row['spread']:8.0f}{row['ratio']:14.2f}" in printed
        assert (row["waiting"] is not None) == (row["name"] in (DALI, PILLOW))
    assert all(0 <= rows[name]["waiting"] <= 1 for name in (DALI, PILLOW))
    assert list(tmp_path.iterdir()) == [tmp_path / "loader.json"]


BAD_ARGUMENTS = [
    (("--images", "4", "--batch", "5"), "benchmark: --batch 5: must be at most 4, the number of images"),
    (("--data", "nowhere"), "nowhere: no such file or folder"),
]


@pytest.mark.parametrize(("arguments", "named"), BAD_ARGUMENTS)
def test_bad_arguments_end_with_exit_code_2(arguments, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["loader", *arguments])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return compared_loaders.make_pictures(str(tmp_path_factory.mktemp("pictures")), 6)


@pytest.mark.parametrize("name", NAMES)
def test_all_loaders_deliver_the_same_kind_of_batches(pictures, monkeypatch, name):
    """Also of the same distribution: the mean of all pixels is the one of the pictures, within what crops do to it."""
    if name == DALI:
        pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    monkeypatch.setattr(compared_loaders, "_loader", [])
    # Forks of this process, which has threads, are not for its tests: the processes of Chainer are replaced by threads.
    monkeypatch.setattr(
        chainer.iterators,
        "MultiprocessIterator",
        lambda *arguments, n_processes, **kept: chainer.iterators.MultithreadIterator(
            *arguments, n_threads=n_processes, shuffle=kept["shuffle"]
        ),
    )
    compared_loaders.prepare(name, pictures, 3, 1)
    batches = [compared_loaders._next() for _ in range(4)]
    assert {(x.shape, x.dtype.name, t.shape, t.dtype.name) for x, t in batches} == {
        ((3, 224, 224, 3), "float16", (3,), "int32")
    }
    assert set(np.concatenate([t for _, t in batches]).tolist()) == set(range(6))
    whole = np.stack([compared_loaders.Image.open(path) for path in pictures.paths()]).astype(np.float64)
    expected = ((whole - compared_loaders.NORMALIZATION.mean) / compared_loaders.NORMALIZATION.std).mean()
    assert abs(np.mean([x.astype(np.float64).mean() for x, _ in batches]) - expected) < 0.1
    compared_loaders.end()


def test_why_a_loader_failed_is_said(pictures, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(DataError, match="NVIDIA DALI cannot be imported"):
        compared_loaders.prepare(DALI, pictures, 3, 1)


@pytest.fixture
def clock(monkeypatch):
    """Time goes on with each sleep, and with each wait for a batch."""

    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds

        def next(self):
            self.now += self.waits.pop(0)
            return np.zeros(4), np.zeros(4)

    clock = Clock()
    monkeypatch.setattr(compared_loaders, "time", clock)
    monkeypatch.setattr(compared_loaders, "_next", clock.next)
    return clock


def test_the_share_of_waiting_is_of_all_time_after_the_start(clock):
    """Ten batches of four at 8 images/s take half a second each; two of them come a quarter of a second late."""
    clock.waits = [9, 9, 9, 9] + [0, 0.25, 0, 0, 0, 0, 0.25, 0, 0, 0]
    assert compared_loaders.waiting(8, 10) == pytest.approx(0.5 / 5.5)


def test_a_turn_does_not_count_what_was_made_ahead(clock):
    clock.waits = [0, 0, 0, 0] + [2] * 5
    assert compared_loaders.turn(5) == 0.5
    assert clock.now == 5 * 2 + 4 * 2  # and it waits until all is made ahead again


def test_ratios_are_medians_over_turns():
    times = {DALI: [0.001, 0.002, 0.001], CHAINER: [0.002, 0.003, 0.001]}
    row = loader._row(CHAINER, times, None, "")
    assert row == Row(CHAINER, 500.0, pytest.approx(1000 / 3), 1.5)
    rows = [row, loader._row(PILLOW, {PILLOW: [0.002]}, 0.25, ""), loader._row(DALI, {}, None, "no DALI")]
    lines = [line.split() for line in loader.table(rows).splitlines()[1:]]
    assert lines[0][-3:] == ["500", "333", "1.50"]
    assert lines[1][-3:] == ["500", "0", "25.00%"]
    assert lines[2] == [*DALI.split(), "no", "DALI"]


@pytest.mark.gpu
def test_dali_is_measured_on_the_gpu(pictures):
    pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    rows = {row.name: row for row in loader.measure(pictures, gpu=0, batch=3, repeats=1, seconds=1)}
    assert rows[ON_GPU].rate > 0, rows[ON_GPU].note
