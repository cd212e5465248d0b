"""mixprec convert-report as people run it: models of all kinds, and every kind of bad input."""

import functools
import json
import subprocess
import sys

import numpy as np
import pytest

from mixprec.app.commands import convert_report as convert_command
from tests import ROOT
from tests.called import call

NETS = '''
import chainer
import chainer.functions as F
import chainer.links as L


class Net(chainer.Chain):
    """Images -> logits."""

    def __init__(self, classes=5, channels=8):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(None, channels, 3, pad=1, nobias=True)
            self.bn = L.BatchNormalization(channels)
            self.fc = L.Linear(None, classes)

    def forward(self, x):
        return self.fc(F.relu(self.bn(self.conv(x))))


class Words(chainer.Chain):
    """Two inputs, and a loss of its own."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(7, 4)
            self.fc = L.Linear(8, 3)

    def forward(self, x, t):
        return F.softmax_cross_entropy(self.fc(self.embed(x)), t)


class Shift(chainer.Link):
    """No link that anybody knows."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.b = chainer.Parameter(0.0, (3,))

    def forward(self, x):
        return x + self.b


class Fails(chainer.Chain):
    def forward(self, x):
        raise ArithmeticError("no good:\\n  this number")


def broken():
    raise LookupError("nothing\\nhere")


def number():
    return 3


net = Net()
classifier = L.Classifier(net)
seven = 7
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("user")
    (folder / "nets.py").write_text(NETS)
    (folder / "ill.py").write_text("import chainer\nraise RuntimeError('ill')\n")
    return folder


@pytest.fixture
def run(folder, monkeypatch):
    """Calls the command in the user's folder; the user's modules are imported anew, and forgotten."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield functools.partial(call, convert_command.main)
    for name in ("nets", "ill"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_the_command_imports_from_the_current_directory(folder):
    command = [sys.executable, ROOT / "scripts" / "convert_report.py", "nets:Net", "--input", "2x3x8x8", "--strict"]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("link")


GOOD = [
    ("nets:Net(5, channels=8)", "--input", "2x3x8x8:float16"),
    ("nets:net", "--input", "4x3x8x8:float32", "--strict"),
    ("nets:classifier", "--input", "2x3x8x8"),
]


@pytest.mark.parametrize("arguments", GOOD, ids=" ".join)
def test_it_prints_the_report(run, arguments):
    process = run(*arguments)
    assert process.returncode == 0, process.stderr
    header, *table = process.stdout.split("\n\n")[0].splitlines()
    assert header.split() == ["link", "class", "before", "after", "why", "fused", "with,", "or", "why", "not"]
    assert [row.split()[0].split("/")[-1] for row in table] == ["bn", "conv", "fc"]
    (bn, conv, _) = [row.split() for row in table]
    assert bn[1:4] + bn[-1:] == ["BatchNormalization", "float32", "float32", "ReLU"]
    assert conv[1:4] == ["Convolution2D", "float32", "float16"]
    assert "1 with ReLU, 0 alone" in process.stdout


def test_other_settings_and_json(run, folder):
    plain = ("--compute", "float32", "--layout", "nchw")
    process = run("nets:Net", "--input", "2x3x8x8", *plain, "--json", "report.json")
    assert process.returncode == 0, process.stderr
    report = json.loads((folder / "report.json").read_text())
    assert (report["compute"], report["layout"], report["conversions"]) == ("float32", "nchw", [])
    assert report["parameters"] == {"float32": 3 * 8 * 9 + 2 * 8 + 8 * 64 * 5 + 5}
    assert sorted(link["name"] for link in report["links"]) == ["/bn", "/conv", "/fc"]
    assert [path.name for path in folder.glob(".tmp-*")] == []


def test_several_inputs_are_positional_arguments(run):
    process = run("nets:Words", "--input", "4x2:int32", "--input", "4:int32", "--keep-float32", "/f*")
    assert process.returncode == 0, process.stderr
    assert "/embed  EmbedID  float32  float16" in process.stdout
    assert "/fc     Linear   float32  float32  keep_float32" in process.stdout


def test_a_model_of_chainer(run):
    process = run("chainer.links:Linear(3, 2)", "--input", "2x3")
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[1].split()[:4] == ["/", "Linear", "float32", "float16"]


def test_a_network_that_comes_with_mixprec(run):
    process = run("resnet8", "--input", "2x3x8x8")
    assert process.returncode == 0, process.stderr
    assert "as it was:            nothing" in process.stdout


def test_strict_prints_the_report_and_says_what_is_left(run):
    process = run("nets:Shift", "--input", "2x3", "--strict")
    assert process.returncode == 1
    assert process.stdout.startswith("link")
    assert process.stderr == "error: --strict: not converted: / (Shift): not a link that mixprec knows\n"


BAD = {
    ("ill:Net",): "importing ill failed: RuntimeError: ill (ill.py, line 2)",
    ("nets:Nets",): "nets has no attribute Nets in nets.py; did you mean 'net'?",
    ("nets:seven",): "nets:seven must be a chainer.Link or make one; found int",
    ("nets:number",): "nets:number must return a chainer.Link; found int",
    ("nets:broken",): "nets:broken cannot be called: LookupError: nothing here (nets.py, line 52)",
    ("nets:Net(kind=3)",): "nets:Net cannot be called: TypeError: ",
    ("nets:Net(classes=len([]))",): "MODEL must be module:callable or module:callable(arguments), with Python literals",
    ("nets:Net", "--input", "2x3x"): "--input must be SHAPE[:DTYPE], such as 2x3x224x224",
    (
        "nets:Fails",
        "--input",
        "2x3",
    ): "Fails called on (2, 3) float32: ArithmeticError: no good: this number (nets.py, line 48)",
    ("nets:Net", "--layout", "nchw", "--compute", "bfloat16"): "compute='bfloat16' needs layout='nhwc'",
    ("nets:Net", "--input", "2x3x8x8", "--keep-float32", "/cov"): "'/cov' matches no link; did you mean '/conv'",
    ("nets:Net", "--input", "2x3x8x8", "--json", "no/r.json"): "cannot write no/r.json: No such file or directory",
}


@pytest.mark.parametrize("arguments", list(BAD), ids=" ".join)
def test_bad_input_is_one_line_and_exit_code_2(run, arguments):
    process = run(*arguments)
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert line.startswith("error: ")
    assert BAD[arguments] in line


@pytest.mark.parametrize("text", ["m", "m:", ":a", "m:a(b)", "m:a(**{})", "m:a[0]", "m:a()()", "m n:a", "m:(a).b()+1"])
def test_what_is_no_model(text):
    with pytest.raises(convert_command.CommandError, match="MODEL must be"):
        convert_command.parse_model(text)


def test_how_a_model_reads():
    assert convert_command.parse_model("a.b:c.d") == ("a.b", "c.d", None, {})
    assert convert_command.parse_model("a:c( 1, 'x', [2, None], e={'f': -3.5})") == (
        *("a", "c", (1, "x", [2, None])),
        {"e": {"f": -3.5}},
    )


@pytest.mark.parametrize("text", ["", "0x3", "-1x3", "2,3", "2x3:", "2x3:object", "2x²", "2x3:float32:float32"])
def test_what_is_no_input(text):
    with pytest.raises(convert_command.CommandError, match="--input must be"):
        convert_command.parse_input(text)


def test_how_an_input_reads():
    np.testing.assert_array_equal(convert_command.parse_input("2x1:int32"), np.zeros((2, 1), np.int32), strict=True)
    images = convert_command.parse_input("200x50")
    assert (images.shape, images.dtype) == ((200, 50), np.float32)
    assert abs(images.std() - 1) < 0.05
    np.testing.assert_array_equal(images, convert_command.parse_input("200x50"))
