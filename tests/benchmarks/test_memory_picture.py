"""scripts/benchmark.py memory-picture: the curves are what the planner predicts, and the picture is drawn."""

import re

import numpy as np
import pytest

from benchmarks.activations import residency
from mixprec.activation_memory.planning import least, plan
from mixprec.activation_memory.recording import Buffer, Bus, Event, Recomputation, Recording
from scripts import benchmark

pytestmark = pytest.mark.slow


def _recording(seed):
    """A chain of functions, each of which keeps its result until it goes backward; some can be computed again."""
    random = np.random.default_rng(seed)
    count = int(random.integers(6, 14))
    times, others = random.uniform(1, 3, 2 * count), random.integers(1, 30, 2 * count)
    events = [Event("f", n < count, float(times[n]), int(others[n])) for n in range(2 * count)]
    buffers = []
    for made in range(count):
        needs = tuple(sorted({max(count, 2 * count - 2 - made), 2 * count - 1 - made}))
        again = Recomputation(float(random.uniform(0, 1)), (made - 1,), 5) if made and random.random() < 0.5 else None
        buffers.append(Buffer(int(random.integers(10, 100)), "f", made, min(made + 1, count - 1), needs, again))
    return Recording(tuple(events), tuple(buffers))


@pytest.mark.parametrize("seed", range(20))
def test_time_and_memory_are_those_of_the_plan(seed):
    recording, bus = _recording(seed), Bus(40.0, 60.0, 0.1)
    kept = plan(recording, None, bus)
    for share in (0.0, 0.2, 0.6, 1.0):
        budget = int((1 - share) * least(recording) + share * kept.peak)
        found = plan(recording, budget, bus)
        curve = residency.curve("offload", recording, found, bus)
        assert curve.seconds == pytest.approx(found.schedule.seconds)
        assert curve.peak == found.schedule.peak <= budget
        assert len(curve.times) == len(curve.memory) + 1
        assert list(curve.times) == sorted(curve.times)
        forward = [event.is_forward for event in recording.events].index(False)
        assert curve.turn == curve.times[forward]


def test_a_picture_of_three_curves(tmp_path, capsys):
    path = tmp_path / "step.svg"
    benchmark.main(["memory-picture", str(path), "--size", "256", "--width", "2", "--folder", str(tmp_path)])
    peaks = {}
    for line in capsys.readouterr().out.splitlines():
        name, peak = re.match(r"(\S+(?: \S+)*)\s+([\d,.]+) MB", line).groups()
        peaks[name] = float(peak.replace(",", ""))
    assert list(peaks) == ["kept", "recompute: blocks", "offload"]
    assert peaks["offload"] < peaks["kept"]
    text = path.read_text()
    assert text.startswith("<?xml")
    assert "MB in use" in text


def test_a_budget_that_nothing_meets(tmp_path, capsys):
    arguments = ["--size", "256", "--width", "2", "--budget", "1 MB", "--folder", str(tmp_path)]
    with pytest.raises(SystemExit) as caught:
        benchmark.main(["memory-picture", str(tmp_path / "step.png"), *arguments])
    assert caught.value.code == 2
    assert "no plan fits into 1.0 MB" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["step.pdf"], "expected a name that ends in .svg or .png"),
        (["step.svg", "--size", "100"], "expected a multiple of 256"),
    ],
)
def test_wrong_arguments(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        benchmark.main(["memory-picture", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
