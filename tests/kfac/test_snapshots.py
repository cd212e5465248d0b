"""K-FAC in snapshots and copies: a run that was interrupted is bitwise one that never stopped."""

import copy
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import serializers
from hypothesis import given, settings
from hypothesis import strategies as st

import mixprec
from tests.cases import tries
from tests.kfac.networks import batch, build, loss
from tests.kfac.references import assert_same, layer_of, optimizer_of, state_of, wrapped

NETWORK = "conv+BN+ReLU"


def _optimizer(seed=0):
    rule, scale = chainer.optimizers.MomentumSGD(0.01), mixprec.DynamicLossScale(init=2.0**10, interval=3, hysteresis=1)
    return wrapped(build(NETWORK, seed), rule, compute="float16", loss_scale=scale, factor_every=2, inverse_every=4)


def _run(optimizer, plan, first=0):
    """Runs steps, "x" for one with inf in an image."""
    for step, mark in enumerate(plan, first):
        x, t = batch(step, (4, 3, 6, 6))
        if mark == "x":
            x[0, 0, 0, 0] = np.inf
        optimizer.update(loss, optimizer.target, x, t)


def _state(optimizer, kfac):
    statistics = {name: np.array(link.avg_mean) for name, link in optimizer.target.namedlinks() if hasattr(link, "eps")}
    counters = {"scale": np.array(optimizer.loss_scale), "t": np.array(optimizer.t), "kind": np.array(kfac.kind)}
    return {**state_of(optimizer, kfac), **statistics, **counters}


class Files:
    """The files of one run in one of Chainer's formats."""

    def __init__(self, form, folder):
        self._form, self._folder = form, folder

    def save(self, optimizer, parts=("optimizer", "model")):
        for part in parts:
            what = optimizer if part == "optimizer" else optimizer.target
            getattr(serializers, f"save_{self._form}")(self._folder / f"{part}.{self._form}", what)

    def load(self, optimizer, parts=("optimizer", "model")):
        for part in parts:
            what = optimizer if part == "optimizer" else optimizer.target
            getattr(serializers, f"load_{self._form}")(self._folder / f"{part}.{self._form}", what)


@pytest.fixture(params=["npz", "hdf5"])
def files(request, tmp_path):
    if request.param == "hdf5":
        pytest.importorskip("h5py")
    return Files(request.param, tmp_path)


ORDERS = ("optimizer", "model"), ("model", "optimizer")
PLANS = [
    ("..", "......", ORDERS[0]),
    ("x.x", ".x....", ORDERS[1]),
    ("." * 9, "x......x..", ORDERS[0]),
    ("." * 10 + "x", "." * 12, ORDERS[1]),
    ("", "..x.", ORDERS[0]),
]


@pytest.mark.parametrize(("before", "after", "order"), PLANS)
def test_a_resumed_run_is_bitwise_one_that_never_stopped(files, before, after, order):
    interrupted, its_kfac = _optimizer()
    _run(interrupted, before)
    files.save(interrupted)
    resumed, kfac = _optimizer(seed=1)
    _run(resumed, "...")  # of another run, all of which goes
    files.load(resumed, order)
    if before:  # momentum begins with the first step
        assert_same(_state(resumed, kfac), _state(interrupted, its_kfac))
    for optimizer in (interrupted, resumed):
        _run(optimizer, after, len(before))
    assert_same(_state(resumed, kfac), _state(interrupted, its_kfac))


@pytest.mark.slow
@settings(max_examples=tries(8))
@given(before=st.text("..x", min_size=1, max_size=20), after=st.text("..x", max_size=14))
def test_a_run_resumes_bitwise_wherever_it_stopped(tmp_path_factory, before, after):
    files = Files("npz", tmp_path_factory.mktemp("files"))
    interrupted, its_kfac = _optimizer()
    _run(interrupted, before)
    files.save(interrupted)
    resumed, kfac = _optimizer(seed=1)
    files.load(resumed)
    for optimizer in (interrupted, resumed):
        _run(optimizer, after, len(before))
    assert_same(_state(resumed, kfac), _state(interrupted, its_kfac))


def test_a_file_without_k_fac(files):
    """One warning; the run is that of a K-FAC that begins."""
    model = build(NETWORK)
    scale = mixprec.DynamicLossScale(init=2.0**10, interval=3, hysteresis=1)
    plain = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(0.01), scale).setup(model)
    mixprec.convert(model)
    plain.update(loss, model, *batch(0))
    files.save(plain)
    resumed, kfac = _optimizer(seed=1)
    _run(resumed, "." * 12)
    assert kfac.state()
    with pytest.warns(UserWarning, match="^the snapshot has no matrices of K-FAC: they start afresh$") as caught:
        files.load(resumed)
    assert len(caught) == 1
    assert (kfac.state(), kfac.kind) == ({}, 2)
    _run(resumed, "..")
    assert resumed.skipped == 0


