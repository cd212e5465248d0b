"""The model of ``scripts/benchmark.py scaling``, part by part, against cases worked out by hand."""

import json
import math

import numpy as np
import pytest

from benchmarks import rates
from benchmarks.roofline.levels import LEVELS
from benchmarks.roofline.limit import limit
from benchmarks.roofline.network_layers import layers
from benchmarks.scaling import cluster, overlap, prediction, published_points, scaling_plot
from benchmarks.scaling.backward_timeline import Gradient, Timeline, timeline
from benchmarks.scaling.cluster import JITTER, SHARE, Cluster, Training
from benchmarks.scaling.collectives import NETWORK, Level, half_ring, hierarchical, ring, tree
from benchmarks.scaling.jitter import expected_maximum
from benchmarks.scaling.overlap import Bucket
from models import MODELS
from tests.benchmarks import roofline_small as small

pytestmark = pytest.mark.slow

SMALL = layers(small.Small, small.SIZE)
NODES = Cluster(4, 3.0, 80.0, 40.0)  # 4 GPUs with 80 bytes/s each, 40 bytes/s from a node


# All-reduce


@pytest.mark.parametrize(
    ("function", "nbytes", "level", "expected"),
    [
        (half_ring, 8, Level(4, 1.0, 2.0), 3 * (1 + 8 / 4 / 2)),
        (ring, 8, Level(4, 1.0, 2.0), 2 * 3 * (1 + 1)),
        (ring, 8, Level(1, 1.0, 2.0), 0),
        (tree, 8, Level(4, 1.0, 2.0), 2 * (2 + 4)),
        (tree, 8, Level(5, 1.0, 2.0), 2 * (3 + 4)),
        (tree, 8, Level(1, 1.0, 2.0), 0),
    ],
)
def test_all_reduce(function, nbytes, level, expected):
    assert function(nbytes, level) == pytest.approx(expected)


@pytest.mark.parametrize(("outer", "seconds"), [(ring, 2 * 2 * (5 + 12 / 3 / 2)), (tree, 2 * (2 * 5 + 12 / 2))])
def test_levels_reduce_shares(outer, seconds):
    levels = [Level(2, 1.0, 4.0), Level(3, 5.0, 2.0)]
    inside = 1 + 24 / 2 / 4  # 24 bytes: to one other, half of them
    assert hierarchical(24, levels, outer) == pytest.approx(2 * inside + seconds)
    assert hierarchical(24, levels[1:], outer) == outer(24, levels[1])


def test_a_long_ring_needs_the_bytes_twice():
    assert ring(1e9, Level(1000, 0.0, 1e9)) == pytest.approx(2, rel=2e-3)


# Routes on a cluster


def test_levels_of_a_cluster():
    assert NODES.within(3) == Level(3, 3.0, SHARE * 80)
    assert NODES.rails(5) == Level(5, NETWORK, SHARE * 10)
    assert NODES.along(12) == Level(12, (3 * 3.0 + NETWORK) / 4, SHARE * 40)


@pytest.mark.parametrize("route", [cluster.one_ring, cluster.ring_of_rails, cluster.tree_of_rails])
@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_within_a_node_all_routes_are_the_ring(route, gpus):
    assert route(NODES, gpus, 64) == pytest.approx(ring(64, NODES.within(gpus)))


def test_routes_over_nodes():
    inside = 2 * half_ring(64, NODES.within(4))
    assert cluster.ring_of_rails(NODES, 12, 64) == pytest.approx(inside + ring(16, NODES.rails(3)))
    assert cluster.tree_of_rails(NODES, 12, 64) == pytest.approx(inside + tree(16, NODES.rails(3)))
    assert cluster.one_ring(NODES, 12, 64) == pytest.approx(ring(64, NODES.along(12)))
    expected = 2 * half_ring(64, NODES.along(8)) + ring(8, NODES.rails(2))
    assert cluster.torus(8)(NODES, 16, 64) == pytest.approx(expected)


