"""A loss of the user's own in the training command: what it gets, where it counts, and every way to fail."""

import re

import chainer
import chainer.functions as F
import numpy as np
import pytest

import mixprec
from mixprec import functions
from mixprec.app import config as configs
from mixprec.app.parts.images import val_epochs
from mixprec.app.parts.model import ImageClassifier
from mixprec.app.parts.training_loss import OwnLoss
from mixprec.training.accumulation import Accumulated
from tests import ROOT
from tests.app.run import finished_run, own_code

SECTION = (ROOT / "docs" / "own-network.md").read_text().partition("\n## Own losses")[2]
PARTS = re.search(r"```python\n(.*?)```", SECTION, re.DOTALL)[1]

LOSSES = """
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

plain = F.softmax_cross_entropy


def counts_padding(logits, labels):
    return F.mean(F.softmax_cross_entropy(logits, labels, reduce="no"))


def reporting(logits, labels):
    chainer.report({"images": len(labels) * (1 if chainer.config.train else 10)})
    return plain(logits, labels)


def no_labels(logits):
    return F.mean(logits)


def of_each(logits, labels):
    return F.softmax_cross_entropy(logits, labels, reduce="no")


def number(logits, labels):
    return 3.0


def double(logits, labels):
    return F.cast(F.softmax_cross_entropy(logits, labels), "float64")


def constant(logits, labels):
    return chainer.Variable(np.array(1, np.float32))


def not_finite(logits, labels):
    return F.mean(logits) * float("nan")


def changes_labels(logits, labels):
    labels[...] = 0
    return plain(logits, labels)


def raises(logits, labels):
    raise LookupError("nothing here")


class Focal:
    def __call__(self, logits, labels):
        return F.softmax_cross_entropy(logits, labels)


focal = Focal()
total = lambda logits, labels: F.sum(of_each(logits, labels))
of_two_only = lambda logits, labels: (plain if len(labels) == 2 else of_each)(logits, labels)
of_training_only = lambda logits, labels: plain(logits, labels) if chainer.config.train else 1 / 0
seven = 7


class WithCentres(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.centres = L.EmbedID(3, 3)

    def forward(self, logits, labels):
        return F.mean_squared_error(logits, self.centres(labels))


centres = WithCentres()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    return own_code.enter(tmp_path, monkeypatch, {"parts": PARTS, "losses_of_mine": LOSSES})


def test_the_example_of_the_docs_trains_validates_and_goes_on(run, tmp_path):
    """Focal loss is below cross entropy; the norm of the weights is in the log. A resume names what has changed."""
    own = {"training__loss": "parts:focal", "log__extensions": "[parts:WeightNorm]"}
    for out, settings in (("own", own), ("plain", {})):
        process = run("--out", out, **settings)
        assert (process.returncode, process.stderr) == (0, "")
    (entry,), (plain,) = (finished_run.log(tmp_path / out) for out in ("own", "plain"))
    for name in ("main/loss", "validation/main/loss"):
        assert 0 < entry[name] < 0.9 * plain[name]
    assert entry["weight_norm"] > 0
    assert "weight_norm" not in plain
    with np.load(tmp_path / "own" / "model.npz") as weights:
        expected = np.sqrt(sum((array.astype(np.float64) ** 2).sum() for array in weights.values()))
    assert entry["weight_norm"] == pytest.approx(expected, rel=1e-6)
    resumed = run("--out", "own", "--resume", "auto", training__epochs=2)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert "changed: training.loss 'parts:focal' -> 'cross_entropy'\n" in resumed.stdout
    assert "changed: log.extensions ['parts:WeightNorm'] -> []\n" in resumed.stdout


SETTINGS = [{}, {"training__accumulation_steps": 2, "training__mixup": 0.2}, {"capture__mode": "auto"}]
SETTINGS += [{"optimizer__preconditioner": "kfac"}]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings) or "plain")
def test_chainers_cross_entropy_as_a_loss_of_ones_own_is_the_built_in_one(run, tmp_path, settings):
    settings = own_code.synthetic(log__every="1 iteration", **settings)
    for out, loss in (("own", "losses_of_mine:plain"), ("built-in", "cross_entropy")):
        process = run("--out", out, training__loss=loss, **settings)
        assert (process.returncode, process.stderr) == (0, "")
    for found, expected in zip(*(finished_run.log(tmp_path / out) for out in ("own", "built-in")), strict=True):
        assert found == pytest.approx(expected, rel=1e-5)


def _batch(size):
    random = np.random.RandomState(size)
    return random.normal(size=(size, 3, 8, 8)).astype(np.float32), random.randint(0, 3, size).astype(np.int32)


def _gradients(own, compute, mixed=(), batches=1):
    """Returns the loss of a converted classifier, the gradients of its network, and the dtypes that the loss saw."""
    seen = []

    def loss(logits, labels):
        h = F.exp(F.log_softmax(logits))
        seen.extend([logits.dtype, h.dtype, labels.dtype])
        return F.softmax_cross_entropy(logits, labels)

    np.random.seed(0)
    model = ImageClassifier(own_code.Tiny(3), own=OwnLoss(loss) if own else None)
    x, t = _batch(6)
    mixprec.convert(model, x, compute=compute)
    model.cleargrads()
    if batches == 1:
        losses = [model(x, t, *mixed)]
    else:
        losses = Accumulated(model)([(x[:4], t[:4]), (x[4:], t[4:])])
    total = 0
    for value in losses:
        assert value.dtype == np.float32
        value.backward(loss_scale=1024.0)
        total += float(value.array)
    return total, {name: param.grad.astype(np.float64) / 1024 for name, param in model.namedparams()}, set(seen)


@pytest.mark.parametrize("compute", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("case", ["plain", "mixed", "accumulated"])
def test_the_loss_is_in_float32_whatever_the_network_is_in(compute, case):
    """Also what it computes in between. For mixed images it is mixprec's loss, on the same logits."""
    mixed = (_batch(6)[1][::-1].copy(), np.array(0.3, np.float32)) if case == "mixed" else ()
    batches = 2 if case == "accumulated" else 1
    loss, found, seen = _gradients(True, compute, mixed, batches)
    expected_loss, expected, _ = _gradients(False, compute, mixed, batches)
    assert seen == {np.dtype(np.float32), np.dtype(np.int32)}
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    rounding = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-23}[compute]
    for name, array in expected.items():
        assert np.linalg.norm(found[name] - array) <= 4 * rounding * np.linalg.norm(array)


