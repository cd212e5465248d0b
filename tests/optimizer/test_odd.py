"""The promises in programs that do odd, but legal, things."""

import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers, serializers
from chainer.optimizers.sgd import SGDRule

import mixprec
from mixprec.optimizer import UnscaledBackward
from mixprec.precision import pass_scales
from mixprec.precision.master_arrays import master_of
from tests.comparison import assert_equal

X = np.random.RandomState(0).normal(size=(8, 3)).astype(np.float32)
BAD = np.full_like(X, np.inf)


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = L.Linear(3, 4, initialW=np.linspace(-1, 1, 12, dtype="f").reshape(4, 3))
            self.bn = L.BatchNormalization(4)
            self.last = L.Linear(4, 2, initialW=0.5)

    def forward(self, x):
        return self.last(self.bn(self.first(x)))


def _optimizer(inner=None, loss_scale=8, net=Net, **options):
    model = net()
    mixprec.convert(model, **options)
    return mixprec.MixedPrecisionOptimizer(inner or optimizers.SGD(lr=0.1), loss_scale).setup(model)


def _loss(y):
    return F.average(F.square(y))


def _step(optimizer, x=X):
    optimizer.update(lambda: _loss(optimizer.target(x)))


def _arrays(optimizer):
    saved = serializers.DictionarySerializer()
    optimizer.target.serialize(saved)
    return {name: np.array(value) for name, value in saved.target.items()}


def _spoil(optimizer):
    for param in optimizer.target.params(False):
        param.grad[...] = np.inf


class Rebinding(SGDRule):
    """Makes a new array in every update, and keeps one beside its state."""

    def update_core(self, param):
        self.total = getattr(self, "total", 0) + np.abs(param.grad)
        param.array = param.array - np.float32(0.1) * param.grad


class RebindingSGD(optimizers.SGD):
    def create_update_rule(self):
        return Rebinding(self.hyperparam)


def test_a_rule_that_makes_new_arrays_is_undone_and_written_back_in_place():
    """Promises 2 and 7: also what such a rule keeps outside of its state."""
    optimizer, reference = _optimizer(RebindingSGD(lr=0.1)), _optimizer()
    arrays = [param.array for param in optimizer.target.params()]
    for each in (optimizer, reference):
        _step(each)
    assert_equal(_arrays(optimizer), _arrays(reference))
    before, total = _arrays(optimizer), optimizer.target.last.W.update_rule.total.copy()
    optimizer.add_hook(_spoil, name="spoil")
    _step(optimizer)
    assert optimizer.last_step_skipped
    assert_equal(_arrays(optimizer), before)
    np.testing.assert_array_equal(optimizer.target.last.W.update_rule.total, total)
    assert all(param.array is array for param, array in zip(optimizer.target.params(), arrays, strict=True))


def test_a_forward_pass_before_update_belongs_to_the_step():
    """Promise 2: ``y = model(x); optimizer.update(loss, y)``, as Chainer's DCGAN example does it."""
    optimizer = _optimizer()
    _step(optimizer)
    before = _arrays(optimizer)
    with np.errstate(invalid="ignore"):
        y = optimizer.target(BAD)
    optimizer.update(_loss, y)
    assert optimizer.last_step_skipped
    assert_equal(_arrays(optimizer), before)


def test_a_loss_function_that_raises_ends_its_step():
    """What it did to the statistics is not undone by a later skip."""
    optimizer = _optimizer()

    def raising():
        optimizer.target(X)
        raise KeyError

    with pytest.raises(KeyError):
        optimizer.update(raising)
    before = _arrays(optimizer)
    _step(optimizer, BAD)
    assert optimizer.last_step_skipped
    assert_equal(_arrays(optimizer), before)


def test_another_thread_runs_backward_on_a_model_of_its_own():
    """Promise 8: the notes of one model are nobody else's business."""
    optimizer, other = _optimizer(), L.Linear(3, 1)
    stop = threading.Event()

    def run():
        while not stop.is_set():
            other.cleargrads()
            F.sum(other(X)).backward()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(30):
            _step(optimizer)
    finally:
        stop.set()
        thread.join()
    reference = _optimizer()
    for _ in range(30):
        _step(reference)
    assert_equal(_arrays(optimizer), _arrays(reference))


