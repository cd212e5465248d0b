"""Class weights in the loss of the training command: the formula of PyTorch, over all images of a step."""

import chainer
import numpy as np
import pytest

import mixprec
from mixprec.app.parts.model import ImageClassifier
from mixprec.training.accumulation import Accumulated, Weighing
from mixprec.training.updater import TimedUpdater
from tests.app.run import finished_run, own_code

WEIGHTS = np.array([0.25, 1, 3, 40], np.float32)
T = np.array([0, 1, 2, -1, 1, 0, 3, 3, -1, 0], np.int32)
UNPADDED = np.abs(T)


def _logits(size=10):
    return np.random.RandomState(1).normal(scale=3, size=(size, 4)).astype(np.float32)


class Logits(chainer.Link):
    """Its logits are given, and it scales them."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.scale = chainer.Parameter(np.ones(1, np.float32))

    def forward(self, x):
        return x * chainer.functions.broadcast_to(self.scale, x.shape)


def _model(smoothing=0.0):
    model = ImageClassifier(Logits(), smoothing)
    model.class_weights = WEIGHTS
    return model


def _reference(y, t, smoothing=0.0, mixed=None):
    """The formula of torch.nn.CrossEntropyLoss(weight, label_smoothing) of version 2, in float64, and its gradient.

    Of mixed images it is the mean of two losses, as in the published code of Mixup.
    """
    if mixed is not None:
        second, share = mixed
        parts = [_reference(y, t, smoothing), _reference(y, second, smoothing)]
        return tuple(share * one + (1 - share) * other for one, other in zip(*parts, strict=True))
    y, w, counts = y.astype(np.float64), WEIGHTS.astype(np.float64), t >= 0
    log_p = y - y.max(1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    targets = (1 - smoothing) * np.eye(4)[t] + smoothing / 4
    terms = targets * w * counts[:, None] / w[t[counts]].sum()
    return -(terms * log_p).sum(), np.exp(log_p) * terms.sum(1, keepdims=True) - terms


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_loss_and_gradient_are_those_of_the_published_formula(smoothing, is_mixed):
    """To the rounding of float32. Mixed images have the labels in reversed order as second ones, none of them -1."""
    y, t = chainer.Variable(_logits()), UNPADDED if is_mixed else T
    mixed = (t[::-1].copy(), np.array(0.3, np.float32)) if is_mixed else None
    loss = _model(smoothing)(y, t, *(mixed or ()))
    loss.backward()
    expected, gradient = _reference(y.array, t, smoothing, mixed)
    assert float(loss.array) == pytest.approx(expected, rel=4e-7)
    np.testing.assert_allclose(y.grad, gradient, rtol=0, atol=4e-7 * np.abs(gradient).max())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_reference_is_torch(smoothing):
    torch = pytest.importorskip("torch", reason="torch is not installed: it comes with Python 3.11 only")
    y = torch.from_numpy(_logits().astype(np.float64)).requires_grad_()
    options = {"weight": torch.from_numpy(WEIGHTS).double(), "ignore_index": -1, "label_smoothing": smoothing}
    loss = torch.nn.CrossEntropyLoss(**options)(y, torch.from_numpy(T).long())
    loss.backward()
    expected, gradient = _reference(_logits(), T, smoothing)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-13)
    np.testing.assert_allclose(y.grad.numpy(), gradient, rtol=0, atol=1e-14)


def test_validation_has_no_weights():
    with chainer.using_config("train", False):
        loss = _model()(chainer.Variable(_logits()), T)
    plain = chainer.functions.softmax_cross_entropy(_logits(), T)
    assert float(loss.array) == pytest.approx(float(plain.array), rel=1e-6)


def test_a_batch_of_padding_alone_is_zero():
    y = chainer.Variable(_logits(2))
    loss = _model()(y, np.full(2, -1, np.int32))
    loss.backward()
    assert float(loss.array) == 0
    assert not y.grad.any()


PARTS = [[slice(0, 3), slice(3, 4)], [slice(4, 9)], [slice(9, 10)]]  # of three ranks; the second batch is padding


def _accumulated(model, parts, images=None, weight=None):
    """Returns the gradient of the logits' scale, and what is reported."""
    reporter, observation = chainer.Reporter(), {}
    reporter.add_observer("main", model)
    batches = [(_logits()[part], T[part]) for part in parts]
    model.cleargrads()
    with reporter.scope(observation):
        for loss in Accumulated(model, Weighing(model.weight, np.asarray))(batches, images, weight):
            loss.backward()
    found = {name: float(chainer.as_array(value)) for name, value in observation.items()}
    return float(model.predictor.scale.grad[0]), found


