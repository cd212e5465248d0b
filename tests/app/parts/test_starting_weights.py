"""``model.weights``: training starts from a file, of another number of classes, too; bad files are one line."""

import itertools
import re

import chainer
import chainer.links as L
import numpy as np
import pytest
import yaml
from chainer import serializers

from mixprec.app import config as configs
from mixprec.app.commands import train as command
from mixprec.app.parts import images
from mixprec.app.parts.model import build_model
from mixprec.app.parts.starting_weights import StartingWeights
from mixprec.export.matching import contents
from mixprec.export.weight_files import write
from mixprec.training.plots import Plots
from models import MODELS
from tests import ROOT
from tests.app.run.odd_commands import ODD_PATHS
from tests.called import call
from tests.cases import first

SECTIONS = {
    "model": {"arch": "resnet8", "classes": 10, "weights": "w.safetensors"},
    "data": {"format": "synthetic", "synthetic_images": 12, "size": 16, "resize": 32},
    "optimizer": {"lr": 1e-12},  # the weights stay what they are
    "training": {"batch_size": 4, "epochs": 1, "device": "cpu"},
    "snapshot": {"best": False},
    "log": {"every": "1 iteration"},
}


def weights(arch, classes):
    """A network whose statistics are no network's at its start."""
    network = MODELS[arch](classes)
    for link in network.links():
        if isinstance(link, L.BatchNormalization):
            link.avg_mean[...] = np.random.uniform(-0.1, 0.1, link.avg_mean.shape)
    return network


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Runs the command in an empty folder with a config; returns what it has said."""
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(SECTIONS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Plots, "__call__", lambda self, trainer: None)  # which takes most of the time
    return lambda *arguments: call(lambda argv: command.main(argv, MODELS), "--config", "c.yaml", *arguments)


def _set(*settings):
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.slow
def test_a_run_from_weights_of_another_number_of_classes(train, tmp_path):
    """From a file of PyTorch, in FP16, as all of a run: the head is new, the rest is that of the file."""
    network = weights("resnet8", 1000)
    write("w.safetensors", network)
    done = train("--out", "out")
    assert (done.returncode, done.stderr) == (0, "")
    line = "weights: 54 tensors of w.safetensors; /fc is initialized anew, with 10 classes instead of 1000"
    assert line in done.stdout.splitlines()
    assert configs.load("out/config.yaml").model.weights == "w.safetensors"
    trained = MODELS["resnet8"](10)
    serializers.load_npz("out/model.npz", trained)
    for name, param in network.namedparams():
        if not name.startswith("/fc"):
            found = dict(trained.namedparams())[name].array
            np.testing.assert_allclose(found, param.array, rtol=0, atol=1e-7, err_msg=name)

    # The weights of this run have the same head.
    again = train("--dry-run", *_set("model.weights=out/model.npz"))
    assert (again.returncode, again.stderr) == (0, "")
    assert "weights: 56 tensors of out/model.npz" in again.stdout.splitlines()
    assert "  weights: out/model.npz" in again.stdout.splitlines()
    snapshot = train("--dry-run", *_set("model.weights=out/snapshot_iter_3.npz"))
    assert "weights: 56 tensors of out/snapshot_iter_3.npz" in snapshot.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compute", "layout"), [("float16", "nhwc"), ("bfloat16", "nhwc"), ("float16", "nchw"), ("float32", "nchw")]
)
def test_masters_and_statistics_are_the_files_bit_for_bit(train, compute, layout):
    """The FP16 parameters are these, rounded. A scale that starts at 0 does not win over the file."""
    network = weights("resnet18", 3)
    write("w.npz", network)
    overrides = [f"precision.compute={compute}", f"model.memory_format={layout}", "model.zero_init_residual=true"]
    config = configs.load("c.yaml", [*overrides, "model.arch=resnet18", "model.classes=3", "model.weights=w.npz"])
    start = StartingWeights(config.model)
    model, optimizer, _ = build_model(config, MODELS["resnet18"], "@numpy", weights=start)
    assert str(start) == "122 tensors of w.npz"
    expected = contents(network)
    for name, param in model.predictor.namedparams():
        np.testing.assert_array_equal(optimizer.master(param).array, expected[name[1:]], strict=True)
        np.testing.assert_array_equal(param.array, expected[name[1:]].astype(param.dtype), strict=True)
    for name, array in contents(model.predictor).items():
        np.testing.assert_array_equal(array, expected[name], strict=True)


def test_a_network_of_the_users_own_takes_a_file_of_its_twin(train, tmp_path, monkeypatch):
    (tmp_path / "nets_with_weights.py").write_text(
        "import chainer\nimport chainer.functions as F\nimport chainer.links as L\n\n"
        "def make(classes):\n"
        "    pool = lambda h: F.average(h, axis=(2, 3))\n"
        "    return chainer.Sequential(L.Convolution2D(None, 4, 3), F.relu, pool, L.Linear(None, classes))\n"
    )
    rng = np.random.default_rng(0)
    shapes = {"0.weight": (4, 3, 3, 3), "0.bias": (4,), "3.weight": (7, 4), "3.bias": (7,)}
    state = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    from safetensors.numpy import save_file

    save_file(state, "w.safetensors")
    done = train("--out", "out", *_set("model.arch=nets_with_weights:make", "model.classes=3"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "weights: 2 tensors of w.safetensors; /1 is initialized anew, with 3 classes instead of 7\n" in done.stdout
    np.testing.assert_allclose(np.load("out/model.npz")["0/W"], state["0.weight"], rtol=0, atol=1e-7)


def test_the_seed_decides_the_head_and_weights_leave_the_rest_of_a_run_alone(train):
    """The same weights as the network's own are the same run, bit for bit."""
    assert train("--out", "one", *_set("model.weights=null", "optimizer.lr=0.1")).returncode == 0
    np.random.seed(0)
    with chainer.using_config("dtype", np.float32):
        write("w.npz", MODELS["resnet8"](10))
    other = train("--out", "two", *_set("model.weights=w.npz", "optimizer.lr=0.1", "training.seed=0"))
    assert other.returncode == 0
    with np.load("one/model.npz") as one, np.load("two/model.npz") as two:
        assert all(one[name].tobytes() == two[name].tobytes() for name in one.files)