# Waiting for the slowest


@pytest.mark.parametrize(("number", "expected"), [(1, 0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi))])
def test_expected_maximum_of_few_numbers(number, expected):
    assert expected_maximum(number) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("number", [8, 64, 1024])
def test_expected_maximum_of_samples(number):
    """Within four standard errors; it also shows how far the usual bound is off."""
    samples = np.random.default_rng(0).standard_normal((20000, number)).max(axis=1)
    error = samples.std() / math.sqrt(len(samples))
    assert abs(samples.mean() - expected_maximum(number)) < 4 * error
    assert expected_maximum(number) < math.sqrt(2 * math.log(number))


def test_the_wait_grows_with_the_number():
    found = [expected_maximum(number) for number in (1, 2, 8, 64, 512, 4096)]
    assert found == sorted(found)


# The backward pass


def test_timeline_of_a_small_network():
    """With one byte a second and no limit of products, each kernel lasts as long as it has bytes."""
    found = timeline(SMALL, "float16", small.BATCH, rates.from_numbers(1e-9, 1e9))
    kernels = small.KERNELS["nhwc-fused"]
    first = next(place for place, (kind, _) in enumerate(kernels) if kind == "loss_backward")
    reached, ready = 0, []
    for kind, nbytes in kernels[first:-2]:
        reached += nbytes
        if kind.endswith(("_wgrad", "_bias")) or kind == "batch_normalization_backward":
            ready.append(reached)
    assert found.forward == pytest.approx(sum(nbytes for _, nbytes in kernels[:first]))
    assert found.backward == pytest.approx(reached)
    assert found.update == pytest.approx(sum(nbytes for _, nbytes in kernels[-2:]))
    assert [each.ready for each in found.gradients] == pytest.approx(ready)
    sizes = [(8000, "float16"), (1000, "float32"), (16, "float32"), (64, "float16"), (16, "float32"), (216, "float16")]
    assert [(each.size, each.dtype) for each in found.gradients] == sizes


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("network", "size"), [(small.Small, small.SIZE), (MODELS["resnet8"], 32)])
def test_a_timeline_is_the_roofline_and_has_all_parameters(network, size, level):
    found, h200 = layers(network, size), rates.from_numbers(4300, 790)
    line = timeline(found, "float16", 32, h200, level)
    assert line.seconds == pytest.approx(limit(found, level, "float16", 32, h200).seconds)
    assert sum(each.size for each in line.gradients) == found.parameters
    assert sum(each.size for each in line.gradients if each.dtype == "float16") == found.weights
    assert [each.ready for each in line.gradients] == sorted(each.ready for each in line.gradients)


def test_another_duration_keeps_the_proportions():
    line = Timeline(1.0, 2.0, 1.0, (Gradient(0.5, 3, "float16"),))
    assert line.lasting(8.0) == Timeline(2.0, 4.0, 2.0, (Gradient(1.0, 3, "float16"),))


# Buckets and what they hide

LINE = Timeline(
    10.0,
    20.0,
    2.0,
    (
        *(Gradient(float(ready), 8, "float16") for ready in (5, 9, 15)),
        *(Gradient(16.0, 2, "float32"), Gradient(20.0, 4, "float16")),
    ),
)


SUMS = {"float16": 2, "float32": 4}


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1, [Bucket(5.0, 16), Bucket(9.0, 16), Bucket(15.0, 16), Bucket(16.0, 8), Bucket(20.0, 8)]),
        (10**6, [Bucket(16.0, 8), Bucket(20.0, 56)]),
    ],
)
def test_buckets_are_ready_when_their_last_gradient_is(limit, expected):
    """With a gradient in each, and with all of a dtype in one: in between it is mixprec's own plan."""
    assert overlap.buckets(LINE, limit, SUMS) == expected


