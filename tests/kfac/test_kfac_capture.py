"""K-FAC in captured steps, on a GPU and on the stand-in: a graph for each kind of step, bit for bit as eager steps."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.backends.cudnn import settings as cudnn
from mixprec.backends.transfers import HostCopy
from mixprec.kfac import refreshes
from mixprec.kfac.refreshes import INVERSES, MOMENTS, PLAIN
from tests.graph_capture.captured_runs import CLASSES, REQUIRED, Run, assert_same, batch
from tests.stand_ins import fake_cudnn
from tests.stand_ins.capture_sides import HOST, device, gpu, gpu_of_module, host, side  # noqa: F401  (fixtures)
from tests.stand_ins.cuda_sides import both_sides

_CAPTURE = {**REQUIRED, "warmup": 2}
_EVERY = {"factor_every": 2, "inverse_every": 4}


class Small(chainer.Chain):
    """A layer of each kind."""

    def __init__(self, dropout):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, stride=2, pad=1, nobias=True)
            self.norm = L.BatchNormalization(8)
            self.grouped = L.Convolution2D(8, 8, 3, stride=2, groups=2)
            self.fc = L.Linear(8, CLASSES)

    def forward(self, x):
        h = F.relu(self.grouped(F.relu(self.norm(self.conv(x)))))
        return self.fc(F.average(h, axis=(2, 3)))


def new(capture, side=HOST, **settings):  # noqa: F811
    return Run(capture, network=Small, preconditioner=mixprec.KFAC(0.1, **settings), side=side)


def matrices(run, side):  # noqa: F811
    """The moving averages and inverses, as arrays of NumPy by name."""
    return {name: side.receive(array) for name, array in run.optimizer.preconditioner.state().items()}


def assert_same_curvature(found, expected, side=HOST):  # noqa: F811
    found, expected = matrices(found, side), matrices(expected, side)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@both_sides
def test_each_kind_of_step_has_a_graph(side):  # noqa: F811
    """Also in which steps overflow: 9 and 14 do."""
    captured, expected = new(_CAPTURE, side, **_EVERY), new(None, side, **_EVERY)
    kinds = []
    for run in (captured, expected):
        for number in range(28):
            kinds.append(run.optimizer.preconditioner.kind)
            run.run([number])
    assert kinds[:28] == kinds[28:]
    assert kinds[:8] == [INVERSES] * 8
    assert set(kinds[8:28]) == {PLAIN, MOMENTS, INVERSES}
    assert captured.step.report().count("then a graph") == 3
    assert captured.optimizer.skipped == 2
    assert_same(captured, expected)
    assert_same_curvature(captured, expected, side)


@pytest.mark.slow
@pytest.mark.usefixtures("host")
def test_nothing_is_uploaded_or_read_but_what_is_new(device, monkeypatch):  # noqa: F811
    """Damping and the rate for kl_clip are arrays on the device, which are filled: no upload, and no other graph."""
    # Whether a step was skipped comes to the host by a copy that a GPU makes on the way.
    monkeypatch.setattr(refreshes, "to_host_async", lambda skip: HostCopy(HOST.receive(skip)))
    run = new(_CAPTURE, kl_clip=1e-4)
    run.optimizer.lr = 0.01
    for number in range(7):
        run.once(*batch(number))
    replays, uploads = run.step.replays, device.launcher.uploads
    uploads.clear()
    with HOST.without_reads():
        for number in range(3):
            run.once(*batch(number))
    assert uploads == []
    run.optimizer.preconditioner.damping = 0.05
    run.once(*batch(0))
    assert uploads == []
    run.optimizer.lr = 0.02
    run.once(*batch(0))
    assert len(uploads) == 1  # the table of parameters
    assert run.step.replays == replays + 5


@pytest.mark.slow
@pytest.mark.usefixtures("host")
def test_damping_and_rate_are_those_of_the_step():
    def run(capture):
        run = new(capture, kl_clip=1e-4)
        for number in range(10):
            run.optimizer.preconditioner.damping = 0.1 / (1 + number)
            run.run([number])
        return run

    captured, expected = run(_CAPTURE), run(None)
    assert captured.step.replays >= 4
    assert_same(captured, expected)
    assert_same_curvature(captured, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("host")
def test_a_snapshot_is_loaded_into_a_run(tmp_path):
    """The graphs of before write into matrices that are not those of the optimizer any more: they are dropped."""
    steps = range(7)

    def run(capture):
        run = new(capture, **_EVERY).run(steps)
        run.save(tmp_path)
        run.run(range(7, 9))
        run.load(tmp_path)
        return run.run(range(7, 16))

    captured, expected = run(_CAPTURE), run(None)
    assert_same(captured, expected)
    assert_same_curvature(captured, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("host")
def test_gradients_are_left_as_zeros():
    """Those of the parameters, though the update reads those of masters."""
    captured, expected = (
        Run(capture, network=Small, preconditioner=mixprec.KFAC(0.1), zero_gradients=True).run(range(8))
        for capture in (_CAPTURE, None)
    )
    assert_same(captured, expected)
    assert not any(gradient.any() for gradient in captured.gradients().values())


@pytest.mark.slow
@pytest.mark.usefixtures("host")
def test_kl_clip_that_comes():
    """A graph has the launches of a step without it: steps with it get graphs of their own."""

    def run(capture):
        run = new(capture)
        for number in range(12):
            run.optimizer.preconditioner.kl_clip = None if number < 6 else 1e-6
            run.run([number])
        return run

    captured, expected = run(_CAPTURE), run(None)
    assert captured.step.replays >= 2
    assert_same(captured, expected)


@pytest.mark.slow
def test_steps_whose_bits_may_vary_are_captured(host, monkeypatch):  # noqa: F811
    """As with engines that add in another order each time: K-FAC's matrices vary from run to run with gradients."""
    cudnn.configure(deterministic=False)
    random, node = np.random.default_rng(0), fake_cudnn.NODES["conv_dgrad"]

    def compute(*arguments):
        return tuple(array * random.normal(1, 0.7, array.shape) for array in map(np.array, node.compute(*arguments)))

    monkeypatch.setitem(fake_cudnn.NODES, "conv_dgrad", node._replace(compute=compute))
    captured = new(_CAPTURE, **_EVERY)
    captured.run(range(28))
    assert captured.step.why_not is None
    assert captured.step.replays >= 4
