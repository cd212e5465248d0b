"""``scripts/benchmark.py step``: its tables, and how a step's Python is timed."""

import contextlib
import json

import chainer
import numpy as np
import pytest
from chainer import function_node

from benchmarks.processes import Worker
from benchmarks.recording_device import null_device
from benchmarks.step import by_hand, python_time
from benchmarks.step.python_time import CAPTURED, EAGER, PLAIN, Row
from models import MODELS
from scripts import benchmark

pytestmark = pytest.mark.slow

COUNTED = {"eager": 0, "captured": 1}  # and how many graphs are launched


def test_tables_and_the_same_numbers_as_json(tmp_path, capsys):
    file = tmp_path / "step.json"
    benchmark.main(["step", "--arch", "resnet8", "--size", "32", "--repeats", "1", "--json", str(file)])
    printed = capsys.readouterr().out
    record = json.loads(file.read_text())
    assert record["settings"] == {"arch": "resnet8", "size": 32, "repeats": 1}
    assert {"date", "python", "numpy", "chainer", "mixprec", "commit", "cpu"} <= record.keys()
    assert {row["name"]: row["graph_launches"] for row in record["counts"]} == COUNTED
    for row in record["counts"]:
        assert (row["syncs"], row["conversions"], row["functions"]) == (0, 0, 0)
        assert f"  {row['name']:10}{row['launches']:11}" in printed
    # Seven convolutions of 3x3 and two shortcuts of 1x1; images need no gradient.
    assert (record["parts"]["conv_fprop"], record["parts"]["conv_dgrad"]) == (9, 8)
    assert f"  {'all':34}{record['counts'][0]['launches']:8}\n" in printed
    assert sum(record["parts"].values()) == record["counts"][0]["launches"]
    assert [row["name"] for row in record["rows"]] == [PLAIN, EAGER, CAPTURED]
    for row in record["rows"]:
        assert row["ratio"] == pytest.approx(row["milliseconds"] / record["rows"][0]["milliseconds"])
        assert row["bound"] == (1.0 if row["name"] == EAGER else None)
        assert f"  {row['name']:20}{row['milliseconds']:10.2f}{row['spread']:8.2f}{row['ratio']:8.3f}" in printed


def _launches_of_a_turn():
    """Returns how often a graph was launched, how many uploads there were, and how many different ones."""
    python_time.prepare(CAPTURED, MODELS["resnet8"])
    playing = python_time._prepared[1]
    uploaded, launches = [], []

    @contextlib.contextmanager
    def counting():
        with playing() as start:
            launch = null_device.Graph.launch
            null_device.Graph.launch = lambda graph: launches.append(launch(graph))
            null_device.Launcher.upload = lambda launcher, source, target: uploaded.append(bytes(source))
            yield start

    python_time._prepared[1] = counting
    python_time.turn()
    return len(launches), len(uploaded), len(set(uploaded))


def test_each_captured_step_is_a_launch_with_a_learning_rate_of_its_own():
    with Worker() as worker:
        assert worker.call(_launches_of_a_turn) == (10, 10, 10)


def test_ratios_are_medians_of_those_of_a_turn():
    plain, own = [0.010, 0.020, 0.012], [0.004, 0.005, 0.003]
    row = python_time._row(CAPTURED, own, plain)
    assert row == Row(CAPTURED, 4.0, pytest.approx(1.0), pytest.approx(0.25), None)  # of 0.4, 0.25, 0.25; not 4 / 12


@pytest.mark.parametrize("arguments", [("--size", "0"), ("--repeats", "x"), ("--arch", "resnext50_32x4d")])
def test_bad_arguments_end_with_exit_code_2(arguments, capsys):
    """Groups of convolutions cannot be cut down to eight channels."""
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["step", *arguments])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: argument {arguments[0]}: ")


def test_narrow_models_run_and_keep_the_order_of_their_memory():
    networks = MODELS["resnet18"](8), by_hand.NETWORKS["resnet18"](8, "float32")
    plain, nhwc = map(python_time.narrow, networks)
    shapes = {name: param.shape for name, param in plain.namedparams()}
    assert shapes == {name: param.shape for name, param in nhwc.namedparams()}
    assert {shape[0] for shape in shapes.values()} == {8}
    assert all(param.array.transpose(0, 2, 3, 1).flags.c_contiguous for param in nhwc.params() if param.ndim == 4)
    x = np.random.RandomState(0).normal(size=(2, 3, 32, 32)).astype(np.float32)
    assert plain(x).shape == nhwc(x.transpose(0, 2, 3, 1).copy()).shape == (2, 8)


def _apply_of_chainer():
    return function_node.FunctionNode.apply.__module__, chainer.Link.__call__.__module__


def test_plain_chainer_has_nothing_of_a_conversion_in_its_process():
    with Worker() as worker:
        worker.call(python_time.prepare, PLAIN, MODELS["resnet8"])
        assert worker.call(_apply_of_chainer) == ("chainer.function_node", "chainer.link")
