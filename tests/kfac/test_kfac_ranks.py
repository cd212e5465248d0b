"""K-FAC on several ranks, which are threads, beside one process with the images of all."""

import collections
import functools
import io
import threading

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import serializers

import mixprec
from mixprec.backends.cpu.second_moments import SecondMoments
from mixprec.kfac import sharing
from mixprec.native.native_library import library
from tests.kfac.runs_of_ranks import (  # noqa: F401  (a fixture)
    IMAGES,
    Network,
    Run,
    assert_close,
    assert_same_bits,
    batch,
    threads,
)
from tests.stand_ins.rank_threads import ThreadTransport

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
STEPS = 13  # the first 8 compute inverses each
SPARSE = {"factor_every": 2, "inverse_every": 4}


def _trained(communicator, steps=STEPS, **settings):
    run = Run(communicator, **settings)
    for step in range(steps):
        run.step(*batch(step))
    return run.state()


# --- one process with the images of all


@pytest.mark.parametrize("kl_clip", [slow(None), 1e-4])
@pytest.mark.parametrize("size", [2, slow(4)])
def test_ranks_are_one_process_with_all_images(threads, size, kl_clip):  # noqa: F811
    settings = {**SPARSE, "kl_clip": kl_clip}
    first, *others = threads(size, lambda communicator: _trained(communicator, **settings))
    for other in others:
        assert_same_bits(other, first)
    expected = _trained(None, **settings)
    assert_close(first, expected)
    if kl_clip is not None:
        without = _trained(None, 1, **SPARSE)["/predictor/out/W"]
        assert not np.allclose(_trained(None, 1, **settings)["/predictor/out/W"], without)  # it counts here


