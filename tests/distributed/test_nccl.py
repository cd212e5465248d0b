"""Gradients on a device, averaged by NCCL, on a stand-in with three streams."""

import functools

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers

import mixprec
from mixprec.backends.capture_error import CaptureError
from mixprec.backends.joint_batch import NcclJointBatch
from mixprec.distributed import buckets
from mixprec.optimizer import ranks
from mixprec.optimizer.counted_losses import CountedLosses
from tests.distributed.runs import Network as Small
from tests.distributed.runs import batch as small_batch
from tests.graph_capture.captured_runs import Run, assert_same, eager
from tests.stand_ins import graph_array, rank_threads
from tests.stand_ins.capture_sides import HOST, device, host  # noqa: F401  (fixtures)
from tests.stand_ins.nccl_on_host import Communicator
from tests.stand_ins.rank_threads import ThreadTransport

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
STEPS = 3
SCALE = 2.0**13  # so that half of a gradient is no subnormal number of float16


# --- beside a run without a communicator, if the other rank has the same gradients


@pytest.mark.usefixtures("host", "twins")
@pytest.mark.parametrize("dtype", [None, slow("float32"), slow("float16")])
def test_a_run_is_one_without_a_communicator(dtype):
    """The mean of two that are the same is that, bit for bit; what is not waited for, or not held, is NaN."""
    communicator = Communicator()
    run = Run(None, communicator=communicator, allreduce_dtype=dtype, loss_scale=SCALE)
    with HOST.without_reads():
        run.run(range(STEPS))
    assert_same(run, eager(STEPS, loss_scale=SCALE))
    nccl = communicator.nccl
    assert nccl.calls == nccl.done
    of_steps = [call for call in nccl.calls if call[0] == "all_reduce"]
    of_step = of_steps[: len(of_steps) // STEPS]
    assert of_steps == STEPS * of_step
    halves = sum(param.size for param in run.model.params() if param.dtype == np.float16)
    sizes = {dtype: sum(size for _, size, own in of_step if own == dtype) for dtype in ("float16", "float32")}
    assert sizes["float32" if dtype == "float32" else "float16"] >= halves
    assert len(of_step) > 10


@pytest.mark.usefixtures("twins")
def test_buckets_start_in_the_pass_and_are_joined_once(host):  # noqa: F811
    communicator = Communicator()
    model, optimizer = _built(0, communicator, graph_array.send)
    exchange, started = optimizer._ranks._exchange, []

    class Traced(chainer.FunctionHook):
        def backward_postprocess(self, function, in_data, out_grad):
            started.append(exchange.started)

    with host.graphs.on_stream():
        optimizer.update(model, *map(graph_array.array, small_batch(0)))
        communicator.nccl.events.clear()
        with Traced():
            optimizer.update(model, *map(graph_array.array, small_batch(1)))
    events = communicator.nccl.events
    assert events == [*["fork", "all_reduce"] * (len(events) // 2), "join"]
    assert started[0] < started[len(started) // 2] < started[-1]
    assert started[-1] >= len(events) // 2 - 3


class Joint(chainer.FunctionNode):
    """As a batch normalization over several processes: adds up something in the backward pass."""

    def __init__(self, communicator, name):
        self._of_processes = NcclJointBatch(communicator, name)

    def forward(self, inputs):
        self.retain_inputs(())
        return inputs

    def backward(self, indexes, gradients):
        self._of_processes.sum(gradients[0].array)
        return gradients


def test_batch_normalizations_between_buckets_keep_their_order(host, twins):  # noqa: F811
    """Whenever MPI answers that ranks have the same parameters, which differs from rank to rank."""

    def events(is_slow):
        communicator, twins.is_slow = Communicator(), is_slow
        model, optimizer = _built(0, communicator, graph_array.send)
        pooled, model.predictor.norm.forward = model.predictor.norm.forward, lambda x: joint(pooled(x))
        joint = lambda x: Joint(communicator, "/bn").apply((x,))[0]  # noqa: E731
        communicator.nccl.events.clear()
        with host.graphs.on_stream():
            for step in range(3):
                optimizer.update(model, *map(graph_array.array, small_batch(step)))
        return communicator.nccl.events, communicator.nccl.done

    one, other = events(False), events(True)
    assert one == other
    assert one[0].count("join") == 2 * 3


# --- two ranks, as threads


@pytest.fixture
def two_ranks(host, monkeypatch):  # noqa: F811
    """Runs ``function(rank, communicator)`` on two ranks, and returns what they have returned."""
    monkeypatch.setattr(ranks, "MpiTransport", ThreadTransport)
    monkeypatch.setattr(buckets, "MOST", 2**10)

    def run(function):
        with host.graphs.on_stream():
            return rank_threads.run(2, lambda rank, of_threads: function(rank, Communicator(of_threads)))

    return run


def _built(rank, communicator, send, compute="float16", loss_scale=64.0, **settings):
    model = L.Classifier(Small(seed=rank))
    mixprec.convert(model, small_batch(0)[0], compute=compute)
    send(model)
    rule = optimizers.MomentumSGD(0.1)
    settings = {"communicator": communicator, **settings}
    return model, mixprec.MixedPrecisionOptimizer(rule, loss_scale, **settings).setup(model)


def _masters(model, optimizer):
    found = {name: np.array(optimizer.master(param).array.view(np.ndarray)) for name, param in model.namedparams()}
    return {**found, "t, skipped, scale": (optimizer.t, optimizer.skipped, optimizer.loss_scale)}


def _assert_same(found, expected):
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", slow("float16"), slow("bfloat16")])
def test_written_gradients_are_averaged_as_on_numpy(two_ranks, dtype):
    """Other ones on each rank; an overflow on one, and parameters without a gradient on one or both."""

    def body(send, array):
        def run(rank, communicator):
            scale = mixprec.DynamicLossScale(init=2.0**10, interval=7)
            model, optimizer = _built(rank, communicator, send, loss_scale=scale, allreduce_dtype=dtype)
            random = np.random.RandomState(rank)
            for step in range(20):
                for name, param in sorted(model.namedparams()):
                    gradient = random.normal(size=param.shape).astype(param.dtype)
                    if name == "/predictor/out/W" and step == 5 + rank:
                        gradient[0, 0] = np.inf
                    absent = name == "/predictor/extra/W" and step in ((8, 9, 10, 11) if rank else (10, 11))
                    param.grad = None if absent else array(gradient)
                optimizer.update()
            return _masters(model, optimizer)

        return run

    first, second = two_ranks(body(graph_array.send, graph_array.array))
    on_numpy, _ = two_ranks(body(lambda model: None, np.copy))
    _assert_same(first, second)
    _assert_same(first, on_numpy)
    assert first["t, skipped, scale"][:2] == (18, 2)


def test_two_ranks_stay_the_same(two_ranks):
    """Half of each batch for each rank; an overflow on one, several losses, unequal graphs. No read of the device."""

    def run(rank, communicator):
        scale = mixprec.DynamicLossScale(init=64, interval=3)
        model, optimizer = _built(rank, communicator, graph_array.send, loss_scale=scale)
        for step in range(6):
            model.predictor.uses_extra = step != 4 or rank == 0
            x, t = small_batch(step, 8)
            if step == 2 and rank == 1:
                x[-1, 0, 0, 0] = np.inf
            x, t = graph_array.array(x[4 * rank :][:4]), graph_array.array(t[4 * rank :][:4])
            parts = slice(0, 2), slice(2, 4)
            if step == 3:
                losses = (model(x[part], t[part]) / 2 for part in parts)
                optimizer.update(lambda losses=losses: CountedLosses(losses, 2))
            else:
                optimizer.update(model, x, t)
        return model, optimizer, communicator.nccl

    with HOST.without_reads():
        (*first, one), (*second, other) = two_ranks(run)
    masters = _masters(*first)
    _assert_same(masters, _masters(*second))
    assert masters["t, skipped, scale"][:2] == (5, 1)
    assert one.calls == one.done == other.calls == other.done
    assert {dtype for _, _, dtype in one.calls} == {"float16", "float32"}


def test_ranks_in_other_orders_are_an_error_on_all(two_ranks):
    """Batch normalizations over several processes ask in between, and the host cannot see that NCCL waits for ever."""

    def run(rank, communicator):
        model, optimizer = _built(rank, communicator, graph_array.send)
        communicator.nccl.asked.add(f"the statistics of /bn{rank} (8,)")
        with pytest.raises(RuntimeError, match=r"rank 0 asked for the statistics of /bn0 \(8,\), rank 1 for .* /bn1"):
            optimizer.update(model, *map(graph_array.array, small_batch(rank)))
        return True

    assert two_ranks(run) == [True, True]


def test_other_places_on_other_ranks_are_an_error_on_all(two_ranks):
    def run(rank, communicator):
        with pytest.raises(ValueError, match=r"the device of .* is a GPU on rank 0, NumPy on rank 1"):
            _built(rank, communicator, (lambda model: None) if rank else graph_array.send)
        return True

    assert two_ranks(run) == [True, True]


@pytest.mark.usefixtures("host", "twins")
def test_a_model_in_two_places_is_an_error():
    with pytest.raises(ValueError, match=r"/predictor/\S+ is on .*: with a communicator all parameters of a process"):
        _built(0, Communicator(), lambda model: graph_array.send(model.predictor.first))


@pytest.mark.usefixtures("host", "twins")
def test_float64_is_refused():
    model = L.Classifier(Small())
    graph_array.send(model)
    bias = model.predictor.out.b
    bias.array = graph_array.array(np.zeros(bias.shape))
    with pytest.raises(ValueError, match="/predictor/out/b is float64: on a GPU gradients in float16, bfloat16 and"):
        mixprec.MixedPrecisionOptimizer(optimizers.SGD(), communicator=Communicator()).setup(model)


@pytest.mark.usefixtures("twins")
def test_the_scale_of_a_gradient_that_is_used_once_more_is_read(host, monkeypatch):  # noqa: F811
    """Only there, and not in a capture."""
    with host.graphs.on_stream():
        model, optimizer = _built(0, Communicator(), graph_array.send, loss_scale="dynamic")
        for step in range(2):  # at first the scale is on the host
            optimizer.update(model, *map(graph_array.array, small_batch(step)))
        reads = graph_array.GraphArray.reads
        optimizer.update()
        assert graph_array.GraphArray.reads == reads + 1
        assert optimizer.t == 3

        def refused(name):
            raise RuntimeError("the current stream is capturing")

        optimizer.update(model, *map(graph_array.array, small_batch(0)))
        monkeypatch.setattr(graph_array.graph_work, "read", refused)
        with pytest.raises(CaptureError, match=r"a gradient of an earlier step.* call model.cleargrads"):
            optimizer.update()
