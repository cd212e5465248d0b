"""What a config makes of a network: loss with label smoothing, accuracies, zero-initialized blocks; any resolution."""

import chainer
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import models
from mixprec.app import config as configs
from mixprec.app.config import ConfigError
from mixprec.app.parts.model import ImageClassifier, build_model
from mixprec.training.label_accuracy import TOP, accuracy, valid_images
from tests.cases import first

_EPS = {np.float16: 2.0**-11, np.float32: 2.0**-24}


def _batch(random, size, classes, dtype=np.float32):
    y = random.normal(size=(size, classes)).astype(dtype)
    t = random.randint(0, classes, size).astype(np.int32)
    return y, t


# Accuracies


@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(6, 30), st.sampled_from([np.float16, np.float32]))
def test_accuracies_are_those_of_torch(seed, size, classes, dtype):
    """All logits differ, as many of torch's answers are open where they do not."""
    torch = pytest.importorskip("torch", reason="torch is not installed: it comes with Python 3.11 only")
    random = np.random.RandomState(seed)
    y = np.stack([random.permutation(classes) for _ in range(size)]).astype(dtype)
    t = random.randint(0, classes, size).astype(np.int32)
    ignored = random.rand(size) < 0.3
    t[ignored] = -1
    for k, found in ((1, accuracy(y, t)), (5, accuracy(y, t, TOP))):
        top = torch.topk(torch.from_numpy(y.astype(np.float32)), k).indices.numpy()
        correct = int((top == t[:, None]).any(axis=1).sum())
        assert (found.dtype, found.shape) == (np.float32, ())
        assert found.array == np.float32(correct / max(1, size - ignored.sum()))


def test_among_equal_logits_the_first_is_top_1_and_all_are_larger_in_top_5():
    y = np.zeros((6, 6), np.float32)
    t = np.arange(6, dtype=np.int32)
    assert accuracy(y, t).array == np.float32(1 / 6)
    assert accuracy(y, t, TOP).array == 0
    y[:, 0] = -1  # five are equal: these are the top 5
    assert accuracy(y, t, TOP).array == np.float32(5 / 6)


def test_logits_that_are_nan_are_never_right():
    y = np.full((4, 10), np.nan, np.float32)
    y[1:, :5] = 0
    assert accuracy(y, np.array([3, 7, -1, 0], np.int32), TOP).array == 0


def test_labels_of_padding_count_nowhere():
    y = np.eye(6, dtype=np.float16)[:4]
    assert accuracy(y, np.array([0, 1, -1, 5], np.int32)).array == np.float32(2 / 3)
    assert accuracy(y, np.full(4, -1, np.int32), TOP).array == 0
    assert accuracy(y, np.full(4, -1, np.int32)).array == 0


def test_the_images_of_a_batch_that_count():
    x = np.zeros((4, 3), np.float32)
    assert valid_images((x, np.array([0, -1, 2, -1], np.int32))) == 2
    assert valid_images((x,)) == valid_images((x, x)) == 4


# The loss


class Logits(chainer.Link):
    """Has its logits from elsewhere."""

    def forward(self, x):
        return x


def _observed(model, y, t, *, train):
    reporter, observation = chainer.Reporter(), {}
    reporter.add_observer("main", model)
    with chainer.using_config("train", train), reporter.scope(observation):
        loss = model(chainer.Variable(y), t)
    return loss, {name: float(chainer.as_array(value)) for name, value in observation.items()}


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_smoothing_is_that_of_torch_in_training_and_there_is_none_in_validation(dtype, smoothing):
    torch = pytest.importorskip("torch", reason="torch is not installed: it comes with Python 3.11 only")
    y, t = _batch(np.random.RandomState(0), 16, 10, dtype)
    t[3:6] = -1
    model = ImageClassifier(Logits(), smoothing)
    exact = torch.from_numpy(y.astype(np.float64))
    for train in (True, False):
        loss, observed = _observed(model, y, t, train=train)
        expected = torch.nn.functional.cross_entropy(
            exact, torch.from_numpy(t).long(), ignore_index=-1, label_smoothing=smoothing if train else 0.0
        )
        # Chainer's own loss of float16 is float16 outside of a converted model.
        rounding = _EPS[dtype if loss.dtype == np.float16 else np.float32]
        assert float(loss.array) == pytest.approx(float(expected), rel=8 * rounding)
        names = {"main/loss", "main/accuracy", *(() if train else ("main/accuracy_top5",))}
        assert observed.keys() == names
        assert observed["main/accuracy"] == np.float32((y.argmax(1) == t).sum() / 13)


# From a config


def _config(tmp_path, *overrides, arch="resnet8"):
    path = tmp_path / "config.yaml"
    path.write_text(
        f"model: {{arch: {arch}, classes: 10}}\ndata: {{train: t, val: v, size: 32, resize: 48}}\n"
        "optimizer: {lr: 0.25}\ntraining: {batch_size: 32, epochs: 10}\n"
    )
    return configs.load(path, overrides)