class Branches(chainer.Chain):
    """Two layers beside each other, which come in this order or the other one."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.one, self.other = L.Linear(3 * 7 * 7, 5), L.Linear(3 * 7 * 7, 5, nobias=True)
        self.is_turned = False

    def forward(self, x):
        first, second = (self.other, self.one) if self.is_turned else (self.one, self.other)
        h = first(x)
        return h + second(x)


def test_layers_come_in_another_order_on_another_rank(threads):  # noqa: F811
    def trained(communicator):
        run = Run(communicator, network=Branches(), kl_clip=1e-4)
        run.model.predictor.is_turned = communicator is not None and communicator.rank == 1
        for step in range(2):
            run.step(*batch(step))
        return list(run.kfac._collector.layers), run.state()

    (order, first), (of_second, second) = threads(2, trained)
    assert of_second == order[::-1]
    assert_same_bits(first, second)
    assert_close(first, trained(None)[1])


# --- overflows


@pytest.mark.skipif(library() is None, reason="needs the native library")
@pytest.mark.parametrize("size", [2, slow(4)])
def test_overflows_on_single_ranks(threads, size):  # noqa: F811
    """All ranks skip, nothing is kept of such a step; after each all have the same bits."""
    planted = {0: 0, 1: size - 1, 4: 0, 10: size - 1, 12: 0}  # rank by step: plain ones and with new inverses

    def trained(communicator):
        scale = mixprec.DynamicLossScale(init=2.0**10, interval=7)
        run = Run(communicator, "float16", scale, Network(norm=True), **SPARSE)
        states, kinds = [], []
        for step in range(18):
            x, t = batch(step)
            if planted.get(step) == communicator.rank:
                x[run.own][0, 0, 0, 0] = np.inf if step % 4 else np.nan
            kinds.append(run.kfac.kind)
            before = run.curvature()
            run.step(x, t)
            if step in planted and step:
                assert_same_bits(run.curvature(), before)
            states.append(run.state())
        return states, kinds, run.optimizer.skipped

    (first, kinds, skipped), *others = threads(size, trained)
    for states, of_other, _ in others:
        assert of_other == kinds
        for found, expected in zip(states, first, strict=True):
            assert_same_bits(found, expected)
    assert skipped == len(planted)
    assert set(kinds) == {0, 1, 2}


# --- shares


def test_each_matrix_is_inverted_once(threads, monkeypatch):  # noqa: F811
    calls, inverses = collections.defaultdict(list), SecondMoments.inverses

    def counted(self, moments, shifts, out):
        calls[threading.get_ident()].append(moments.shape)
        inverses(self, moments, shifts, out)

    monkeypatch.setattr(SecondMoments, "inverses", counted)
    threads(1, lambda communicator: _trained(communicator, 1))
    (alone,) = calls.values()
    assert len(alone) == 2 * 4
    calls.clear()
    threads(3, lambda communicator: _trained(communicator, 1))
    assert sorted(shape for shapes in calls.values() for shape in shapes) == sorted(alone)
    loads = [sum(groups * size**3 for groups, size, _ in shapes) for shapes in calls.values()]
    assert len(loads) == 3
    assert max(loads) == 2 * 36**3  # in two groups; all others together are less


# --- differences


def _error(function, kind=ValueError):
    with pytest.raises(kind) as caught:
        function()
    return str(caught.value)


@pytest.mark.parametrize("size", [2, slow(3)])
def test_a_layer_that_some_ranks_do_not_use(threads, size):  # noqa: F811
    """In the first step: an error on all, each time."""

    def run(communicator):
        made = Run(communicator)
        made.model.predictor.uses_extra = communicator.rank != size - 1
        made.model.predictor.uses_extra &= size != 3 or communicator.rank == 1
        return [_error(lambda: made.optimizer.update(made.model, *batch(0, 3))) for _ in range(2)]

    without = 1 if size == 2 else 0
    error = f"KFAC: /predictor/extra/W has no gradient on rank {without}, but has one on others"
    assert threads(size, run) == [[error] * 2] * size


@pytest.mark.slow
def test_a_layer_that_comes_later(threads):  # noqa: F811
    """On all ranks: they go on as one process would, which computes new inverses again."""

    def trained(communicator):
        run, kinds = Run(communicator, **SPARSE), []
        for step in range(21):
            run.model.predictor.uses_extra = step >= 11
            kinds.append(run.kfac.kind)
            run.step(*batch(step))
        return run.state(), kinds

    (first, kinds), (second, of_second) = threads(2, trained)
    expected, of_one = trained(None)
    assert kinds == of_second == of_one
    assert_same_bits(first, second)
    assert_close(first, expected)


def test_a_layer_that_comes_later_on_one_rank(threads):  # noqa: F811
    """An error on both in each step from the next one on that takes second moments."""

    def run(communicator):
        made, errors = Run(communicator, **SPARSE), []
        for step in range(12):
            made.model.predictor.uses_extra = step >= 9 and communicator.rank == 1
            try:
                made.step(*batch(step))
            except ValueError as error:
                errors.append((step, str(error)))
        return errors

    error = "KFAC: /predictor/extra/W has no gradient on rank 0, but has one on others"
    assert threads(2, run) == [[(10, error), (11, error)]] * 2


@pytest.mark.slow
def test_a_layer_that_one_rank_leaves_out_for_a_while(threads):  # noqa: F811
    """After the first step: the moments are those of the images that have come to it."""

    def trained(communicator):
        run = Run(communicator)
        states = []
        for step in range(6):
            run.model.predictor.uses_extra = step not in (2, 3) or communicator.rank == 0
            run.step(*batch(step))
            states.append(run.state())
        return states

    for first, second in zip(*threads(2, trained), strict=True):
        assert_same_bits(first, second)


def test_new_layers_of_one_rank_are_new_for_all(threads):  # noqa: F811
    """Or they would not compute inverses in the same steps."""
    found = threads(3, lambda each: sharing.look_for_new(["/a/W"], each.rank == 1, ThreadTransport(each.mpi_comm)))
    assert found == [True] * 3


@pytest.mark.parametrize(("name", "values"), [("damping", (0.1, 0.2)), ("inverse_every", (2, 4))])
def test_other_settings_are_an_error_at_setup(threads, name, values):  # noqa: F811
    def run(communicator):
        settings = {"inverse_every": 2, name: values[communicator.rank]}
        return _error(lambda: Run(communicator, **settings))

    error = f"{name} of K-FAC is {values[0]!r} on rank 0, {values[1]!r} on rank 1: give all ranks the same"
    assert threads(2, run) == [error] * 2


# --- snapshots


@pytest.mark.slow
def test_a_snapshot_of_rank_0_for_all(threads):  # noqa: F811
    """Between two steps with new inverses, while the host does not know yet whether steps were skipped."""

    def saved(made):
        files = io.BytesIO(), io.BytesIO()
        for file, target in zip(files, (made.model, made.optimizer), strict=True):
            serializers.save_npz(file, target)
        return [file.getvalue() for file in files]

    def uninterrupted(communicator):
        made, files = Run(communicator, **SPARSE), None
        for step in range(18):
            if step == 10:
                files = saved(made)
            made.step(*batch(step))
        return files, made.state()

    (files, expected), _ = threads(2, uninterrupted)

    def resumed(communicator):
        made = Run(communicator, **SPARSE)
        for file, target in zip(files, (made.model, made.optimizer), strict=True):
            serializers.load_npz(io.BytesIO(file), target)
        for step in range(10, 18):
            made.step(*batch(step))
        return made.state()

    for found in threads(2, resumed):
        assert_same_bits(found, expected)
