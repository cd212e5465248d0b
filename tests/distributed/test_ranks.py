"""When gradients are sent, what other ranks change, parameters that get their shapes late, and errors."""

import copy
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers, serializers

import mixprec
from mixprec.graph_capture.graph_step import TrainingStep
from mixprec.optimizer.counted_losses import CountedLosses
from mixprec.precision.grad_scales import UnscaledBackward
from tests.distributed.runs import alone, assert_same_runs, batch, built, train
from tests.stand_ins.twin_transport import COMMUNICATOR, wrapped
from tests.stand_ins.update_pair import assert_same_bits, new_optimizer

pytestmark = pytest.mark.usefixtures("twins")


# When gradients are sent


def _traced(model, twins, optimizer, steps):
    """Returns for each step the events from the forward pass on: ``"pass"`` is the end of the backward pass."""
    traced = []
    for step in range(steps):
        twins.events.clear()

        def lossfun(step=step):
            loss = model(*batch(step))
            loss.creator_node.inputs[0].creator_node  # noqa: B018
            yield loss
            twins.events.append("pass")

        optimizer.update(lambda lossfun=lossfun: CountedLosses(lossfun(), 1))
        traced.append(list(twins.events))
    return traced


def test_buckets_start_during_the_backward_pass_from_the_second_step_on(twins):
    model, optimizer = built("float32", optimizers.SGD(), wrapped)
    first, *others = _traced(model, twins, optimizer, 3)
    assert first.index("pass") == 1  # after the check
    sizes = [size for _, size in first[2:]]
    for events in others:
        assert [size for event in events if event != "pass" for size in [event[1]]] == [2, *sizes]
        assert events.index("pass") == len(events) - 2  # what is left are numbers about the gradients
    params = list(model.params())
    assert sum(sizes[:-1]) == sum(param.size for param in params)
    assert sizes[-1] == 3 * len(params)


def test_nothing_starts_before_all_ranks_are_known_to_have_the_same_parameters(twins):
    twins.is_slow = True
    model, optimizer = built("float32", optimizers.SGD(), wrapped)
    for events in _traced(model, twins, optimizer, 3):
        assert events.index("pass") == 1


def test_slow_sums_are_waited_for(twins):
    twins.is_slow = True
    assert_same_runs(train, "float16", lambda: new_optimizer("LARS"))


def test_parts_may_be_frozen_or_have_rates_of_their_own():
    rates = {"/predictor/first/*": 0, "/predictor/norm/gamma": 0, "/predictor/out/*": 3.0}
    assert_same_runs(train, "float16", lambda: new_optimizer("MomentumSGD"), rates=rates)


def test_gradients_are_views_that_stay(twins):
    model, optimizer = built("float16", optimizers.SGD(), wrapped, allreduce_dtype="float16")
    optimizer.update(model, *batch(0))
    before = {name: param.grad for name, param in model.namedparams()}
    optimizer.update(model, *batch(1))
    for name, param in model.namedparams():
        assert param.grad is before[name], name
        assert param.grad.base is not None
        assert param.grad.strides == param.array.strides, name
    assert {param.dtype.name for param in model.params()} == {"float16", "float32"}


@pytest.mark.parametrize("dtype", [None, "bfloat16", np.float32])
def test_dtypes_of_sums(dtype, twins):
    """Sums in 16 bits round; FP32 parameters are never rounded."""
    model, optimizer = built("float16", optimizers.SGD(0.0), wrapped, loss_scale=1024, allreduce_dtype=dtype)
    plain, other = built("float16", optimizers.SGD(0.0), alone, loss_scale=1024)
    for step in range(2):
        optimizer.update(model, *batch(step))
        other.update(plain, *batch(step))
    bits = 8 if dtype == "bfloat16" else 24
    for (name, param), (_, expected) in zip(model.namedparams(), plain.namedparams(), strict=True):
        tolerance = 2.0**-bits if param.dtype == np.float16 else 0
        np.testing.assert_allclose(param.grad, expected.grad, rtol=tolerance, atol=tolerance, err_msg=name)


def test_other_ranks_count(twins):
    """The mean of 1 and 3 times a gradient is twice it, of float16 as well; inf on the other rank skips here."""
    model, optimizer = built("float16", optimizers.SGD(0.0), wrapped, loss_scale=64)
    plain, other = built("float16", optimizers.SGD(0.0), alone, loss_scale=64)
    twins.other = lambda array: array if array.dtype == np.float64 else 3 * array
    optimizer.update(model, *batch(0))
    other.update(plain, *batch(0))
    own = dict(other.unscaled_gradients())
    for name, gradient in optimizer.unscaled_gradients():
        np.testing.assert_array_equal(gradient, 2 * own[name], err_msg=name)
    twins.other = lambda array: array if array.dtype == np.float64 else np.full_like(array, np.inf)
    before = optimizer.t
    optimizer.update(model, *batch(0))
    assert optimizer.last_step_skipped
    assert optimizer.t == before


