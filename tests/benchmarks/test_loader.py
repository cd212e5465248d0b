"""``scripts/benchmark.py loader``: the tables, what they are made of, and what loaders do."""

import json
import sys
import types

import chainer
import numpy as np
import pytest

import mixprec
from benchmarks import compared_loaders, loader_gpu, loader_speed
from benchmarks.compared_loaders import CHAINER, COMPUTING, DALI, NAMES, PILLOW, SERIAL, SLEEPING
from benchmarks.loader_gpu import ALONE, BOTH, SYNTHETIC, Row
from benchmarks.loader_speed import Speed, Wait
from mixprec import environment
from mixprec.data.data_error import DataError
from mixprec.data.loaders.synthetic import SyntheticIterator
from models import MODELS
from scripts import benchmark

pytestmark = pytest.mark.slow


def test_tables_and_the_same_numbers_as_json(tmp_path, capsys):
    pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    small = ("--images", "12", "--batch", "4", "--repeats", "1", "--seconds", "1", "--gpu-batch", "4")
    benchmark.main(["loader", *small, "--json", str(tmp_path / "loader.json")])
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "loader.json").read_text())
    settings = {"data": None, "images": 12, "batch": 4, "threads": 2, "repeats": 1, "seconds": 1}
    assert record["settings"] == {**settings, "gpu_batch": 4, "gpu_threads": 8}
    assert {"date", "python", "numpy", "chainer", "mixprec", "commit", "cpu", "pillow", "dali"} <= record.keys()
    assert [(row["name"], row["wanted"]) for row in record["rows"]] == [
        (DALI, None),
        (CHAINER, 1.2),
        (SERIAL, 2.0),
        (PILLOW, None),
    ]
    for row in record["rows"]:
        assert row["rate"] > 0, row["note"]
        assert row["ratio"] == pytest.approx(record["rows"][0]["rate"] / row["rate"])
        assert f"  {row['name']:38}{row['rate']:10.0f}{row['spread']:8.0f}{row['ratio']:14.2f}" in printed
    assert [(row["name"], row["trainer"], row["bound"]) for row in record["waiting"]] == [
        (DALI, SLEEPING, 0.05),
        (DALI, COMPUTING, None),
        (PILLOW, SLEEPING, None),
        (PILLOW, COMPUTING, None),
    ]
    for row in record["waiting"]:
        assert 0 <= row["share"] <= 1
        assert 0 < row["rate"] < 201
        assert f"  {row['name'] + ': it ' + row['trainer']:52}{row['rate']:6.0f}{row['share']:12.2%}" in printed
    if not environment.usable_device_count():
        assert record["gpu"]["rows"] == []
        assert f"not measured: {record['gpu']['missing']}\n" in printed
    assert list(tmp_path.iterdir()) == [tmp_path / "loader.json"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--batch", "0"), "--batch"),
        (("--threads", "x"), "--threads"),
        (("--images", "4", "--batch", "5"), "benchmark: --batch 5: must be at most 4, the number of images"),
        (("--data", "nowhere"), "nowhere: no such file or folder"),
    ],
)
def test_bad_arguments_end_with_exit_code_2(arguments, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["loader", *arguments])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


def test_pictures_are_like_those_of_imagenet(tmp_path):
    images = compared_loaders.make_pictures(str(tmp_path), 12)
    sizes = [len(images.read(index)) for index in range(12)]
    assert 100_000 < np.mean(sizes) < 120_000
    assert len({images.read(index) for index in range(12)}) == 12
    assert images.labels.tolist() == [*range(10), 0, 1]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return compared_loaders.make_pictures(str(tmp_path_factory.mktemp("pictures")), 6)