def test_a_new_optimizer_starts_from_the_masters_of_the_old_one():
    """Promise 5 without a file: 20 steps of 1e-4 on a weight of 1, with ten optimizers after each other."""
    model = L.Linear(1, 1, nobias=True, initialW=1.0)
    mixprec.convert(model)
    for _ in range(10):
        optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=1e-4), None).setup(model)
        for _ in range(2):
            model.W.grad = np.ones_like(model.W.array)
            optimizer.update()
    np.testing.assert_allclose(optimizer.master(model.W).array, 0.998, rtol=1e-6)
    assert list(model.local_link_hooks) == []


def test_the_master_of_somebody_elses_parameter():
    with pytest.raises(ValueError, match="W is not a parameter of the model that is optimized"):
        _optimizer().master(L.Linear(2, 2).W)


@pytest.mark.parametrize("factor", [1, 8])
def test_addgrads_carries_the_scale(factor):
    """Promise 6: gradients of a replica, as ParallelUpdater and hand-written data parallelism add them."""
    optimizer, alone = _optimizer(), _optimizer()
    replica = optimizer.target.copy("copy")
    optimizer.target.cleargrads()
    replica.cleargrads()
    loss = _loss(replica(X))
    (optimizer.scale_loss(loss) if factor == 8 else loss).backward()
    optimizer.target.addgrads(replica)
    if factor == 1:
        with pytest.raises(UnscaledBackward):
            optimizer.update()
        return
    optimizer.update()
    _step(alone)
    for found, expected in zip(optimizer.target.params(), alone.target.params(), strict=True):
        np.testing.assert_array_equal(optimizer.master(found).array, alone.master(expected).array)


@pytest.mark.parametrize("name", ["links", "namedlinks", "children", "last"])
def test_a_hook_that_walks_the_links_is_told_where_the_masters_are(name):
    """Promise 3: in the links it would find scaled gradients in FP16."""
    optimizer = _optimizer()
    optimizer.add_hook(lambda inner: getattr(inner.target, name)(), name="walk")
    with pytest.raises(AttributeError, match=r"FP32 masters in params\(\) and namedparams\(\)"):
        _step(optimizer)


def test_a_hook_that_raises_leaves_everything_as_it_was():
    """Ctrl-C in a hook after the update: parameters, masters and counters are those before the step."""
    optimizer = _optimizer(optimizers.MomentumSGD())
    _step(optimizer)
    before = _arrays(optimizer)

    def interrupt(inner):
        raise KeyboardInterrupt

    optimizer.add_hook(interrupt, name="interrupt", timing="post")
    with pytest.raises(KeyboardInterrupt):
        optimizer.update(lambda: F.sum(optimizer.target.last(np.ones((1, 4), "f"))))
    assert_equal(_arrays(optimizer), before)
    assert optimizer.t == 1


@pytest.mark.parametrize("kind", ["shared", "sub-model", "two setups"])
def test_accumulation_where_a_parameter_is_met_twice(kind):
    """Promise 6: a shared parameter, and optimizers over a model and a part of it."""
    shared = L.Linear(3, 3, initialW=np.eye(3, dtype="f"))
    model = chainer.ChainList(shared, shared) if kind == "shared" else chainer.ChainList(shared)
    mixprec.convert(model)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=0.5), 8).setup(model)
    if kind == "sub-model":
        mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=0.5), 8).setup(shared)
    if kind == "two setups":
        optimizer.setup(shared)
    model.cleargrads()
    for _ in range(2):
        optimizer.scale_loss(F.sum(shared(X))).backward()
    optimizer.update()
    gradient = np.broadcast_to(2 * X.astype(np.float16).sum(0, dtype=np.float32), (3, 3))
    times = 2 if kind == "shared" else 1
    np.testing.assert_allclose(
        optimizer.master(shared.W).array, np.eye(3) - times * 0.5 * gradient, rtol=2**-9, atol=2**-9
    )


def test_forget():
    """``F.forget`` runs a backward pass inside of the backward pass, whose scale it has."""
    optimizer, reference = _optimizer(), _optimizer()
    optimizer.update(lambda: _loss(F.forget(optimizer.target, chainer.Variable(X))))
    _step(reference)
    for found, expected in zip(optimizer.target.params(), reference.target.params(), strict=True):
        np.testing.assert_array_equal(optimizer.master(found).array, reference.master(expected).array)


