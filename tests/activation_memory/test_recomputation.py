"""``mixprec.recompute``: what a model does is the same bit for bit, and its memory is less."""

import copy
import gc
import pickle
import tracemalloc
from unittest import mock

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.backends.geometry import Following
from mixprec.functions.convolution import Convolution2D
from mixprec.precision.without_masters import CONVERSION
from tests import mpi
from tests.activation_memory.recomputed_programs import (
    COMPUTE,
    PROGRAMS,
    Net,
    assert_same,
    beside_blocks,
    gradients,
    loss_of,
    run,
    same,
    several_times,
)
from tests.cases import in_turn


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")  # of the step that is skipped
@pytest.mark.parametrize(("program", "compute"), in_turn(PROGRAMS, COMPUTE))
def test_all_that_steps_leave_is_the_same(program, compute):
    expected = run(program, same, compute)
    assert_same(run(program, mixprec.recompute, compute), expected)


@pytest.mark.parametrize("compute", ["float32", "float16"])
def test_the_order_of_three_gradients_may_be_another_one(compute):
    found, expected = (run(beside_blocks, again, compute, 1) for again in (mixprec.recompute, same))
    for one, other in zip(found, expected, strict=True):
        if one.dtype == np.float32:
            scale = abs(other).max() if other.size else 0
            np.testing.assert_allclose(one, other, rtol=0, atol=scale * (1e-5 if compute != "float16" else 5e-3))


