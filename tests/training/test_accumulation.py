"""Steps of several batches: the gradient of the mean over all their images, skipped and counted as one step."""

import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers, serializers, training
from hypothesis import given
from hypothesis import strategies as st

import mixprec
from mixprec.app.parts.model import ImageClassifier
from mixprec.training.accumulation import Accumulated
from mixprec.training.updater import CapturedUpdater, TimedUpdater
from tests.graph_capture.captured_runs import FIRST_REPLAY, POISONED, REQUIRED, Run, assert_same, batch
from tests.stand_ins.capture_sides import device, gpu, gpu_of_module, host, side  # noqa: F401  (fixtures)
from tests.stand_ins.cuda_sides import both_sides

CLASSES = 5


class Network(chainer.Chain):
    """Without batch normalization, which sees one batch at a time."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.hidden = L.Linear(12, 16)
            self.out = L.Linear(16, CLASSES)

    def forward(self, x):
        return self.out(F.tanh(self.hidden(x)))


def _images(random, size):
    return random.normal(size=(size, 12)).astype(np.float32), random.randint(0, CLASSES, size).astype(np.int32)


def _optimizer(compute="float32", scale=2.0**10, rule=None, model=None):
    np.random.seed(0)
    model = ImageClassifier(Network()) if model is None else model
    mixprec.convert(model, compute=compute)
    return mixprec.MixedPrecisionOptimizer(rule or optimizers.SGD(1.0), scale).setup(model)


def _gradients(optimizer):
    return dict(optimizer.unscaled_gradients())


def _exact(model, x, t):
    """The gradient of the mean over the labels that are not -1, in float64, by hand."""
    p = {name: param.array.astype(np.float64) for name, param in model.namedparams()}
    w1, b1, w2, b2 = (p[f"/predictor/{name}"] for name in ("hidden/W", "hidden/b", "out/W", "out/b"))
    x, t = x[t >= 0].astype(np.float64), t[t >= 0]
    h = np.tanh(x @ w1.T + b1)
    y = h @ w2.T + b2
    dy = np.exp(y - y.max(1, keepdims=True))
    dy /= dy.sum(1, keepdims=True)
    dy[np.arange(len(t)), t] -= 1
    dy /= max(1, len(t))
    dh = dy @ w2 * (1 - h * h)
    gradients = {"hidden/W": dh.T @ x, "hidden/b": dh.sum(0), "out/W": dy.T @ h, "out/b": dy.sum(0)}
    return {f"/predictor/{name}": array for name, array in gradients.items()}


def _difference(found, expected):
    """The largest relative error of a parameter's gradient, in the norm of L2."""
    return max(
        np.linalg.norm(found[name].astype(np.float64) - expected[name]) / np.linalg.norm(expected[name])
        for name in expected
    )


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.floats(0, 0.6), st.integers(0, 2**31))
def test_the_gradient_is_that_of_the_mean_over_all_images_that_count(sizes, padding, seed):
    """Of batches of different sizes, some of their labels -1; in float32, against float64 by hand."""
    random = np.random.RandomState(seed)
    batches = [_images(random, size) for size in sizes]
    for _, t in batches:
        t[random.rand(len(t)) < padding] = -1
    batches[0][1][0] = 1
    optimizer = _optimizer()
    expected = _exact(optimizer.target, *(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))
    optimizer.update(Accumulated(optimizer.target), batches)
    assert _difference(_gradients(optimizer), expected) < 32 * 2.0**-24
    assert optimizer.t == 1