def test_a_parameter_that_is_added_to_the_loss_has_a_gradient_of_its_own():
    """An addition hands its gradient on. Zeros in it are none in the loss scale, which a static one keeps."""
    model = chainer.Chain()
    with model.init_scope():
        model.b = chainer.Parameter(np.array(4, np.float32))
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(1.0), 8, zero_gradients=True).setup(model)
    for left in (3, 2, 1):
        optimizer.update(lambda: model.b + np.array(1, np.float32))
        assert (model.b.array, model.b.grad, optimizer.skipped) == (left, 0, 0)
    for _ in range(2):  # the loss is the parameter
        optimizer.scale_loss(model.b).backward()
    assert model.b.grad == 16


def test_zerograds_instead_of_cleargrads():
    """Zeros can be added to at any scale, step after step."""
    optimizer, reference = _optimizer(loss_scale=mixprec.DynamicLossScale(init=8.0, interval=1)), _optimizer()
    for _ in range(3):
        loss = _loss(optimizer.target(X))
        with pytest.warns(DeprecationWarning, match="zerograd"):
            optimizer.target.zerograds()
        optimizer.scale_loss(loss).backward()
        optimizer.update()
        _step(reference)
    for found, expected in zip(optimizer.target.params(), reference.target.params(), strict=True):
        np.testing.assert_allclose(found.array, expected.array, rtol=2**-8, atol=2**-9)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_the_error_of_the_debug_mode_names_the_loss_scale(layout):
    optimizer = _optimizer(loss_scale=2.0**24, layout=layout)
    message = r"^NaN is detected on .*, at a loss scale of 16777216\.0: if that is an overflow, .* skips the step$"
    with chainer.using_config("debug", True), pytest.raises(RuntimeError, match=message):
        _step(optimizer, X * 100)
    _step(optimizer, X * 100)
    assert optimizer.skipped == 1


@pytest.mark.parametrize("error", [StopIteration, None])
def test_a_loss_function_that_cannot_be_called_again(error):
    """Promise 9: the overflow is the news, not what the second look at the batch met; with gradients inside, too."""
    twice = {"layout": "nchw", "fuse": False}  # can be differentiated twice
    optimizer = _optimizer(loss_scale=mixprec.DynamicLossScale(patience=1), **twice)
    batches = iter([BAD])

    def lossfun():
        x = chainer.Variable(next(batches) if error else BAD)
        loss = _loss(optimizer.target.last(optimizer.target.first(x)))
        (gradient,) = chainer.grad([loss], [x], enable_double_backprop=True)
        return loss + F.sum(gradient)

    with pytest.raises(mixprec.LossScaleExhausted) as caught:
        optimizer.update(lossfun)
    expected = r"a second look at the batch failed (StopIteration: )" if error else "/first (Linear"
    assert expected in str(caught.value)


class Remembering(chainer.Link):
    """Keeps its last batch, and other things, as persistent values."""

    def __init__(self):
        super().__init__()
        self.last, self.other = np.zeros((1, 3), np.float32), np.ones(2, np.float32)
        for name in ("last", "other"):
            self.register_persistent(name)
        with self.init_scope():
            self.scale = chainer.Parameter(np.ones((), np.float32))

    def forward(self, x):
        self.last = x
        self.other = None if self.other is not None else np.ones(2, np.float32)
        return F.average(x * F.broadcast_to(self.scale, x.shape))


def test_persistent_values_that_a_link_replaces():
    """Promise 2: the objects from before the step come back, and nobody writes into the user's batch."""
    model = Remembering()
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(), 1).setup(model)
    first, other, batch, bad = model.last, model.other, X.copy(), BAD.copy()
    optimizer.update(model, bad)
    assert optimizer.last_step_skipped
    assert model.last is first
    assert model.other is other
    np.testing.assert_array_equal(bad, BAD)
    optimizer.update(model, batch)
    assert model.last is batch
    assert model.other is None