def test_the_accuracy_is_that_of_the_logits_and_validation_has_the_loss():
    model = ImageClassifier(lambda x: x, own=OwnLoss(lambda logits, labels: F.mean(logits)))
    y, t = np.eye(3, dtype=np.float32), np.array([0, 1, 1], np.int32)
    reporter, observation = chainer.Reporter(), {}
    reporter.add_observer("main", model)
    with chainer.using_config("train", False), reporter.scope(observation):
        model(chainer.Variable(y), t)
    found = {name: float(chainer.as_array(value)) for name, value in observation.items()}
    assert found == pytest.approx({"main/loss": 1 / 3, "main/accuracy": 2 / 3})


def test_validation_is_not_padded_for_a_loss_of_ones_own(run):
    """A captured evaluation of the others has one shape; such a loss need not know of labels of -1."""
    for loss, last_batch in (("losses_of_mine:plain", "partial"), ("bce", "pad")):
        config = configs.load("c.yaml", [f"training.loss={loss}"], choices={"model.arch": ["tiny"]})
        assert val_epochs(config, 7, one_shape=True).last_batch == last_batch


def test_what_a_loss_reports_in_validation_does_not_replace_that_of_training(run, tmp_path):
    process = run("--out", "out", training__loss="losses_of_mine:reporting")
    assert (process.returncode, process.stderr) == (0, "")
    (entry,) = finished_run.log(tmp_path / "out")
    assert entry["images"] <= 8 < entry["validation/images"]


# What is refused