def test_several_batches_and_ranks_have_the_weighted_mean_over_all_images():
    """The accuracy stays a mean over images. Gradients and what is reported are means over ranks."""
    y = chainer.Variable(_logits())
    loss, gradient = _reference(y.array, T)
    gradient = (gradient * y.array).sum()
    accuracy = (y.array.argmax(1) == T).sum() / (T >= 0).sum()
    expected = pytest.approx({"main/loss": loss, "main/accuracy": accuracy}, rel=1e-6)
    found, observed = _accumulated(_model(), [part for parts in PARTS for part in parts])
    assert (found, observed) == (pytest.approx(gradient, rel=1e-5), expected)
    images, weight = (np.array(total / 3, np.float32) for total in ((T >= 0).sum(), WEIGHTS[T[T >= 0]].sum()))
    ranks = [_accumulated(_model(), parts, images, weight) for parts in PARTS]
    assert np.mean([found for found, _ in ranks]) == pytest.approx(gradient, rel=1e-5)
    assert {name: np.mean([observed[name] for _, observed in ranks]) for name in ranks[0][1]} == expected


class Batches(chainer.dataset.Iterator):
    """One batch after the other."""

    images_of_all, epoch_detail, is_new_epoch = 10, 0.0, False

    def next(self):
        return _logits(), T


def test_ranks_agree_on_the_sum_of_the_weights_of_a_step():
    """The updater gives each the mean over ranks, and with it the step."""
    model = _model()
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD(1.0), 1.0).setup(model)
    asked = []

    def mean(array):
        asked.append(array)
        return array / 2  # the other rank has images of no weight

    weighing = Weighing(model.weight, mean)
    updater = TimedUpdater(
        Batches(), optimizer, converter=lambda batch, _: batch, ranks=2, weighing=weighing, device=model.device
    )
    updater.update()
    assert asked == [WEIGHTS[T[T >= 0]].sum()]
    _, gradient = _reference(_logits(), T)
    expected = 2 * (gradient * _logits()).sum()  # the mean with the 0 of the other rank is the gradient
    assert float(model.predictor.scale.array[0]) == pytest.approx(1 - expected, rel=1e-5)


# The command


@pytest.fixture
def run(tmp_path, monkeypatch):
    return own_code.enter(tmp_path, monkeypatch, {})


SETTINGS = [{}, {"training__accumulation_steps": 2}, {"training__cutmix": 1.0, "training__label_smoothing": 0.1}]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings) or "plain")
def test_weights_that_are_alike_change_nothing_and_others_do(run, tmp_path, settings):
    settings = own_code.synthetic(log__every="1 iteration", **settings)
    for out, weights in (("alike", "[3, 3, 3]"), ("others", "[3, 3, 9]"), ("none", "null")):
        process = run("--out", out, training__class_weights=weights, **settings)
        assert (process.returncode, process.stderr) == (0, "")
    logs = [finished_run.log(tmp_path / out) for out in ("alike", "none", "others")]
    for alike, none, others in zip(*logs, strict=True):
        assert alike == pytest.approx(none, rel=1e-5)
        assert others["main/loss"] != pytest.approx(none["main/loss"], rel=1e-5)


def test_balanced_weights_count_the_training_images(run, tmp_path):
    """Of 22 images 8, 7 and 7 are of the classes; validation has others."""
    balanced = [22 / (3 * count) for count in (8, 7, 7)]
    for out, weights in (("balanced", "balanced"), ("list", balanced)):
        process = run("--out", out, training__class_weights=weights)
        assert (process.returncode, process.stderr) == (0, "")
        assert "class weights: from 0.917 to 1.05\n" in process.stdout
    found, expected = (finished_run.log(tmp_path / out) for out in ("balanced", "list"))
    assert found == expected


UNFIT = [
    (
        {"class_weights": "[1, 2]"},
        "'training.class_weights' is [1.0, 2.0] (--set), 'model.classes' is 3 (c.yaml:10); allowed: "
        "training.class_weights, if it is a list, with a number for each of model.classes",
    ),
    (
        {"class_weights": "balanced", "loss": "bce"},
        "'training.loss' is 'bce' (--set), 'training.class_weights' is 'balanced' (--set); allowed: "
        "training.class_weights only with training.loss cross_entropy",
    ),
    (
        {"class_weights": "[1, 0, 1]"},
        "'training.class_weights' is [1, 0, 1]; allowed: balanced, or a list of numbers > 0 and <= 1000000, or ",
    ),
    ({"class_weights": "balancd"}, "or null; did you mean 'balanced'?"),
]


@pytest.mark.parametrize(("settings", "message"), UNFIT)
def test_weights_that_fit_nothing_are_refused_in_one_line(run, tmp_path, settings, message):
    before = sorted(tmp_path.rglob("*"))
    process = run(**{f"training__{name}": value for name, value in settings.items()})
    own_code.check_refused(process, tmp_path, before, message)


def test_a_class_without_images_has_no_balanced_weight(run, tmp_path):
    """A list of images may lack one, as class folders cannot."""
    for name in ("train", "val"):
        images = sorted((tmp_path / "images" / name).rglob("*.jpg"))
        lines = [f"{path.relative_to(tmp_path)} {'acb'.index(path.parent.name) % 2}\n" for path in images]
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    lists = {"data__format": "list", "data__train": "train.txt", "data__val": "val.txt", "data__root": "."}
    process = run("--dry-run", training__class_weights="balanced", **lists)
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert line.startswith("error: train.txt: no image of class 2, and training.class_weights is 'balanced', which ")
