"""A graph that cannot be had takes no other graph along, and is tried once more if there was no memory for it."""

import pytest

from mixprec.graph_capture import CaptureError
from tests.graph_capture.captured_runs import FIRST_REPLAY, REQUIRED, Run, assert_same
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)
from tests.stand_ins.graph_on_host import HostGraphs as GraphsOnHost


def _reads_small_batches(model, x, t):
    loss = model(x, t)
    return loss + 0 * float(loss.array) if len(x) == 2 else loss


def _runs(lossfun=None, capture=None):
    """A captured and an eager run; the former is returned, and a function that runs both."""
    captured, expected = Run({} if capture is None else capture, lossfun=lossfun), Run(None, lossfun=lossfun)

    def run(steps, size):
        for each in (captured, expected):
            each.run(steps, size)

    return captured, expected, run


@pytest.mark.slow
def test_shapes_that_cannot_be_captured_leave_the_graph_of_others(host):  # noqa: F811
    captured, expected, run = _runs(_reads_small_batches)
    run(range(8), 4)
    (graph,) = [each.graph for each in captured.step._specializations.values()]
    run(range(8, 14), 2)
    assert "the host reads from the device" in captured.step.why_not
    replays = captured.step.replays
    run(range(14, 17), 4)
    assert captured.step.why_not is None
    assert captured.step.replays == replays + 3
    assert graph in [each.graph for each in captured.step._specializations.values()]
    (line,) = [line for line in captured.step.report().splitlines() if "is not captured" in line]
    assert line.startswith("(2, 3, 16, 16) float32, (2,) int32: ")
    assert_same(captured, expected)


@pytest.mark.slow
def test_an_error_for_such_shapes_alone_if_capture_is_required(host):  # noqa: F811
    captured = Run(REQUIRED, lossfun=_reads_small_batches).run(range(8), 4)
    with pytest.raises(CaptureError, match="the host reads from the device"):
        captured.run(range(8, 14), 2)
    done = captured.optimizer.t
    with pytest.raises(CaptureError, match="the host reads from the device"):  # again, and nothing is done
        captured.run([14], 2)
    captured.run([15], 4)
    assert captured.optimizer.t == done + 1


@pytest.mark.slow
def test_other_graphs_make_room_for_one_that_did_not_fit(host, monkeypatch, caplog):  # noqa: F811
    """Once for each: two that fit alone, but not together, would take turns for ever."""
    capture = GraphsOnHost.capture

    def with_memory_for_one(graphs, function):
        if any(each.graph is not None for each in captured.step._specializations.values()):
            raise CaptureError("there is not enough memory for a CUDA graph: cudaErrorMemoryAllocation: out of memory")
        return capture(graphs, function)

    monkeypatch.setattr(GraphsOnHost, "capture", with_memory_for_one)
    captured, expected, run = _runs()
    run(range(8), 4)
    run(range(8, 18), 2)
    assert "graphs of other arguments were dropped, as memory ran out" in caplog.text
    assert captured.step.why_not is None
    assert captured.step.replays > 8 - FIRST_REPLAY
    run(range(18, 28), 4)  # this is its first time
    assert captured.step.why_not is None
    run(range(28, 38), 2)
    assert "cudaErrorMemoryAllocation" in captured.step.why_not
    replays = captured.step.replays
    run(range(38, 41), 4)
    assert captured.step.replays == replays + 3
    assert_same(captured, expected)


@pytest.mark.slow
def test_other_graphs_make_room_for_an_eager_step(host):  # noqa: F811
    """It is done once more from the beginning."""
    failed = []

    def lossfun(model, x, t):
        loss = model(x, t)
        if len(x) == 2 and any(each.graph is not None for each in captured.step._specializations.values()):
            failed.append(len(x))
            raise MemoryError("out of memory")
        return loss

    captured, expected, run = _runs(lossfun)
    run(range(8), 4)
    run(range(8, 10), 2)
    run(range(10, 12), 4)
    assert failed == [2]
    assert captured.step.why_not is None
    assert_same(captured, expected)