@pytest.mark.parametrize("compute", ["float32", "float16"])
def test_several_batches_are_one_large_batch(compute):
    """Eight of 32 images. In float32 to rounding. In float16 each sum rounds the gradient once more: the error against
    float64, 5.9e-4, is no more than twice that of the large batch, 4.3e-4."""
    random = np.random.RandomState(1)
    batches = [_images(random, 32) for _ in range(8)]
    whole = tuple(np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    errors, steps = [], []
    for accumulated in (True, False):
        optimizer = _optimizer(compute)
        expected = _exact(optimizer.target, *whole)
        if accumulated:
            optimizer.update(Accumulated(optimizer.target), batches)
        else:
            optimizer.update(optimizer.target, *whole)
        errors.append(_difference(_gradients(optimizer), expected))
        steps.append({name: optimizer.master(param).array for name, param in optimizer.target.namedparams()})
    rounding = 2.0**-24 if compute == "float32" else 2.0**-11
    assert max(errors) < 16 * rounding
    assert errors[0] < 2 * errors[1] + rounding
    assert _difference(*steps) < 16 * rounding


def test_a_loss_function_may_give_its_losses_one_after_the_other():
    """The gradient is that of their sum; the next loss is computed when backward of the last one is over."""
    optimizer, other = _optimizer(), _optimizer()
    random = np.random.RandomState(2)
    batches = [_images(random, 4) for _ in range(3)]
    seen = []

    def losses():
        for arrays in batches:
            seen.append(optimizer.target.predictor.out.b.grad)
            yield optimizer.target(*arrays)

    optimizer.update(losses)
    assert seen[0] is None
    assert all(gradient is not None for gradient in seen[1:])
    other.update(lambda: sum(other.target(*arrays) for arrays in batches))
    assert _difference(_gradients(optimizer), _gradients(other)) < 8 * 2.0**-24


@pytest.mark.parametrize("kind", [TimedUpdater, CapturedUpdater])
def test_one_batch_at_a_time_has_its_activations_in_memory(kind):
    """Without the help of the collector of cycles."""
    alive, hidden = [], []

    class Watched(Network):
        def forward(self, x):
            alive.append(sum(reference() is not None for reference in hidden))
            h = F.tanh(self.hidden(x))
            hidden.append(weakref.ref(h.node))
            return self.out(h)

    optimizer = _optimizer(model=ImageClassifier(Watched()))
    hidden.clear()
    alive.clear()
    images = list(zip(*_images(np.random.RandomState(3), 40), strict=True))
    updater = kind(chainer.iterators.SerialIterator(images, 4), optimizer, accumulate=4)
    for _ in range(2):
        updater.update()
    assert alive == [0] * 8


# A step that is skipped


class WithNorm(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.hidden = L.Linear(12, 16)
            self.norm = L.BatchNormalization(16)
            self.out = L.Linear(16, CLASSES)

    def forward(self, x):
        return self.out(F.relu(self.norm(self.hidden(x))))


def _state(optimizer):
    found = {name: param.array for name, param in optimizer.target.namedparams()}
    found |= {f"master of {name}": optimizer.master(param).array for name, param in optimizer.target.namedparams()}
    norm = optimizer.target.predictor.norm
    found |= {"mean": norm.avg_mean, "var": norm.avg_var, "t": np.array(optimizer.t)}
    return {name: array.tobytes() for name, array in found.items()}


@pytest.mark.parametrize(("poisoned", "batched"), [(0, True), (1, False), (2, True)])
def test_an_overflow_in_any_batch_skips_the_whole_step(poisoned, batched):
    """Promise 2 of docs/numerics.md: running statistics, too, are those from before the first batch."""
    model = ImageClassifier(WithNorm())
    mixprec.convert(model)
    scale = mixprec.DynamicLossScale(init=2.0**8)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.Adam(), scale, batched=batched).setup(model)
    random = np.random.RandomState(4)
    for number in range(3):
        batches = [_images(random, 4) for _ in range(3)]
        if number == 1:
            batches[poisoned][0][0, 0] = np.inf
        before = _state(optimizer)
        optimizer.update(Accumulated(model), batches)
        assert optimizer.last_step_skipped == (number == 1)
        moved = {name for name, value in _state(optimizer).items() if value != before[name]}
        assert moved == (set() if number == 1 else set(before))
    assert (optimizer.loss_scale, optimizer.skipped, optimizer.t) == (2.0**7, 1, 2)


def test_running_statistics_move_once_for_each_batch():
    random = np.random.RandomState(5)
    batches = [_images(random, 8) for _ in range(3)]
    np.random.seed(0)
    optimizer = _optimizer(model=ImageClassifier(WithNorm()))
    norm, hidden = optimizer.target.predictor.norm, optimizer.target.predictor.hidden
    expected = np.zeros(16)
    for x, _ in batches:
        h = x.astype(np.float64) @ hidden.W.array.T.astype(np.float64) + hidden.b.array
        expected = norm.decay * expected + (1 - norm.decay) * h.mean(0)
    optimizer.update(Accumulated(optimizer.target), batches)
    np.testing.assert_allclose(norm.avg_mean, expected, rtol=0, atol=1e-6)


def test_training_that_diverges_names_the_layer_that_the_second_batch_breaks():
    scale = mixprec.DynamicLossScale(init=1.0, patience=1)
    optimizer = _optimizer("float16", scale, model=ImageClassifier(WithNorm()))
    random = np.random.RandomState(6)
    batches = [_images(random, 4) for _ in range(2)]
    batches[1][0][...] = 6e4  # a finite batch, but no finite sum
    optimizer.target.predictor.hidden.W.array[...] = 1
    message = r"first layer whose activation is not finite: /predictor/hidden \(Linear"
    with pytest.raises(mixprec.LossScaleExhausted, match=message):
        optimizer.update(Accumulated(optimizer.target), batches)


# What is reported


@pytest.mark.parametrize("reports", [True, False])
def test_what_batches_report_is_reported_once_as_the_mean_over_images(reports):
    optimizer = _optimizer()
    random = np.random.RandomState(7)
    batches = [_images(random, size) for size in (4, 4, 2)]
    batches[1][1][:3] = -1
    x, t = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    expected = {}
    reporter = chainer.Reporter()
    reporter.add_observer("main", optimizer.target)
    with reporter.scope(expected):
        loss = optimizer.target(x, t)
    found = {}
    if not reports:  # in a loop of one's own nobody listens
        optimizer.update(Accumulated(optimizer.target), batches)
        return
    with reporter.scope(found):
        optimizer.update(Accumulated(optimizer.target), batches)
    assert found.keys() == expected.keys() == {"main/loss", "main/accuracy"}
    assert float(found["main/loss"]) == pytest.approx(float(loss.array), rel=8 * 2.0**-24)
    assert float(found["main/accuracy"]) == pytest.approx(float(expected["main/accuracy"].array), rel=2.0**-22)


# The updater


def _updater(kind=TimedUpdater, **keywords):
    data = list(zip(*_images(np.random.RandomState(8), 10), strict=True))
    optimizer = _optimizer("float16", rule=optimizers.MomentumSGD(0.1))
    iterator = chainer.iterators.SerialIterator(data, 2, order_sampler=_order)
    return kind(iterator, optimizer, **keywords)


def _order(current, position):
    return np.roll(np.arange(10), 0 if current is None else current[0] + 3)


def test_a_group_ends_with_the_epoch():
    """Five batches of two images: groups of two, two and one; Chainer's triggers see where each step began."""
    updater = _updater(accumulate=2)
    found = []
    for _ in range(6):
        updater.update()
        optimizer = updater.get_optimizer("main")
        found.append(
            (
                *(updater.iteration, updater.epoch, updater.is_new_epoch),
                *(round(10 * detail) for detail in (updater.previous_epoch_detail, updater.epoch_detail)),
                optimizer.t,
                optimizer.epoch,
            )
        )
    assert found == [
        *((1, 0, False, 0, 4, 1, 0), (2, 0, False, 4, 8, 2, 0), (3, 1, True, 8, 10, 3, 1), (4, 1, False, 10, 14, 4, 1)),
        *((5, 1, False, 14, 18, 5, 1), (6, 2, True, 18, 20, 6, 2)),
    ]


def _bits(updater):
    saved = serializers.DictionarySerializer()
    saved.save(updater)
    return {name: np.asarray(value).tobytes() for name, value in saved.target.items()}


@pytest.mark.parametrize("kind", [TimedUpdater, CapturedUpdater])
def test_a_resumed_run_is_the_uninterrupted_one(kind, tmp_path):
    whole = _updater(kind, accumulate=3)
    for number in range(7):
        whole.update()
        if number == 2:
            serializers.save_npz(tmp_path / "snapshot.npz", whole)
    resumed = _updater(kind, accumulate=3)
    serializers.load_npz(tmp_path / "snapshot.npz", resumed)
    while resumed.iteration < 7:
        resumed.update()
    assert _bits(resumed) == _bits(whole)


def test_one_batch_a_step_is_chainers_updater():
    one, standard = _updater(accumulate=1), _updater(training.StandardUpdater)
    for _ in range(7):
        one.update()
        standard.update()
        assert one.previous_epoch_detail == standard.previous_epoch_detail
    assert _bits(one) == _bits(standard)


# In one graph


def _group(run, send, number, sizes):
    """Runs a step of several batches of the network of ``captured_runs``, one of which may be poisoned."""
    batches = [batch(100 + 10 * number + place, size) for place, size in enumerate(sizes)]
    if number in POISONED:
        batches[number % len(sizes)][0][0, 0, 0, 0] = np.inf
    if len(sizes) > 2:
        batches[1][1][1:] = -1
    run.set_rate(number)
    run.once([tuple(map(send, arrays)) for arrays in batches])


def _lossfun(model, batches):
    return Accumulated(model)(batches)


@pytest.mark.slow
@both_sides
def test_a_captured_step_of_several_batches_is_the_eager_one(side):  # noqa: F811
    """Bit for bit, with overflows; the whole group is one launch, and reads nothing."""
    captured = Run(REQUIRED, lossfun=_lossfun, side=side)
    for number in range(FIRST_REPLAY):
        _group(captured, np.copy, number, (4, 4, 4))
    replayed = (8, 9, 10)  # the second one overflows
    with side.without_reads():
        for number in replayed:
            _group(captured, np.copy, number, (4, 4, 4))
    assert captured.step.replays == 3
    assert captured.optimizer.skipped == 1
    expected = Eager(lossfun=_lossfun, side=side)
    for number in (*range(FIRST_REPLAY), *replayed):
        _group(expected, side.send, number, (4, 4, 4))
    assert_same(captured, expected)


class Eager(Run):
    """What a captured run is compared with: returns the sum of the losses."""

    def once(self, *arguments):
        observation, total = {}, []

        def lossfun(batches):
            for loss in self._lossfun(batches):
                total.append(loss.array)
                yield loss

        with self.reporter.scope(observation), self._side.eagerly():
            self.optimizer.update(lossfun, *arguments)
            loss = sum(total[1:], start=total[0])
        self.observed.append({**observation, "returned": chainer.Variable(loss)})