def test_a_copy_of_a_link_has_statistics_of_its_own():
    """``Link.copy()`` shares the hooks of the original: a teacher, a target network."""
    optimizer = _optimizer()
    teacher = optimizer.target.copy()
    teacher.bn.avg_mean, teacher.bn.avg_var = np.full(4, 5, np.float32), np.ones(4, np.float32)
    other = mixprec.MixedPrecisionOptimizer(optimizers.SGD(), 8).setup(teacher)
    before = _arrays(optimizer)
    teacher(X)
    _step(optimizer, BAD)
    assert optimizer.last_step_skipped
    assert_equal(_arrays(optimizer), before)
    assert other.target is teacher
    assert not np.array_equal(teacher.bn.avg_mean, np.full(4, 5))


@pytest.mark.parametrize("how", [{"strict": False}, {"ignore_names": lambda name: "mixprec" in name}])
def test_a_file_without_the_wrappers_names_read_leniently(how):
    """Promise 5: the loss scale starts afresh and says so, also if the deserializer minds nothing."""
    optimizer = _optimizer(loss_scale=mixprec.DynamicLossScale(init=8.0))
    _step(optimizer, BAD)
    saved = serializers.DictionarySerializer()
    optimizer.serialize(saved)
    if "strict" in how:
        saved.target = {name: value for name, value in saved.target.items() if "mixprec" not in name}
    with pytest.warns(UserWarning, match="no loss scale: it starts afresh at 8, and skipped at 0"):
        serializers.NpzDeserializer(saved.target, **how).load(optimizer)
    assert (optimizer.loss_scale, optimizer.skipped) == (8.0, 0)


def test_a_master_beyond_fp16_is_inf_in_the_model_and_no_warning():
    """The gradients of the next step will tell."""
    model = L.Linear(1, 1, nobias=True, initialW=1.0)
    mixprec.convert(model)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=1.0), None).setup(model)
    model.W.grad = np.full((1, 1), -60000, np.float16)
    optimizer.update()
    optimizer.update()
    assert model.W.array == np.inf
    assert optimizer.master(model.W).array == 120001


def test_plain_chainer_goes_on_with_gradients_that_a_step_has_used():
    """It divides by the same scale."""
    model = L.Linear(1, 1, nobias=True, initialW=1.0)
    mixprec.convert(model, compute="float32")
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=0.25), 8).setup(model)
    optimizer.update(lambda: F.sum(model(np.ones((1, 1), np.float32))))
    optimizers.SGD(lr=0.25).setup(model).update()
    assert model.W.array == 0.5


# --- looks, moves and sums


def _one_weight(loss_scale=8):
    """One weight of 1, SGD with lr 0.25; the gradient of :func:`_unit` is 1."""
    model = L.Linear(1, 1, nobias=True, initialW=1.0)
    mixprec.convert(model)
    return mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=0.25), loss_scale).setup(model), model


def _unit(model):
    return F.sum(model(np.ones((1, 1), np.float32)))


@pytest.mark.parametrize(("look", "timing"), [("master", "post"), ("save", "post"), ("gradients", "pre")])
def test_a_hook_may_look_at_the_model(look, timing):
    """In the middle of a step the master is ahead of the parameter; nobody takes that for a write of the user's."""
    optimizer, model = _one_weight()
    seen = []

    def hook(inner):
        if look == "master":
            seen.append(optimizer.master(model.W).array.item())
        elif look == "save":
            saved = serializers.DictionarySerializer()
            model.serialize(saved)
            seen.append(saved.target["W"].item())
        else:
            seen.append(dict(optimizer.unscaled_gradients())["/W"].item())

    optimizer.add_hook(hook, name="look", timing=timing)
    optimizer.update(lambda: _unit(model))
    assert model.W.array == optimizer.master(model.W).array == 0.75
    assert seen == [1.0 if look == "gradients" or timing == "pre" else 0.75]


def test_a_gradient_that_was_used_moves_with_its_parameter():
    """It still is the gradient of the last step, and still scaled."""
    optimizer, model = _one_weight()
    optimizer.update(lambda: _unit(model))

    def to_device(param, device):  # as Chainer's does between two devices; here is only one
        param.grad = param.grad.copy()

    pass_scales._moving(to_device)(model.W, "@numpy")
    optimizer.update()
    assert model.W.array == 0.5


def test_a_master_moves_with_its_parameter(monkeypatch):
    """Averages of the weights read it before a step does."""
    _, model = _one_weight()
    sent = []
    monkeypatch.setattr(type(model.device), "send", lambda device, array: sent.append(array.copy()) or sent[-1])
    pass_scales._moving(lambda param, device: None)(model.W, "@numpy")
    assert master_of(model.W) is sent[0]
    assert (sent[0].dtype, sent[0].item()) == (np.float32, 1)