@pytest.mark.parametrize(("layout", "compute"), first(1, [("nhwc", "float16"), ("nchw", "float32")]))
def test_a_converted_classifier_has_the_smoothed_loss(tmp_path, layout, compute):
    """In training mode that of torch on the same logits, with the gradient of the mean over images that count."""
    torch = pytest.importorskip("torch", reason="torch is not installed: it comes with Python 3.11 only")
    settings = [f"model.memory_format={layout}", f"model.fuse={str(layout == 'nhwc').lower()}"]
    config = _config(tmp_path, *settings, f"precision.compute={compute}", "training.label_smoothing=0.1")
    model, _, _ = build_model(config, models.MODELS["resnet8"], "@numpy")
    random = np.random.RandomState(0)
    x = random.normal(size=(8, 3, 32, 32)).astype(np.float32)
    t = np.array([0, 1, 2, -1, 4, 5, -1, 7], np.int32)
    loss = model(x, t)
    assert loss.dtype == np.float32
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(model.y.array.astype(np.float64)),
        torch.from_numpy(t).long(),
        ignore_index=-1,
        label_smoothing=0.1,
    )
    assert float(loss.array) == pytest.approx(float(expected), rel=8 * 2.0**-24)
    model.cleargrads()
    loss.backward()
    assert np.isfinite(model.predictor.fc.W.grad).all()
    assert model.predictor.fc.W.grad.any()


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
def test_masters_start_from_the_float32_weights_that_the_network_has_made_or_loaded(tmp_path, compute):
    made = []

    def network(classes):
        made.append(models.MODELS["resnet8"](classes))
        made.append({name: param.array.copy() for name, param in made[0].namedparams()})
        return made[0]

    config = _config(tmp_path, f"precision.compute={compute}")
    model, optimizer, _ = build_model(config, network, "@numpy")
    for name, param in model.predictor.namedparams():
        np.testing.assert_array_equal(optimizer.master(param).array, made[1][name], strict=True)
        np.testing.assert_array_equal(param.array, made[1][name].astype(param.dtype), strict=True)
    assert (model.predictor.fc.W.array != made[1]["/fc/W"]).any()


def test_a_config_keeps_links_in_float32(tmp_path):
    config = _config(tmp_path, "precision.keep_float32=[/fc]")
    model, _, report = build_model(config, models.MODELS["resnet8"], "@numpy")
    assert [link.name for link in report.links if link.why == "keep_float32"] == ["/predictor/fc"]
    assert model.predictor.fc.W.dtype == np.float32


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet8", "resnet50"])  # of each kind of block
def test_zero_initialized_blocks_start_as_their_shortcuts(name):
    plain, zero = (models.MODELS[name](10, **keywords) for keywords in ({}, {"zero_init_residual": True}))
    zeros = {path for path, param in zero.namedparams() if path.endswith("gamma") and not param.array.any()}
    last = "bn2" if name == "resnet8" else "bn3"
    assert zeros == {path for path, _ in plain.namedparams() if path.endswith(f"{last}/gamma")}
    assert all(param.array.all() for path, param in plain.namedparams() if path.endswith("gamma"))
    block = zero.layer2[1] if name != "resnet8" else zero.layer1[0]
    channels = block.conv1.W.shape[1]
    x = np.random.RandomState(0).rand(2, channels, 6, 6).astype(np.float32)  # not negative, as after a ReLU
    np.testing.assert_array_equal(block(x).array, x)


def test_a_config_asks_for_zero_initialized_blocks(tmp_path):
    for value in (True, False):
        config = _config(tmp_path, f"model.zero_init_residual={str(value).lower()}")
        model, _, _ = build_model(config, models.MODELS["resnet8"], "@numpy")
        assert model.predictor.layer1[0].bn2.gamma.array.any() == (not value)


def test_a_network_without_such_blocks_is_refused(tmp_path):
    config = _config(tmp_path, "model.zero_init_residual=true", arch="mine")
    with pytest.raises(ConfigError, match=r"'model\.zero_init_residual' is true, which mine does not have"):
        build_model(config, lambda classes: L.Linear(3 * 32 * 32, classes), "@numpy")


def test_a_config_asks_for_stochastic_depth(tmp_path):
    for value in ("0.25", "0"):
        config = _config(tmp_path, f"model.stochastic_depth={value}")
        model, _, report = build_model(config, models.MODELS["resnet8"], "@numpy")
        assert model.predictor.layer3[0].stochastic_depth == float(value)
        # Blocks of which some may be dropped are fused, too, but with one of two normalizations.
        pairs = 2 if value == "0" else 0
        assert (report.fused["add + ReLU"], report.fused["add of two + ReLU"]) == (3 - pairs, 2 * pairs)


def test_a_network_without_stochastic_depth_is_refused(tmp_path):
    config = _config(tmp_path, "model.stochastic_depth=0.1", arch="mine")
    message = r"^'model\.stochastic_depth' is 0\.1, which mine does not have; set it to 0\.0$"
    with pytest.raises(ConfigError, match=message):
        build_model(config, lambda classes, zero_init_residual=False: L.Linear(3 * 32 * 32, classes), "@numpy")
