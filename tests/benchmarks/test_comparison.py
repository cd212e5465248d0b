"""What the comparison of a new graph finds, and that it lets right graphs pass, early and late in a run."""

import re

import pytest

from benchmarks import comparison_power
from benchmarks.comparison_runs import FAULTS, Training
from mixprec.graph_capture import doubts

pytestmark = pytest.mark.slow

LOUD = list(FAULTS)[-1]  # within the noise that each layer has


@pytest.mark.slow
@pytest.mark.parametrize("lr", [1e-5, 1e-2])
def test_faults_are_found_and_right_graphs_pass(lr):
    training = Training("resnet20", size=16, batch=4, lr=lr)
    early, late = comparison_power.measure(training, [3, 80], pairings=20)
    assert (early.steps, late.steps) == (3, 80)
    for found in (early, late):
        assert found.refused == 0
        assert all(found.exact.values())
        assert {name for name, calls in found.noisy.items() if calls < len(found.differing)} <= {LOUD}


@pytest.mark.slow
def test_a_comparison_by_bits_would_refuse_right_graphs(monkeypatch):
    """The runs do differ: without noise that is measured, each of them is another step."""
    monkeypatch.setattr("mixprec.graph_capture.verification._APART", 0)
    monkeypatch.setattr("mixprec.graph_capture.verification._CHANGE", 0)
    (found,) = comparison_power.measure(Training("resnet20", size=16, batch=4, lr=1e-2), [3], pairings=5)
    assert found.refused == found.pairings == 5


def test_the_table():
    names = list(FAULTS)
    exact, noisy = dict.fromkeys(names, True), {**dict.fromkeys(names, doubts.CALLS), names[0]: 1, LOUD: 0}
    text = comparison_power.table([comparison_power.Power(30, exact, noisy, [0, 0, 0], 0, 100)])
    assert text.splitlines()[0] == "| Fault | exact, 30 | noise, 30 |"
    assert re.search(rf"^\| {names[0]} \| found \| 1 of {doubts.CALLS} \|$", text, re.MULTILINE)
    assert text.endswith(f"| {LOUD} | found | not found |")