OTHERS = {
    "layers": (lambda: build("two of all"), "the snapshot has matrices of K-FAC of /"),
    "outputs": (lambda: build("linear", last=5), r"of /1/W with shape \(5, 6\); in the model it has \(4, 6\)"),
    "a bias": (lambda: build("linear"), "matrices of K-FAC of /0/b, which the model lacks"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_file_of_another_model_is_refused_and_nothing_changes(files, other):
    """In one line; momentum and counters are what they were, too."""
    make, message = OTHERS[other]
    saved, _ = wrapped(source := make(), chainer.optimizers.MomentumSGD(0.01))
    for step in range(2):
        saved.update(loss, source, *batch(step))
    files.save(saved, ["optimizer"])
    model = build("linear without bias" if other == "a bias" else "linear")
    optimizer, kfac = wrapped(model, chainer.optimizers.MomentumSGD(0.01))
    optimizer.update(loss, model, *batch(0))
    before = {**state_of(optimizer, kfac), "t": np.array(optimizer.t), "kind": np.array(kfac.kind)}
    with pytest.raises(ValueError, match=message) as error:
        files.load(optimizer, ["optimizer"])
    assert "\n" not in str(error.value)
    assert_same({**state_of(optimizer, kfac), "t": np.array(optimizer.t), "kind": np.array(kfac.kind)}, before)
    optimizer.update(loss, model, *batch(1))


def test_a_file_has_one_triangle_of_each_matrix(tmp_path):
    optimizer, kfac = _optimizer()
    _run(optimizer, ".")
    serializers.save_npz(tmp_path / "optimizer.npz", optimizer)
    with np.load(tmp_path / "optimizer.npz") as file:
        sizes = {name: file[name].shape for name in file if "/kfac/" in name and "averages0" in name}
    layers = list(kfac._collector.layers.values())
    assert len(sizes) == len(layers)
    for name, shape in sizes.items():
        groups, rows = layers[int(name.split("/")[-2])].averages[0].shape[:2]
        if groups != 3:
            assert np.prod(shape) == groups * rows * (rows + 1) // 2


COPIES = [
    (copy.deepcopy, ""),
    (copy.deepcopy, "." * 9 + "x"),
    (lambda optimizer: pickle.loads(pickle.dumps(optimizer)), ".."),
]


@pytest.mark.parametrize(("duplicate", "before"), COPIES)
def test_a_copy_goes_on_like_the_original_and_neither_touches_the_other(duplicate, before):
    original, kfac = _optimizer()
    _run(original, before)
    start = _state(original, kfac)
    copied = duplicate(original)
    its_kfac = copied._preconditioner
    assert_same(_state(copied, its_kfac), start)
    _run(copied, "...x...", len(before))
    assert_same(_state(original, kfac), start)
    _run(original, "...x...", len(before))
    assert_same(_state(copied, its_kfac), _state(original, kfac))


def test_a_copy_in_the_middle_of_a_step():
    """Between backward and update: sums and gradients are there."""
    original, kfac = _optimizer()
    _run(original, "..")
    original.target.cleargrads()
    original.scale_loss(loss(original.target, *batch(2))).backward()
    copied = copy.deepcopy(original)
    for optimizer in (original, copied):
        optimizer.update()
    assert_same(_state(copied, copied._preconditioner), _state(original, kfac))


def test_a_k_fac_that_is_not_set_up_is_copied():
    for again in (copy.deepcopy, lambda kfac: pickle.loads(pickle.dumps(kfac))):
        kfac = again(mixprec.KFAC(0.3, kl_clip=0.1))
        assert (kfac.damping, kfac.kl_clip) == (0.3, 0.1)
        model = build("linear")
        optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD(), preconditioner=kfac).setup(model)
        mixprec.convert(model, compute="float32")
        optimizer.update(loss, model, *batch(0))
        assert optimizer.t == 1


@pytest.mark.slow
def test_uninitialized_parameters(files):
    """Layers whose shapes the first call finds, and files for a model in which they are not known yet."""

    def lazy():
        model = chainer.Sequential(L.Linear(None, 6), F.tanh, L.Linear(None, 4))
        found = optimizer_of(model, chainer.optimizers.MomentumSGD(0.01))
        mixprec.convert(model, compute="float32")
        return found

    saved, kfac = lazy()
    saved.update(loss, saved.target, *batch(0, (8, 5)))
    files.save(saved)
    for order in (("model", "optimizer"), ("optimizer", "model")):
        resumed, its_kfac = lazy()
        files.load(resumed, order)
        assert_same(state_of(resumed, its_kfac), state_of(saved, kfac))
        assert layer_of(its_kfac, "/0/W").steps == 1
    for optimizer in (saved, resumed):
        optimizer.update(loss, optimizer.target, *batch(1, (8, 5)))
    assert_same(state_of(resumed, its_kfac), state_of(saved, kfac))
