"""The search for a first loss scale [11]: no first step is lost, all is as if training had begun at the scale found."""

import contextlib
import tempfile

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers, serializers

import mixprec
from mixprec.functions import reset_dropout
from mixprec.precision import scale_search
from mixprec.precision.grad_scales import UnscaledBackward
from mixprec.training.accumulation import Accumulated
from tests.cases import first
from tests.stand_ins import device_stand_in
from tests.stand_ins.device_runs import Net, batch_of, state_of
from tests.stand_ins.twin_transport import COMMUNICATOR

INIT = 2.0**16
SEVERAL = "a step has several losses"


@pytest.fixture
def said(announced):
    """Returns a function that gives what has been announced, after which it may be announced anew."""

    def said():
        found = [record.getMessage() for record in announced.records if "not searched" in record.getMessage()]
        return [line.partition("(")[2].partition("):")[0] for line in found]

    return said


class Images(chainer.Chain):
    """All that a forward pass moves: running statistics, and the random state of dropout."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first, self.norm = L.Convolution2D(3, 8, 3, pad=1, nobias=True), L.BatchNormalization(8)
            self.second, self.out = L.Convolution2D(8, 8, 3, pad=1), L.Linear(8, 4)

    def forward(self, x):
        h = F.dropout(F.relu(self.norm(self.first(x))), 0.25)
        return self.out(F.mean(F.relu(self.second(h) + h), axis=(2, 3)))


INPUTS = {
    Net: lambda random: random.normal(size=(8, 6)).astype("f"),
    Images: lambda random: random.normal(size=(4, 3, 6, 6)).astype("f"),
}


def built(kind, compute="float16", init=INIT, rate=1e-3, how=mixprec.MixedPrecisionOptimizer, **settings):
    np.random.seed(0)
    scale = settings.pop("loss_scale", None) or mixprec.DynamicLossScale(init=init, **settings.pop("scale", {}))
    model = kind()
    optimizer = how(optimizers.MomentumSGD(rate), loss_scale=scale, **settings).setup(model)
    if compute is not None:
        mixprec.convert(model, compute=compute)
    return model, optimizer


def train(model, optimizer, gain, steps=12):
    """Runs steps; returns the scale after each."""
    np.random.seed(2)  # for dropout, Chainer's and mixprec's
    reset_dropout()
    random, scales = np.random.RandomState(1), []
    for _ in range(steps):
        x = INPUTS[type(model)](random)
        optimizer.update(lambda x: F.sum(F.square(model(x))) * np.float32(gain), x)
        scales.append(optimizer.loss_scale)
    return scales


def steps_lost(kind, compute, gain):
    model, optimizer = built(kind, compute, rate=1e-4 / gain)
    train(model, optimizer, gain)
    return optimizer.skipped


def assert_same_run(sides):
    """Compares all that files hold, and the parameters, of ``(model, optimizer)``; but whether a search is over."""
    states = []
    for model, optimizer in sides:
        parameters = {f"array of {name}": param.array for name, param in model.namedparams()}
        states.append({**state_of(optimizer), **parameters})
        states[-1].pop("optimizer/mixprec/loss_scale/searching", None)
    assert states[0].keys() == states[1].keys()
    for name, expected in states[1].items():
        np.testing.assert_array_equal(states[0][name], expected, err_msg=name)


PROGRAMS = [(Net, "float16", 30.0), (Images, "float16", 300.0), (Net, "bfloat16", 1e33), (Images, None, 3e34)]


@pytest.mark.parametrize(("kind", "compute", "gain"), first(3, PROGRAMS))
def test_no_first_update_is_lost(kind, compute, gain):
    """Promise 11: without a search 1 to 11 are. With it, all is bit for bit a run that begins with the scale found."""
    lost = steps_lost(kind, compute, gain)
    assert 1 <= lost <= 11
    model, optimizer = built(kind, compute, rate=1e-4 / gain, scale={"search": True})
    (found,) = train(model, optimizer, gain, 1)
    assert (optimizer.t, optimizer.skipped) == (1, 0)
    assert INIT / 4 ** ((lost + 4) // 2) <= found < INIT
    direct = built(kind, compute, rate=1e-4 / gain, init=found)
    assert train(*direct, gain, 1) == [found]
    assert_same_run([(model, optimizer), direct])
    assert train(model, optimizer, gain, 3) == train(*direct, gain, 3)
    assert_same_run([(model, optimizer), direct])


def test_the_first_update_is_that_of_plain_chainer():
    """In float64."""
    gain = 300.0
    with chainer.using_config("dtype", np.float64):
        np.random.seed(0)
        plain = Net()
        plain.cleargrads()
        before = {name: param.array.copy() for name, param in plain.namedparams()}
        rule = optimizers.MomentumSGD(1e-4 / gain).setup(plain)
        x = INPUTS[Net](np.random.RandomState(1)).astype(np.float64)
        rule.update(lambda: F.sum(F.square(plain(x))) * gain)
    np.random.seed(0)
    model = Net()
    for name, param in model.namedparams():
        param.array[...] = before[name]
    optimizer = mixprec.MixedPrecisionOptimizer(
        optimizers.MomentumSGD(1e-4 / gain), mixprec.DynamicLossScale(search=True)
    ).setup(model)
    mixprec.convert(model)
    train(model, optimizer, gain, 1)
    assert optimizer.t == 1
    ways = []
    for name, param in plain.namedparams():
        way = param.array - before[name]
        own = dict(model.namedparams())[name]
        ways.append(np.stack([way, optimizer.master(own).array - before[name]]).reshape(2, -1))
    expected, found = np.concatenate(ways, axis=1)
    assert np.linalg.norm(found - expected) <= 0.01 * np.linalg.norm(expected)


@pytest.mark.parametrize("share", [False, True])
def test_two_models_with_an_optimizer_each(share):
    """As sngan: the loss of the generator goes through the discriminator, whose gradients are there as well."""

    def run(scale_of):
        np.random.seed(0)
        generator, critic = chainer.Sequential(L.Linear(4, 6), F.relu, L.Linear(6, 5)), L.Linear(5, 1)
        scales = scale_of("critic"), scale_of("generator")
        sides = [
            mixprec.MixedPrecisionOptimizer(optimizers.Adam(1e-3), scale).setup(model)
            for model, scale in zip((critic, generator), scales, strict=True)
        ]
        mixprec.convert(generator)
        mixprec.convert(critic)
        gradients = []
        for step in range(3):
            random = np.random.RandomState(step)
            fake = generator(random.normal(size=(8, 4)).astype("f"))
            real = random.normal(size=(8, 5)).astype("f")
            given = fake if share else chainer.Variable(fake.array)
            sides[0].update(lambda real, given: F.sum(F.softplus(critic(given)) - critic(real)), real, given)
            sides[1].update(lambda fake: F.sum(F.square(critic(fake))) * 30, fake)
            gradients.append([param.grad for model in (critic, generator) for param in model.params()])
        return [*zip((critic, generator), sides, strict=True)], gradients

    found, gradients = run(lambda name: mixprec.DynamicLossScale(search=True))
    assert [(optimizer.skipped, optimizer.t) for _, optimizer in found] == [(0, 3), (0, 3)]
    first = {"critic": found[0][1].loss_scale, "generator": found[1][1].loss_scale}
    assert len({INIT, *first.values()}) == 3
    direct, expected = run(lambda name: mixprec.DynamicLossScale(init=first[name]))
    for one, other in zip(found, direct, strict=True):
        assert_same_run([one, other])
    for found_grads, expected_grads in zip(gradients, expected, strict=True):
        for one, other in zip(found_grads, expected_grads, strict=True):
            np.testing.assert_array_equal(one, other)


def passes_of(optimizer, monkeypatch):
    """Returns a list that grows by the scale of each backward pass."""
    scales, scale = [], optimizer._passes.scale

    def counted(loss):
        scales.append(optimizer.loss_scale)
        return scale(loss)

    monkeypatch.setattr(optimizer._passes, "scale", counted)
    return scales


def test_a_loss_that_is_not_finite_and_one_that_never_fits(monkeypatch):
    """No repeat for the first; 8 for the second, and then a skipped step from there. The next one goes on."""
    model, optimizer = built(Net, scale={"search": True, "floor": None, "hysteresis": 2})
    scales = passes_of(optimizer, monkeypatch)
    with np.errstate(invalid="ignore"):
        optimizer.update(lambda: F.sum(model(np.full((8, 6), np.inf, "f"))))
    assert scales == [INIT]
    assert (optimizer.skipped, optimizer.loss_scale) == (1, INIT)  # hysteresis
    train(model, optimizer, 1e5, 1)
    assert scales[1:] == [INIT / 4**number for number in range(9)]
    assert (optimizer.skipped, optimizer.loss_scale, optimizer.t) == (2, 0.5, 0)
    scales.clear()
    (found,) = train(model, optimizer, 1e5, 1)
    assert scales[0] == 0.5
    assert (found, optimizer.skipped, optimizer.t) == (scales[-1], 2, 1)
    assert np.isfinite(model.bn.avg_mean).all()


def test_a_step_that_is_an_error_has_the_usual_message_and_ends_no_search():
    model, optimizer = built(Net, scale={"search": True})
    with pytest.raises(TypeError, match=r"loss must be a chainer\.Variable; found float"):
        optimizer.update(lambda: 3.0)
    F.sum(model(np.ones((8, 6), "f"))).backward()
    with pytest.raises(UnscaledBackward):
        optimizer.update()
    assert optimizer._scaler.is_searching


def test_the_floor_ends_repeats(monkeypatch):
    model, optimizer = built(Net, scale={"search": True, "floor": INIT / 8})
    scales = passes_of(optimizer, monkeypatch)
    train(model, optimizer, 1e12, 1)
    assert scales == [INIT, INIT / 4, INIT / 8]
    assert optimizer.skipped == 1


# --- where it steps aside


def _several(model, optimizer, x):
    optimizer.update(lambda: (F.sum(model(x[part])) for part in (slice(4), slice(4, 8))))


def _recomputed(model, optimizer, x):
    mixprec.recompute(model.out)
    optimizer.update(lambda: F.sum(model(x)))


def _offloaded(model, optimizer, x):
    with mixprec.offload(2**30, to=tempfile.gettempdir()):
        optimizer.update(lambda: F.sum(model(x)))


def _multi_node(model, optimizer, x):
    with optimizer._multi_node_step(lambda: F.sum(model(x)), (), {}, zero_fill=False):
        optimizer.update(None)


def _own_loop(model, optimizer, x):
    model.cleargrads()
    optimizer.scale_loss(F.sum(model(x))).backward()
    optimizer.update()


ASIDE = [
    (_several, {}, [SEVERAL]),
    (_recomputed, {}, ["mixprec.recompute"]),
    (_offloaded, {}, ["mixprec.offload"]),
    (None, {"preconditioner": mixprec.KFAC}, ["K-FAC looks at layers in the backward pass"]),
    (_multi_node, {}, ["ChainerMN's optimizer wraps this optimizer"]),
    (_own_loop, {}, []),  # known to whoever wrote the loop
]


@pytest.mark.parametrize(("step", "settings", "reason"), ASIDE)
def test_it_steps_aside_for_good_and_says_so_once(step, settings, reason, said):
    for _ in range(2):
        model, optimizer = built(Net, scale={"search": True}, **{name: make() for name, make in settings.items()})
        x = INPUTS[Net](np.random.RandomState(0)) * 1e4
        if step is None:
            optimizer.update(lambda model=model, x=x: F.sum(F.square(model(x))))
        else:
            step(model, optimizer, x * 1e3)
        assert (optimizer.skipped, optimizer.loss_scale) == (1, INIT / 2)
        assert train(model, optimizer, 1e6, 1) == [INIT / 4]
    assert said() == reason


def test_a_static_graph_steps_aside(said):
    class Static(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.out = L.Linear(6, 2)

        @chainer.static_graph
        def forward(self, x):
            return self.out(x)

    model, optimizer = built(Static, None, scale={"search": True})
    loss = F.sum(model(np.ones((8, 6), "f")))
    search = scale_search.ScaleSearch(optimizer._scaler, None, None, None)
    assert not search.takes(loss, 0)
    assert said() == ["chainer.static_graph"]


def test_one_batch_of_an_accumulated_step_is_searched():
    """What the updaters hand over where several ranks train: an iterator that says that it has one loss."""
    model, optimizer = built(Net, scale={"search": True})
    x, t = INPUTS[Net](np.random.RandomState(0)), np.zeros(8, "i")
    optimizer.update(Accumulated(lambda x, t: F.sum(F.square(model(x))) * 500), [(x, t)])
    assert (optimizer.skipped, optimizer.t) == (0, 1)
    assert optimizer.loss_scale < INIT


# --- files


@pytest.mark.parametrize("finite", [True, False])
def test_whether_the_search_is_over_is_saved(tmp_path, finite):
    """A run that goes on from a file is the uninterrupted one; it searches only if no step has counted."""
    sides = [built(Net, rate=1e-7, scale={"search": True}) for _ in range(2)]
    train(*sides[0], 100.0 if finite else 1e30, 1)
    assert (sides[0][1].t, sides[0][1].skipped) == (finite, not finite)
    for number, value in enumerate(sides[0]):
        serializers.save_npz(tmp_path / f"{number}.npz", value)
        serializers.load_npz(tmp_path / f"{number}.npz", sides[1][number])
    assert all(optimizer._scaler.is_searching != finite for _, optimizer in sides)
    assert train(*sides[0], 1e4, 3) == train(*sides[1], 1e4, 3)
    assert sides[1][1].skipped == (3 if finite else 1)
    assert_same_run(sides)


@pytest.mark.parametrize("kind", ["without search", "plain Chainer"])
@pytest.mark.parametrize("steps", [0, 1])
def test_files_that_do_not_say_it(tmp_path, kind, steps):
    """A run of before does not search any more if a step of it has counted."""
    model, optimizer = built(Net)
    train(model, optimizer, 2.0**-4, steps)
    if kind == "plain Chainer":
        optimizer = optimizers.MomentumSGD().setup(Net())
        if steps:
            optimizer.update(lambda: F.sum(optimizer.target(np.ones((8, 6), "f"))))
        else:
            for param in optimizer.target.params():
                param.update_rule._init_states(param)
    serializers.save_npz(tmp_path / "file.npz", optimizer)
    saved = np.load(tmp_path / "file.npz").files
    assert not any("searching" in name for name in saved)
    _, loaded = built(Net, scale={"search": True})
    with contextlib.nullcontext() if kind == "without search" else pytest.warns(UserWarning, match="no loss scale"):
        serializers.load_npz(tmp_path / "file.npz", loaded)
    assert loaded._scaler.is_searching == (steps == 0)


# --- on a device, and on several ranks


@pytest.mark.parametrize("batched", [True, False])
def test_one_read_a_pass_and_none_after_the_first_finite_step(batched, reads):
    def run(place, send, **scale):
        np.random.seed(0)
        model = Net()
        mixprec.convert(model, layout="nchw", fuse=False)
        send(model)
        scale = mixprec.DynamicLossScale(**scale)
        rule = optimizers.MomentumSGD(1e-9)
        optimizer = mixprec.MixedPrecisionOptimizer(rule, scale, batched=batched).setup(model)
        counts = []
        for step in (0, 1, 2, 4):  # the loss of the first one is not finite
            optimizer.update(lambda x, model=model: F.sum(F.square(model(x))) * 1000, batch_of(step, place))
            counts.append(reads())
        return optimizer, counts

    on_device, (first, second, *later) = run(device_stand_in.array, device_stand_in.send, search=True)
    assert first == 1
    repeats = np.log2(INIT / 2 / on_device.loss_scale) / 2
    assert 2 <= repeats == int(repeats)
    assert second - first == 1 + repeats
    assert later == [second, second]
    on_host, _ = run(np.array, lambda model: None, search=True)
    found, expected = state_of(on_device), state_of(on_host)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)


@pytest.fixture
def twins(monkeypatch):
    from mixprec.optimizer import ranks
    from tests.stand_ins.twin_transport import Twins

    transport = Twins()
    monkeypatch.setattr(ranks, "MpiTransport", lambda comm: transport)
    return transport


def test_ranks_that_have_the_same_gradients(twins):
    """A run with a communicator is that without; nothing is sent before the pass that counts is over."""
    sides = [built(Images, rate=1e-7, scale={"search": True}, **how) for how in ({}, {"communicator": COMMUNICATOR})]
    for gain, steps in ((1e30, 1), (300.0, 4)):  # the first one is skipped after its repeats
        assert train(*sides[0], gain, steps) == train(*sides[1], gain, steps)
    assert [optimizer.skipped for _, optimizer in sides] == [1, 1]
    assert_same_run(sides)


@pytest.mark.parametrize("reason", [None, SEVERAL])
def test_ranks_decide_together(twins, monkeypatch, said, reason):
    """One overflow, or one rank that cannot search, is enough."""
    model, optimizer = built(Images, rate=1e-7, scale={"search": True}, communicator=COMMUNICATOR)
    of_other = iter([reason, 1, 1, 0])  # two repeats that this rank would not need
    kinds = (int, str, type(None))
    monkeypatch.setattr(twins, "gather", lambda value: [value, next(of_other) if isinstance(value, kinds) else value])
    scales = train(model, optimizer, 1e-3, 1)
    assert scales == [INIT if reason else INIT / 16]
    assert said() == ([f"on rank 1: {reason}"] if reason else [])