def _backward(optimizer, model):
    chainer.backward([_with_gradient(optimizer.scale_loss(_unit(model)))])


def _with_gradient(loss):
    loss.grad = np.ones_like(loss.array)
    return loss


def _grad(optimizer, model):
    chainer.grad([optimizer.scale_loss(_unit(model))], [model.W], set_grad=True)


def _grad_with_a_scale(optimizer, model):
    chainer.grad([_unit(model)], [model.W], set_grad=True, loss_scale=8)


def _a_number(optimizer, model):
    optimizer.scale_loss(_unit(model)).backward()
    model.W.grad *= 0.5
    (_unit(model) * 0.5).backward(loss_scale=8)


@pytest.mark.parametrize("backward", [_backward, _grad, _grad_with_a_scale, _a_number])
def test_every_way_to_a_gradient_carries_its_scale(backward):
    optimizer, model = _one_weight()
    model.cleargrads()
    backward(optimizer, model)
    optimizer.update()
    assert model.W.array == 0.75


def test_addgrads_of_a_replica_that_lacks_a_gradient():
    model = _converted_pair()
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=0.25), 8).setup(model)
    replica = model.copy("copy")
    for each in (model, replica):
        each.cleargrads()
    optimizer.scale_loss(_unit(model[0]) + _unit(model[1])).backward()
    optimizer.scale_loss(_unit(replica[0])).backward()
    model.addgrads(replica)
    optimizer.update()
    assert [link.W.array.item() for link in model] == [0.5, 0.75]


def _converted_pair():
    model = chainer.ChainList(*(L.Linear(1, 1, nobias=True, initialW=1.0) for _ in "ab"))
    mixprec.convert(model)
    return model


def test_a_graph_that_reaches_a_parameter_without_a_gradient_for_it():
    """A blocked branch adds nothing, and leaves the note as it was."""

    class Block(chainer.FunctionNode):
        def forward(self, inputs):
            return inputs

        def backward(self, indexes, grad_outputs):
            return (None,)

    model = _converted_pair()
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=0.25), 8).setup(model)
    model.cleargrads()
    model[1].W.grad = np.ones((1, 1), np.float16)
    (blocked,) = Block().apply((_unit(model[1]),))
    optimizer.scale_loss(_unit(model[0]) + blocked).backward()
    optimizer.update()
    assert [link.W.array.item() for link in model] == [0.75, 0.75]


def test_everything_in_the_state_of_a_rule_is_undone():
    """Promise 2: names that are new, and values that are neither numbers nor arrays."""

    class Odd(SGDRule):
        def init_state(self, param):
            self.state["count"], self.state["kind"] = np.float32(0), None

        def update_core(self, param):
            self.state["count"] = np.float32(self.state["count"] + 1)
            self.state["kind"], self.state["extra"] = "moved", param.grad.copy()
            self.total = getattr(self, "total", 0) + np.abs(param.grad)

    class OddSGD(optimizers.SGD):
        def create_update_rule(self):
            return Odd(self.hyperparam)

    optimizer = _optimizer(OddSGD())
    optimizer.add_hook(_spoil, name="spoil")
    _step(optimizer)
    rule = optimizer.target.last.W.update_rule
    assert not hasattr(rule, "total")
    assert rule.state is None
    optimizer.remove_hook("spoil")
    _step(optimizer)
    before = dict(rule.state)
    optimizer.add_hook(_spoil, name="spoil")
    _step(optimizer)
    assert rule.state == before
    assert (optimizer.skipped, optimizer.t) == (2, 1)


def test_a_step_that_fails_leaves_no_statistics_behind():
    """They are as before its forward pass, and the next skip does not go further back."""
    optimizer = _optimizer()
    _step(optimizer)
    before = _arrays(optimizer)
    optimizer.target.cleargrads()
    _loss(optimizer.target(X)).backward()
    with pytest.raises(UnscaledBackward):
        optimizer.update()
    assert_equal(_arrays(optimizer), before)
    _step(optimizer)
    after = _arrays(optimizer)
    _step(optimizer, BAD)
    assert optimizer.last_step_skipped
    assert_equal(_arrays(optimizer), after)
