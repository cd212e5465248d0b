"""mixprec weights as people run it: both directions, the network that it finds, and bad input."""

import subprocess
import sys

import chainer.links as L
import numpy as np
import pytest
from chainer import serializers

from mixprec.app.commands import weights as weights_command
from mixprec.export.matching import contents
from mixprec.export.weight_files import write
from models import MODELS
from tests import ROOT
from tests.called import Called, call

NETS = """
import chainer
import chainer.links as L
from models.resnet import Bottleneck, ResNet


class Narrow(Bottleneck):
    group_width = 8


def narrow(classes):
    return ResNet(Narrow, (2, 1, 1, 3), classes, channels=16)


def fails(classes):
    raise ArithmeticError("no" + chr(10) + "good")


def number(classes):
    return classes
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    (tmp_path / "nets_to_convert.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("nets_to_convert", None)


def convert(*arguments):
    return call(weights_command.main, *arguments)


def save(path, arch, classes):
    network = MODELS[arch](classes)
    for link in network.links():
        if isinstance(link, L.BatchNormalization):
            link.avg_mean[...] = np.random.standard_normal(link.avg_mean.shape)
            link.N = 3
    write(path, network)


def assert_same_bits(path, other):
    with np.load(path) as a, np.load(other) as b:
        assert set(a.files) == set(b.files)
        for name in a.files:
            assert (a[name].dtype, a[name].shape) == (b[name].dtype, b[name].shape)
            assert a[name].tobytes() == b[name].tobytes()


@pytest.mark.parametrize(
    ("arch", "classes", "tensors"),
    [("resnet8", 10, 56), ("resnet10_small", 3, 74), pytest.param("resnext50_32x4d", 7, 320, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_to_pytorch_and_back_is_exact_and_the_network_is_found(work, arch, classes, tensors, suffix):
    if suffix == ".pt":
        pytest.importorskip("torch", reason="torch is not installed: it comes with Python 3.11 only")
    save("a.npz", arch, classes)
    said = f"b{suffix}: {tensors} tensors of {arch} from a.npz\n"
    assert convert("a.npz", f"b{suffix}") == Called(0, said, "")
    said = f"c.npz: {tensors} tensors of {arch} from b{suffix}\n"
    assert convert(f"b{suffix}", "c.npz") == Called(0, said, "")
    assert_same_bits("a.npz", "c.npz")
    serializers.load_npz("c.npz", MODELS[arch](classes))  # as plain Chainer does


@pytest.mark.slow
def test_the_script_as_a_process(work):
    save("a.npz", "resnet8", 10)
    command = [sys.executable, ROOT / "scripts" / "convert_weights.py", "a.npz", "a.safetensors", "--arch", "resnet8"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout == "a.safetensors: 56 tensors of resnet8 from a.npz\n"


def test_a_network_of_the_users_own(work):
    from nets_to_convert import narrow

    network = narrow(6)
    write("a.npz", network)
    few = {name: MODELS[name] for name in ("resnet8", "resnet10_small")}
    found = call(lambda argv: weights_command.main(argv, few), "a.npz", "a.safetensors")
    words = "its names and shapes match none of resnet8, resnet10_small; give --arch package.module:function"
    assert found.returncode == 2
    assert found.stderr.startswith(f"error: a.npz: {words}, which makes the network")
    assert convert("a.npz", "a.safetensors", "--arch", "nets_to_convert:narrow").returncode == 0
    assert convert("a.safetensors", "b.npz", "--arch=nets_to_convert:narrow").stderr == ""
    other = narrow(6)
    serializers.load_npz("b.npz", other)
    for name, array in contents(network).items():
        np.testing.assert_array_equal(contents(other)[name], array)


BAD = [
    (("a.npz", "b.npz"), "a.npz and b.npz: both are of the same kind; one of them must be .npz, Chainer's format"),
    (("a.npz", "b.onnx"), "b.onnx: the suffix determines the format of weights; allowed: .npz, .safetensors, .pt"),
    (("a.npz", "no/b.safetensors"), "no/b.safetensors: cannot be written (No such file or directory)"),
    (("none.npz", "b.pt"), "none.npz: no such file"),
    (("bad.npz", "b.pt"), "bad.npz: damaged, or not an .npz file (BadZipFile: File is not a zip file)"),
    (("a.npz", ""), "argument OUT: it is empty; give a file"),
    (
        ("a.npz", "b.safetensors", "--arch", "resnet14"),
        "a.npz: lacks layer1/1/bn1/avg_mean (16,) and 29 more tensors, which CifarResNet here has: weights of",
    ),
    (("a.npz", "b.safetensors", "--arch", "resnet"), "--arch is 'resnet'; allowed: resnet8, resnet14, "),
    (
        ("a.npz", "b.safetensors", "--arch", "nets_to_convert:no"),
        "--arch is 'nets_to_convert:no': nets_to_convert has no attribute no",
    ),
    (
        ("a.npz", "b.safetensors", "--arch", "nets_to_convert:fails"),
        "--arch is 'nets_to_convert:fails': called with the number of classes it raises ArithmeticError: no good",
    ),
    (
        ("a.npz", "b.safetensors", "--arch", "nets_to_convert:number"),
        "--arch is 'nets_to_convert:number': called with the number of classes it returns int; wanted: a chainer",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_nothing_is_written(work, arguments, message):
    save("a.npz", "resnet8", 10)
    (work / "bad.npz").write_text("no weights")
    before = {path.name for path in work.iterdir()}
    found = convert(*arguments)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(f"error: {message}"), found.stderr
    assert len(found.stderr.splitlines()) == 1
    assert {path.name for path in work.iterdir()} - {"__pycache__"} == before


def test_a_name_with_a_line_break(work):
    assert convert("a\nb.npz", "c.pt") == Called(2, "", "error: a\\nb.npz: no such file\n")