def test_a_gradient_that_only_the_other_rank_has(twins):
    """It is half of that, with the scale of the step; one that no rank has stays None."""
    model, optimizer = built("float16", optimizers.SGD(0.0), wrapped, loss_scale=64)
    extra = model.predictor.extra
    model.predictor.uses_extra = False
    optimizer.update(model, *batch(0))
    assert extra.W.grad is None

    def other(array):
        if array.ndim == 2:
            return np.broadcast_to([[1], [1], [64]], array.shape)
        return array if array.dtype == np.float64 else np.full_like(array, 32)

    twins.other = other
    for _ in range(2):
        optimizer.update(model, *batch(0))
        assert optimizer.t
        np.testing.assert_array_equal(dict(optimizer.unscaled_gradients())["/predictor/extra/W"], 32 / 64)


def test_other_scales_on_other_ranks_are_refused(twins):
    model, optimizer = built("float16", optimizers.SGD(), wrapped, loss_scale=64)
    optimizer.update(model, *batch(0))
    twins.other = lambda array: array * [[1], [1], [2]] if array.ndim == 2 else array
    with pytest.raises(UnscaledBackward, match="the gradient of /predictor/extra/W has parts of different loss scales"):
        optimizer.update(model, *batch(0))


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
def test_an_unscaled_pass_on_all_ranks(twins, compute):
    """Through FP16 it is refused by all, otherwise its gradients are averaged as they are."""
    model, optimizer = built(compute, optimizers.SGD(), wrapped, loss_scale=64)
    model.cleargrads()
    model(*batch(0)).backward()
    numbers = []
    twins.other = lambda array: numbers.append(array) or array
    if compute == "float16":
        with pytest.raises(UnscaledBackward, match="from a backward"):
            optimizer.update()
        assert np.isnan(numbers[-1][2]).all()  # so that they refuse it, too
    else:
        optimizer.update()
        assert (numbers[-1][2] == 1).all()
        assert optimizer.t == 1


# Parameters that get their shapes late


class Lazy(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.norm = L.BatchNormalization(axis=0)
            self.out = L.Linear(None, 4)
            self.later = L.Linear(None, 4)
        self.uses_later = False
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        h = self.out(self.norm(x))
        return F.sum((self.later(h) if self.uses_later else h) ** 2)


@pytest.mark.parametrize("several", [False, True])
def test_parameters_without_a_shape_are_sent_before_the_first_step(several, twins):
    """One forward pass more, of which nothing is left."""
    x = np.random.RandomState(0).normal(size=(5, 3)).astype("f")
    sides = []
    for make in (alone, wrapped):
        np.random.seed(0)
        model = Lazy()
        optimizer = make(optimizers.SGD()).setup(model)
        lossfun = (lambda model=model: iter([model(x)])) if several else (lambda model=model: model(x))
        with chainer.reporter.Reporter():
            optimizer.update(lossfun)
        sides.append({**dict(serialized(model)), "t": np.array(optimizer.t)})
        calls = model.calls
        model.uses_later = True
        for _ in range(2):
            optimizer.update(lossfun)
        assert model.calls == calls + 2
    assert calls == 2
    for name, expected in sides[0].items():
        assert_same_bits(sides[1][name], expected, name)
    sent = [size for event, size in twins.events if event == "broadcast"]
    assert sent == [4, 4, 3, 3, 4 * 3, 4 * 4]  # biases at setup, the others before their first steps


def serialized(link):
    file = {}
    serializers.DictionarySerializer(file).save(link)
    return {name: np.copy(value) for name, value in file.items()}


def test_your_own_backward_wants_them_before():
    model = Lazy()
    optimizer = wrapped(optimizers.SGD()).setup(model)
    optimizer.scale_loss(model(np.ones((5, 3), "f"))).backward()
    with pytest.raises(ValueError, match=r"/norm/beta was initialized after setup.*call the model once before setup"):
        optimizer.update()


# Errors


WRONG = [
    ({"communicator": "naive"}, r"communicator must be one of chainermn.create_communicator\(...\), or None"),
    ({"allreduce_dtype": "float16"}, "allreduce_dtype is the dtype of sums over processes, and needs a communicator"),
    ({"communicator": COMMUNICATOR, "allreduce_dtype": "int8"}, "allreduce_dtype must be one of float16, bfloat16"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_arguments(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mixprec.MixedPrecisionOptimizer(optimizers.SGD(), **settings)


def test_the_communicator_is_an_attribute():
    assert wrapped(optimizers.SGD()).communicator is COMMUNICATOR
    assert alone(optimizers.SGD()).communicator is None
    with pytest.raises(AttributeError, match="read-only"):
        alone(optimizers.SGD()).communicator = COMMUNICATOR


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickle.dumps])
def test_copies_are_refused(copied):
    with pytest.raises(TypeError, match="an optimizer with a communicator cannot be copied or pickled"):
        copied(wrapped(optimizers.SGD()))


def test_a_graph_is_refused():
    _, optimizer = built("float32", optimizers.SGD(), wrapped)
    step = mixprec.capture(optimizer)
    before = optimizer.t
    step(*batch(0))  # on a CPU there is no graph
    assert optimizer.t == before + 1
    assert "averaged over processes by MPI" in TrainingStep(optimizer, None, False).why_not()