BAD_FILES = [
    ("none.npz", "none.npz: no such file"),
    ("c.yaml", "c.yaml: the suffix determines the format of weights; allowed: .npz, .safetensors, .pt, .pth"),
    ("bad.safetensors", "bad.safetensors: damaged, or not a .safetensors file (SafetensorError: "),
    ("deep.npz", "deep.npz: has layer1/1/bn1/N and 35 more tensors, which CifarResNet here lacks: weights of"),
    ("other.npz", "other.npz: lacks fc/W (10, 64) and 1 more tensors, which CifarResNet here has: weights of"),
]


@pytest.mark.parametrize(("value", "message"), BAD_FILES)
def test_a_bad_file_is_one_line_before_the_images_are_looked_at(train, tmp_path, monkeypatch, value, message):
    write("deep.npz", MODELS["resnet14"](10))
    np.savez(
        "other.npz", **{name: a for name, a in contents(MODELS["resnet8"](10)).items() if not name.startswith("fc")}
    )
    (tmp_path / "bad.safetensors").write_bytes(b"{}" * 9)
    before = sorted(path.name for path in tmp_path.iterdir())
    monkeypatch.setattr(images, "open_sources", None)
    done = train("--out", "out", *_set(f"model.weights={value}"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: --set: 'model.weights' cannot be loaded into resnet8: {message}")
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**SECTIONS, "model": {**SECTIONS["model"], "weights": value}}))
    assert train("--out", "out").stderr.startswith("error: c.yaml: 'model.weights' cannot be loaded into resnet8: ")


def test_the_config_of_the_page_loads(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "export.md").read_text(), re.DOTALL)
    (tmp_path / "c.yaml").write_text(text)
    config = configs.load(tmp_path / "c.yaml")
    assert (config.model.arch, config.model.weights) == ("resnet50", "resnet50-0676ba61.pth")
    assert config.data.mean == tuple(round(255 * value, 3) for value in (0.485, 0.456, 0.406))
    assert config.data.std == tuple(round(255 * value, 3) for value in (0.229, 0.224, 0.225))


@pytest.mark.parametrize(
    ("path", "suffix"), first(6, zip(ODD_PATHS, itertools.cycle(("", ".npz", ".safetensors")), strict=False))
)
def test_odd_paths(train, tmp_path, path, suffix):
    model = {**SECTIONS["model"], "weights": f"{path}{suffix}"}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**SECTIONS, "model": model}))
    done = train("--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: c.yaml:")
    assert "model.weights" in done.stderr
    assert done.stderr.count("\n") == 1