def test_without_overlap_there_is_one_bucket_at_the_end():
    assert overlap.buckets(LINE, None, {"float16": 2, "float32": 2}) == [Bucket(20.0, 60)]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([1, 1, 1, 1], 21),  # each is over before the next one is ready
        ([5, 2, 1, 1], 21),  # 9 to 14, 17, 18; then 20 to 21
        ([12, 2, 3, 3], 29),  # 9 to 21, 23, 26, 29
        ([0, 0, 0, 0], 20),
    ],
)
def test_buckets_wait_for_each_other(times, expected):
    found = [Bucket(float(ready), time) for ready, time in zip((9, 15, 16, 20), times, strict=True)]
    assert overlap.end(found, lambda nbytes: nbytes) == expected


def test_the_step_of_many_is_that_of_one_and_what_is_not_hidden_and_the_wait():
    def route(on, gpus, nbytes):
        assert (on, gpus) == (NODES, 8)
        return nbytes / 8

    training = Training(LINE, NODES, route, SUMS, 1)
    # 5 to 7, 9 to 11, 15 to 17, 18, 20 to 21: one second after the backward pass
    expected = 32 * (1 + JITTER * expected_maximum(8)) + 1
    assert training.seconds(1) == 32
    assert training.seconds(8) == pytest.approx(expected)
    assert training.efficiency(8) == pytest.approx(32 / expected)
    assert training.efficiency(8, base=8) == 1


# Published points, and the prediction


def test_the_error_at_published_points():
    """docs/benchmark.md says 5 to 8 points, in both directions."""
    network = layers(MODELS["resnet50"], 224)
    errors = []
    for point in published_points.POINTS:
        training = point.training(network)
        assert training.timeline.seconds == pytest.approx(point.batch / point.rate)
        errors.append(100 * (training.efficiency(point.gpus, point.base) - point.efficiency))
    assert min(errors) < 0 < max(errors)
    assert all(5 <= round(abs(error)) <= 8 for error in errors)


@pytest.fixture(scope="module")
def predicted():
    return prediction.predict(MODELS["resnet8"], arch="resnet8", size=32, batches=(64, 8), gpus=(8, 64, 4096))


def test_the_prediction_falls_with_the_number_of_gpus(predicted):
    found = {(row.batch, row.route, row.gpus): row.model for row in predicted.rows}
    assert len(found) == len(predicted.rows) == 2 * len(prediction.ROUTES) * 3
    for batch in (64, 8):
        for route in prediction.ROUTES:
            few, some, many = (found[batch, route, gpus] for gpus in (8, 64, 4096))
            assert 100 > few > some > many > 0
    assert predicted.error == max(abs(check.error) for check in predicted.checks)
    for row in predicted.rows:
        alone = predicted.rates[row.batch]
        assert row.images_per_second == pytest.approx(row.gpus * alone * row.model / 100)


def test_every_line_says_that_it_is_a_model_and_the_published_points_come_first(predicted):
    table = predicted.table()
    assert all("model" in line for line in table.splitlines() if line)
    assert "measurement" not in table
    assert table.index("Akiba et al. 2017, 1,024 P100") < table.index("Mikami et al. 2018, 1,088 V100")
    assert table.index("Mikami") < table.index("nodes of 8 H200s")
    assert table.count(f"+- {predicted.error:.0f} %") == len(predicted.rows)


def test_the_record_says_that_it_is_a_model(predicted):
    record = json.loads(json.dumps(predicted.as_json()))
    assert record["is"] == "a model, nothing of it is measured"
    assert {"error", "assumptions", "checks", "rates", "rows"} <= record.keys()
    for check in record["checks"]:
        assert check["error"] == pytest.approx(check["model"] - check["published"])


def test_the_same_record_gives_the_same_plot(predicted, tmp_path):
    paths = [tmp_path / "first.png", tmp_path / "second.png"]
    for path in paths:
        scaling_plot.save(path, {"model": predicted.as_json()})
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert first.startswith(b"\x89PNG")