class Watched(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.linear = L.Linear(4, 4)

    def forward(self, x):
        return F.sin(self.linear(x)) * 2


@pytest.mark.parametrize("convert", ["no", "before", "after"])
def test_a_link_is_called_once_more_in_the_backward_pass_only(convert):
    model = Watched()
    names, x = [name for name, _ in model.namedparams()], np.ones((2, 4), np.float32)
    if convert == "before":
        mixprec.convert(model)
    assert mixprec.recompute(model) is model
    if convert == "after":
        mixprec.convert(model)
    assert [name for name, _ in model.namedparams()] == names
    calls = []
    model.forward = lambda x, forward=model.forward: (calls.append(chainer.config.in_recomputing), forward(x))[1]
    with chainer.no_backprop_mode():
        model(x)
    assert calls == [False]
    calls.clear()
    y = model(x)
    assert y.creator_node.label in ("recompute(Watched)", "cast")
    F.sum(y).backward()
    assert calls == [False, True]
    mixprec.recompute(model, on=False)
    F.sum(model(x)).backward()
    assert calls == [False, True, False]


@pytest.mark.parametrize(
    "copied", [lambda link: link.copy(), copy.deepcopy, lambda link: pickle.loads(pickle.dumps(link))]
)
def test_a_mark_goes_where_the_link_goes(copied):
    model = mixprec.recompute(Watched())
    assert copied(model)(np.ones((2, 4), np.float32)).creator_node.label == "recompute(Watched)"


def test_what_is_no_link_and_no_function_is_refused():
    for what in (Watched, 3, "relu"):
        with pytest.raises(TypeError, match=r"^what must be a chainer\.Link or a function of variables"):
            mixprec.recompute(what)
    with pytest.raises(TypeError, match="on must be"):
        mixprec.recompute(F.relu, on=1)
    assert mixprec.recompute(mixprec.recompute(F.relu), on=False) is F.relu


def test_there_is_no_double_backprop():
    y = mixprec.recompute(F.sum)(chainer.Variable(np.ones((2, 4), np.float32)))
    with pytest.raises(RuntimeError, match=r"^recompute\(sum\) has no double backprop: .*"):
        y.backward(enable_double_backprop=True)


def test_chainer_grad_gets_gradients_and_leaves_none():
    found = []
    for again in (same, mixprec.recompute):
        model, loss = loss_of(several_times, again)
        wanted = [model.block.conv1.W, model.stem.b]
        found.append([gradient.array for gradient in chainer.grad([loss], wanted)])
        assert all(param.grad is None for param in model.params() if param.array is not None)
    assert_same(found[1], found[0])


def test_gradients_of_an_input_that_is_a_leaf_in_16_bits():
    found = []
    for again in (same, mixprec.recompute):
        x = chainer.Variable(np.random.RandomState(1).normal(size=(2, 3, 8, 8)).astype(np.float32))
        model, loss = loss_of(lambda net, x, again: again(net.stem)(x) + F.sin(net.stem(x)), again, "float16", x)
        loss.backward()
        found.append([x.grad, *gradients(model)])
    assert_same(found[1], found[0])


def _peak(again):
    model, x = Net(lambda net, x, again: again(deep)(net.stem(x), net), again), np.ones((8, 3, 32, 32), np.float32)
    mixprec.convert(model, compute="float32")
    model.cleargrads()
    F.sum(model(x)).backward()
    gc.collect()
    tracemalloc.start()
    try:
        F.sum(model(x)).backward()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def deep(h, net):
    for number in range(12):
        h = net._again(lambda h, number=number: F.relu(net.convs[number % 4](F.sin(F.exp(h * 0.1)))))(h)
    return h


@pytest.mark.slow
def test_memory_is_less():
    assert _peak(mixprec.recompute) < 0.6 * _peak(same)


def _following(state):
    return {turn: place.following for turn, place in state.convolution_sites.items()}


def test_what_is_fused_is_what_the_first_call_has_fused():
    """The sums that a convolution takes are decided by the call before, and are not those of two passes bit for bit."""
    model = Net(lambda net, x, again: again(net.block)(net.stem(x)), mixprec.recompute)
    mixprec.convert(model)
    state = vars(model.block.conv1)[CONVERSION]
    loss, decided = None, []
    for _ in range(2):
        with mock.patch.object(Convolution2D, "__init__", autospec=True, side_effect=Convolution2D.__init__) as made:
            loss = F.sum(model(np.ones((2, 3, 8, 8), np.float32)))
            first, following = len(made.mock_calls), _following(state)
            loss.backward()
        decided.append([call.kwargs["statistics"] for call in made.mock_calls])
        assert decided[-1][1:first] == decided[-1][first:]  # but for the stem
        assert _following(state) == following
    assert decided[0][1] is False
    assert decided[1][1] == Following(relu=True, add=False)


@pytest.mark.slow
def test_multi_node_batch_normalization_and_gradients_on_their_way_to_other_processes():
    mpi.run(
        2,
        """
        import chainer, chainermn, chainer.functions as F, chainer.links as L, numpy as np, mixprec
        from chainermn.links import MultiNodeBatchNormalization

        chainer.disable_experimental_feature_warning = True
        comm = chainermn.create_communicator("naive")
        images = np.random.RandomState(comm.rank).normal(3 * comm.rank, 1 + comm.rank, (4, 3, 8, 8)).astype(np.float32)

        class Net(chainer.Chain):
            def __init__(self):
                super().__init__()
                np.random.seed(0)
                with self.init_scope():
                    self.conv = L.Convolution2D(3, 8, 3, nobias=True)
                    self.bn = MultiNodeBatchNormalization(8, comm)
                    self.conv2 = L.Convolution2D(8, 8, 3, nobias=True)
                    self.bn2 = MultiNodeBatchNormalization(8, comm)

            def forward(self, x):
                h = F.relu(self.bn(self.conv(x), finetune=True))
                return F.mean(F.relu(self.bn2(self.conv2(h))) ** 2)

        def trained(again, convert):
            model = Net()
            again(model), again(model.bn)
            if convert:
                mixprec.convert(model)
            optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD(0.1), 8, communicator=comm).setup(model)
            for _ in range(3):
                optimizer.update(model, images)
            values = [param.array for _, param in sorted(model.namedparams())]
            values += [vars(bn)[name] for bn in (model.bn, model.bn2) for name in ("avg_mean", "avg_var", "N")]
            return [np.array(value).tobytes() for value in values]

        for convert in (False, True):
            assert trained(mixprec.recompute, convert) == trained(lambda link: link, convert)
        """,
    )