@pytest.mark.parametrize("name", NAMES)
def test_all_loaders_deliver_the_same_kind_of_batches(pictures, monkeypatch, name):
    """Also of the same distribution: the mean of all pixels is that of the pictures, within what crops do to it."""
    if name == DALI:
        pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    loader = []
    monkeypatch.setattr(compared_loaders, "_loader", loader)
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
    expected = ((whole - compared_loaders.AUGMENTATION["mean"]) / compared_loaders.AUGMENTATION["std"]).mean()
    assert abs(np.mean([x.astype(np.float64).mean() for x, _ in batches]) - expected) < 0.1
    assert compared_loaders.turn(1) > 0
    compared_loaders.end()


def test_why_a_loader_failed_is_said(pictures, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(DataError, match="NVIDIA DALI cannot be imported"):
        compared_loaders.prepare(DALI, pictures, 3, 1)


class Clock:
    """Time goes on with each sleep, and with each wait for a batch."""

    def __init__(self, waits):
        self.now, self.waits = 0.0, iter(waits)

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def next(self):
        self.now += next(self.waits)
        return np.zeros(4), np.zeros(4)


def test_the_share_of_waiting_is_of_all_time_after_the_start(monkeypatch):
    """Ten batches of four at 8 images/s take half a second each; two of them come a quarter of a second late."""
    clock = Clock([9, 9, 9, 9] + [0, 0.25, 0, 0, 0, 0, 0.25, 0, 0, 0])
    monkeypatch.setattr(compared_loaders, "time", clock)
    monkeypatch.setattr(compared_loaders, "_next", clock.next)
    assert compared_loaders.train(SLEEPING, 8, 10) == pytest.approx((40 / 5.5, 0.5 / 5.5))


def test_a_turn_does_not_count_what_was_made_ahead(monkeypatch):
    clock = Clock([0, 0, 0, 0] + [2] * 5)
    monkeypatch.setattr(compared_loaders, "time", clock)
    monkeypatch.setattr(compared_loaders, "_next", clock.next)
    assert compared_loaders.turn(5) == 0.5
    assert clock.now == 5 * 2 + 4 * 2  # and it waits until all is made ahead again


def test_ratios_are_medians_of_those_of_a_turn():
    times = {DALI: [0.001, 0.002, 0.001], CHAINER: [0.002, 0.003, 0.001]}
    row = loader_speed._speed(CHAINER, times, "")
    assert row == Speed(CHAINER, 500.0, pytest.approx(1000 / 3), 1.5, 1.2)
    assert loader_speed._speed(CHAINER, {CHAINER: [0.002]}, "") == Speed(CHAINER, 500.0, 0.0, None, 1.2)
    assert loader_speed._speed(DALI, {}, "no DALI") == Speed(DALI, note="no DALI")


def test_the_table_says_what_is_met():
    speeds = [
        Speed(DALI, 936.4, 12.2, 1.0),
        Speed(CHAINER, 730.0, 9.0, 1.28, 1.2),
        Speed(SERIAL, 500.0, 9.0, 1.87, 2.0),
        Speed(PILLOW, note="no room"),
    ]
    waits = [Wait(DALI, SLEEPING, 199.9, 0.0012, 0.05), Wait(DALI, COMPUTING, 180.0, 0.1, None)]
    lines = loader_speed.table(speeds, waits).splitlines()
    assert lines[1].split() == [*DALI.split(), "936", "12", "1.00"]
    assert lines[2].endswith("1.28    >= 1.2  met")
    assert lines[3].endswith("1.87    >= 2.0  MISSED")
    assert lines[4].split() == [*PILLOW.split(), "no", "room"]
    assert lines[7].endswith("   200       0.12%      < 5%  met")
    assert lines[8].endswith("   180      10.00%")
    waits = [Wait(DALI, SLEEPING, 150.0, 0.05, 0.05)]
    assert loader_speed.table(speeds, waits).endswith("MISSED")


class StubDevice:
    """A GPU on the host."""

    def __init__(self):
        self.device = types.SimpleNamespace(id=0)
        self.xp = types.SimpleNamespace(cuda=types.SimpleNamespace(Device=lambda: self))
        self.waited = 0

    def use(self):
        pass

    def send(self, array):
        return array

    def synchronize(self):
        self.waited += 1


class StubStep:
    """What ``mixprec.capture`` returns, launching from the fourth call on."""

    def __init__(self, optimizer, *, required):
        assert required
        self.shapes = []

    @property
    def replays(self):
        return max(0, len(self.shapes) - 3)

    def __call__(self, x, t):
        self.shapes.append((x.shape, t.shape))

    def report(self):
        return "its shapes change"


@pytest.fixture
def device(monkeypatch):
    device, others = StubDevice(), chainer.get_device
    monkeypatch.setattr(chainer, "get_device", lambda name: device if name in ("@cupy:0", device) else others(name))
    monkeypatch.setattr(chainer.global_config, "autotune", False)  # what loaders change
    monkeypatch.setattr(chainer.Link, "to_device", lambda link, device: link)
    monkeypatch.setattr(chainer.dataset, "to_device", lambda device, array: array)
    monkeypatch.setattr(mixprec, "capture", StubStep, raising=False)
    monkeypatch.setattr(loader_gpu, "SIZE", 16)
    monkeypatch.setattr(loader_gpu, "_BATCHES", 2)

    def dali(images, batch, *, device_id, threads, train, flip, mean, std, crop_area, aspect, **own):
        assert (device_id, threads, train, flip) == (0, 8, True, True)
        return SyntheticIterator(len(images), batch, classes=10, device="@numpy", **own)

    monkeypatch.setattr(loader_gpu, "DaliIterator", dali)
    return device


@pytest.mark.parametrize("name", [ALONE, SYNTHETIC, BOTH])
def test_a_row_on_a_stand_in(device, pictures, name):
    row = loader_gpu.MeasuredRow(name, MODELS["resnet8"], pictures, "@cupy:0", 2, 8)
    before = device.waited
    assert row.turn() > 0
    assert device.waited - before == 2  # before the clock starts, and before it stops
    if name == ALONE:
        assert row._step is None
    else:
        assert row._step.shapes == [((2, 3, 16, 16), (2,))] * 22


def test_what_is_not_launched_as_a_graph_is_not_measured(device, pictures, monkeypatch):
    monkeypatch.setattr(StubStep, "replays", 0)
    with pytest.raises(RuntimeError, match="no graph was launched in 20 steps: its shapes change"):
        loader_gpu.MeasuredRow(BOTH, MODELS["resnet8"], pictures, "@cupy:0", 2, 8)


def test_rows_of_a_gpu():
    times = {ALONE: [0.0005, 0.0005], SYNTHETIC: [0.001, 0.002], BOTH: [0.002, 0.002]}
    rows = [loader_gpu._row(name, times, "") for name in times]
    assert [row.ratio for row in rows] == [3.0, 1.0, 0.75]
    assert rows[2] == Row(BOTH, 500.0, 0.0, 0.75)
    lines = loader_gpu.table([*rows, Row("other", note="why")], {"device": "GPU 0"}).splitlines()
    assert lines[0] == "GPU 0"
    assert lines[4].split() == [*BOTH.split(), "500", "0", "0.750"]
    assert lines[5].split() == ["other", "why"]
    assert json.loads(json.dumps(loader_gpu.as_json(rows, {"device": "GPU 0"})))["rows"][1]["ratio"] == 1.0


@pytest.mark.gpu
def test_the_loader_and_training_are_measured_on_the_gpu(tmp_path):
    pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    images = compared_loaders.make_pictures(str(tmp_path), 32)
    rows, settings = loader_gpu.measure(MODELS["resnet18"], images, batch=16, threads=4, repeats=1)
    print(loader_gpu.table(rows, settings))
    assert [row.name for row in rows] == [ALONE, SYNTHETIC, BOTH]
    for row in rows:
        assert row.rate > 0, row.note