MEAN = "; wanted: the mean loss over the images, a chainer.Variable () float32"
CALLED = "called with logits (2, 3) float32 and the labels [0, 2] int32 "
VALIDATED = f"{CALLED[:-1]}, in validation, "
BAD = {
    "losses_of_mine.py:plain": "cross_entropy, bce, or an import path, package.module:function; did you mean 'losses",
    "nowhere:loss": "there is no module 'nowhere' in the working directory",
    "losses_of_mine:plane": "losses_of_mine has no attribute plane in losses_of_mine.py; did you mean 'plain'?",
    "losses_of_mine:seven": "found int; wanted: a function of logits (N, classes) and labels (N,) that returns the ",
    "losses_of_mine:Focal": "found the class Focal; wanted: a function of logits",
    "losses_of_mine:centres": "found a WithCentres with parameters, which nothing trains; wanted: ",
    "losses_of_mine:no_labels": "it is called with logits and labels, and takes (logits): too many positional ",
    "losses_of_mine:of_each": f"{VALIDATED}it returns Variable (2,) float32{MEAN}",
    "losses_of_mine:number": f"{VALIDATED}it returns float{MEAN}",
    "losses_of_mine:double": f"{VALIDATED}it returns Variable () float64{MEAN}",
    "losses_of_mine:constant": f"{CALLED}it returns a value that does not depend on the logits{MEAN}",
    "losses_of_mine:not_finite": f"{VALIDATED}it returns nan{MEAN}",
    "losses_of_mine:total": "it returns 4.30285 for two images, and 8.60571 for 2 copies of them; wanted: the mean ",
    "losses_of_mine:of_two_only": "logits (4, 3) float32 and the labels [0, 2] * 2 int32 it returns Variable (4,)",
    "losses_of_mine:of_training_only": f"{VALIDATED}it raises ZeroDivisionError: division by zero (",
    "losses_of_mine:changes_labels": f"{VALIDATED}it changes them, and the accuracy needs them; want",
    "losses_of_mine:raises": f"{VALIDATED}it raises LookupError: nothing here (losses_of_mine.py, line ",
}


@pytest.mark.parametrize("loss", BAD)
def test_a_bad_loss_is_one_line_before_the_data_are_looked_at(run, tmp_path, loss):
    before = sorted(tmp_path.rglob("*"))
    process = run(training__loss=loss, data__train="nowhere")
    own_code.check_refused(process, tmp_path, before, BAD[loss])
    assert process.stderr.startswith(f"error: --set: 'training.loss' is '{loss}'")


def test_a_loss_that_counts_padding_is_refused_where_there_is_some(run, tmp_path):
    own = own_code.synthetic(training__loss="losses_of_mine:counts_padding")
    before = sorted(tmp_path.rglob("*"))
    process = run(data__last_batch="pad", **own)
    own_code.check_refused(
        process, tmp_path, before, "for [0, -1]; wanted: the same, and 0 for [-1]: labels of -1 are "
    )
    assert run("--dry-run", **own).returncode == 0
    assert run("--dry-run", data__last_batch="pad", **own | {"training__loss": "losses_of_mine:focal"}).returncode == 0


def test_a_loss_of_ones_own_has_no_smoothing_by_a_key(run, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    process = run(training__loss="losses_of_mine:plain", training__label_smoothing=0.1)
    own_code.check_refused(process, tmp_path, before, "'training.label_smoothing' is 0.1 (--set); allowed: ")
    assert "'training.loss' is 'losses_of_mine:plain' (--set)" in process.stderr


def test_an_unknown_name_tells_the_names_and_the_form_of_an_import_path(run):
    (line,) = run(training__loss="focal").stderr.splitlines()
    expected = "cross_entropy, bce, softmax, binary_cross_entropy, or an import path, package.module:function"
    assert line == f"error: --set: 'training.loss' is 'focal'; allowed: {expected}"


def test_mixing_is_that_of_mixprecs_loss():
    """The mean of two losses is the loss of the mean of two targets."""
    x, t = _batch(6)
    y, second, share = x[:, :, 0, 0], t[::-1].copy(), np.array(0.3, np.float32)
    found = OwnLoss(F.softmax_cross_entropy)(chainer.Variable(y), t, (second, share))
    expected = functions.softmax_cross_entropy(y, t, mixed=(second, share))
    assert float(found.array) == pytest.approx(float(expected.array), rel=1e-6)
