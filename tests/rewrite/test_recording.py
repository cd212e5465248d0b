"""What a converted model asks of a device: a stand-in for one computes nothing and notes every launch."""

import collections

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from benchmarks.recording_device import null_device
from benchmarks.step.counts import LAUNCHES
from mixprec import functions, links
from mixprec.backends.device_log import recording
from mixprec.graph_capture.cuda_graphs import graphs_of
from models import MODELS
from tests.links.nhwc_resnet import ResNet18


class ByHand(chainer.Chain):
    """A network for NHWC, from images in NCHW to the loss."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.network = ResNet18(1000, "float16")

    def forward(self, x, t):
        return functions.softmax_cross_entropy(self.network(functions.to_nhwc(x, "float16", channels=4)), t)


def _converted(name):
    model = L.Classifier(MODELS[name](1000))
    model.compute_accuracy = False
    mixprec.convert(model, np.zeros((2, 3, 64, 64), np.float32))
    return model


def _launches(model, images):
    """Returns how often each primitive is launched by forward and backward pass; the host reads nothing."""
    null_device.install()
    null_device.send(model)
    t = np.zeros(len(images), np.int32).view(null_device.Array)
    for _ in range(2):  # gradients of the first step are new arrays
        model.cleargrads()
        with recording() as notes:
            model(chainer.Variable(images, requires_grad=False), t).backward()
    assert not any(note.kind == "read" for note in notes)
    return collections.Counter(note.primitive or note.name for note in notes if note.kind in LAUNCHES)


# Of a ResNet-18: three blocks whose shortcut has a batch normalization, and the stem.
JOINED = {"dual_batch_norm": 3, "batch_norm_max_pool": 1}
JOINED |= {f"{name}_backward": 2 * count for name, count in JOINED.items()}


def test_a_converted_network_launches_what_one_written_for_nhwc_does():
    """What is joined is not written by hand. Images that come as Chainer has them are cast as they are folded."""
    images = np.empty((8, 3, 64, 64), np.float32).view(null_device.Array)
    by_hand, converted = (_launches(model, images) for model in (ByHand(), _converted("resnet18")))
    assert converted - by_hand == JOINED
    alone = sum(JOINED[name] for name in ("dual_batch_norm", "dual_batch_norm", "batch_norm_max_pool"))
    others = dict.fromkeys(("to_nhwc", "max_pool", "max_pool_backward", "add"), 1)
    assert by_hand - converted == others | {"batch_norm": 20 + alone, "batch_norm_backward": 2 * alone}


@pytest.mark.slow
def test_resnet50_needs_317_launches_in_which_images_of_any_order_are_folded_once():
    model = _converted("resnet50")
    counts = _launches(model, np.empty((8, 3, 64, 64), np.float32).view(null_device.Array))
    assert (counts.total(), counts["conv_images"]) == (317, 1)
    assert not {"to_nhwc", "to_nchw", "cast"} & counts.keys()
    images = np.empty((8, 64, 64, 4), np.float16).view(null_device.Array).transpose(0, 3, 1, 2)
    assert counts == _launches(model, images)


class DenseNet(chainer.Chain):
    """Normalizations before convolutions, which are concatenated or go into a pooling."""

    def __init__(self, classes):
        super().__init__()
        with self.init_scope():
            self.stem = L.Convolution2D(3, 64, 7, 2, 3, nobias=True)
            self.norms = chainer.ChainList(*(L.BatchNormalization(size) for size in (64, 64, 128, 96)))
            self.bottleneck = L.Convolution2D(64, 128, 1, nobias=True)
            self.growth = L.Convolution2D(128, 32, 3, pad=1, nobias=True)
            self.transition = L.Convolution2D(96, 48, 1, nobias=True)
            self.fc = L.Linear(48, classes)

    def forward(self, x):
        first, second, third, fourth = (lambda x, norm=norm: F.relu(norm(x)) for norm in self.norms)
        h = F.max_pooling_2d(first(self.stem(x)), 3, 2, 1)
        h = F.concat([h, self.growth(third(self.bottleneck(second(h))))])
        return self.fc(F.average(F.average_pooling_2d(self.transition(fourth(h)), 2, 2), axis=(2, 3)))


WITH_SUMS = [
    ("resnet18", 20, []),
    pytest.param("resnet50", 53, [], marks=pytest.mark.slow),
    # cuDNN has no engine for sums of a convolution in groups.
    pytest.param("resnext50_32x4d", 53 - 16, ["3x3, 32 groups"] * 16, marks=pytest.mark.slow),
    # No normalization is next to these.
    ("densenet", 2, ["1x1, 1 groups", "3x3, 1 groups"]),
]


@pytest.mark.parametrize(("name", "with_sums", "without"), WITH_SUMS)
def test_which_convolutions_take_the_sums_of_a_batch_normalization(name, with_sums, without, monkeypatch):
    monkeypatch.setitem(MODELS, "densenet", DenseNet)
    model = _converted(name)
    null_device.install()
    null_device.send(model)
    with recording() as notes:
        model(np.empty((8, 3, 64, 64), np.float32).view(null_device.Array), np.zeros(8, "i").view(null_device.Array))
    convolutions = [note.arguments[0] for note in notes if note.kind == "cudnn" and note.primitive == "conv_fprop"]
    assert sum("sum" in operation.has for operation in convolutions) == with_sums
    others = [operation for operation in convolutions if "sum" not in operation.has]
    sizes = [(operation.inputs[1].shape, operation.attribute("groups")) for operation in others]
    assert sorted(f"{r}x{s}, {groups} groups" for (_, r, s, _), groups in sizes) == without


class Operators(chainer.Chain):
    """Convolutions with operators of Chainer between them; images branch and meet."""

    def __init__(self, function):
        super().__init__()
        self._function = function
        with self.init_scope():
            self.conv1 = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.conv2 = L.Convolution2D(8, 8, 3, pad=1, nobias=True)
            self.conv3 = L.Convolution2D(8, 8, 3, pad=1, nobias=True)

    def forward(self, x):
        h = self.conv1(x)
        return F.average(self.conv3(self._function(h, self.conv2(h))), axis=(2, 3))


OPERATORS = {
    "sum": lambda x, y: x + y,
    "sum with a constant": lambda x, y: 1 + x + y,
    "difference": lambda x, y: 2 - (x - y),
    "product": lambda x, y: x * y * 0.5,
    "weights of channels": lambda x, y: x * F.broadcast_to(F.average(y, axis=(2, 3), keepdims=True), x.shape),
    "maximum of activations": lambda x, y: F.maximum(F.sigmoid(x), F.tanh(y)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_what_lies_between_layers_keeps_images_in_nhwc(name):
    """CuPy gives results of operators C-contiguous, on whatever they are computed."""
    null_device.install()
    model = Operators(OPERATORS[name])
    mixprec.convert(model, np.zeros((2, 3, 8, 8), np.float32))
    null_device.send(model)
    images = np.empty((4, 8, 8, 4), np.float16).view(null_device.Array).transpose(0, 3, 1, 2)
    with graphs_of(images).on_stream(), recording() as notes:
        F.sum(model(images)).backward()
    assert not {"to_nhwc", "to_nchw"} & {note.primitive for note in notes}


@pytest.mark.parametrize("ignore_label", [None, -1])
def test_chainers_accuracy_is_one_launch(ignore_label):
    null_device.install()
    model = L.Classifier(L.Linear(4, 3), accfun=lambda y, t: F.accuracy(y, t, ignore_label))
    mixprec.convert(model)
    null_device.send(model)
    x, t = (np.zeros(shape, dtype).view(null_device.Array) for shape, dtype in (((8, 4), "f2"), (8, "i4")))
    with recording() as notes:
        model(x, t)
    names = [note.primitive for note in notes if note.kind in LAUNCHES]
    assert names == ["linear", "softmax_cross_entropy", "accuracy"]
    assert not [note for note in notes if note.kind == "read"]


@pytest.mark.parametrize("loss", [functions.softmax_cross_entropy, functions.binary_cross_entropy])
def test_the_launch_of_a_loss_finds_the_accuracy_and_is_not_multiplied(loss):
    null_device.install()
    x, t, other = (np.zeros(s, d).view(null_device.Array) for s, d in (((8, 4), "f2"), (8, "i4"), (8, "i4")))
    model = null_device.send(chainer.Sequential(links.Linear(4, 3, dtype="f2")))
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(model)
    optimizer.update(lambda: loss(model(x), t))

    def lossfun():
        y = model(x)
        result = loss(y, t)
        functions.accuracy(y, t, -1, loss=result)
        return result

    with recording() as notes:
        optimizer.update(lossfun)
    backward = ["astype", f"{loss.__name__}_backward", "linear_wgrad", "bias_grad", "check", "update"]
    names = [note.primitive or note.name for note in notes if note.kind in LAUNCHES]
    assert names == ["linear", loss.__name__, *backward]
    y = model(x)
    of_others = loss(y, other), loss(y + 1, t), loss(y, t, ignore_label=0), loss(y, t, reduce="no"), loss(y, t)
    with recording() as notes:
        for each in of_others[:-1]:
            functions.accuracy(y, t, -1, loss=each)
        functions.accuracy(y, t, -1, top=1, loss=of_others[-1])
    assert [note.primitive for note in notes if note.kind in LAUNCHES] == ["accuracy"] * 5


@pytest.mark.parametrize("ignore_label", [-1, -1.0])
def test_chainers_accuracy_of_a_converted_model_is_chainers(ignore_label):
    x, t = np.random.default_rng(0).integers(-2, 3, (60, 5)).astype("f"), np.arange(60, dtype="i") % 6 - 1
    model = L.Classifier(lambda x: x * 1, accfun=lambda y, t: F.accuracy(y, t, ignore_label))
    model.forward(x, t)
    expected = model.accuracy
    mixprec.convert(model)
    model(x, t)
    assert (model.accuracy.array, model.accuracy.dtype) == (expected.array, np.float32)
    assert 0 < expected.array < 1


class LanguageModel(chainer.Chain):
    """Two layers of LSTM with dropout over a window of words, one step after the other."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed, self.out = L.EmbedID(50, 8), L.Linear(8, 50)
            self.rnn1, self.rnn2 = L.LSTM(8, 8), L.LSTM(8, 8)

    def forward(self, words, following):
        loss = 0
        for x, t in zip(words, following, strict=True):
            h = self.rnn2(F.dropout(self.rnn1(F.dropout(self.embed(x)))))
            loss += F.softmax_cross_entropy(self.out(F.dropout(h)), t)
        return loss


def test_a_window_of_35_words_needs_871_launches_at_most():
    """Of forward and backward pass."""
    model = LanguageModel()
    mixprec.convert(model)
    null_device.install()
    words, following = np.zeros((2, 35, 4), np.int32).view(null_device.Array)
    null_device.send(model)
    with graphs_of(words).on_stream():
        for _ in range(2):
            model.rnn1.reset_state()
            model.rnn2.reset_state()
            model.cleargrads()
            with recording() as notes:
                model(words, following).backward()
    assert sum(note.kind in LAUNCHES for note in notes) <= 871
