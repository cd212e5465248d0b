"""A network of the user's own, by its import path: the example of docs/own-network.md, and every way to fail."""

import functools
import itertools
import re
import shlex
import subprocess
import sys

import chainer
import numpy as np
import pytest
import yaml
from PIL import Image

from mixprec.app.commands import train
from mixprec.training.plots import Plots
from tests import ROOT
from tests.called import call

pytest.importorskip("nvidia.dali", reason='needs NVIDIA DALI: pip install -e ".[dali]"')

PAGE = (ROOT / "docs" / "own-network.md").read_text()
CODE, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CONFIG, *_ = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.search(r"```bash\n(mixprec digits.*?)```", PAGE, re.DOTALL)[1].splitlines()

NETS = (
    CODE
    + """

class Residual(SmallNet):
    def __init__(self, classes, zero_init_residual=False):
        super().__init__(classes)
        if zero_init_residual:
            self.bn2.gamma.array[...] = 0


class NoClasses(SmallNet):
    def __init__(self):
        super().__init__(10)


class WithLoss(SmallNet):
    def forward(self, x, t):
        return F.softmax_cross_entropy(super().forward(x), t)


class Image(SmallNet):
    def forward(self, x):
        return self.conv1(x)


class Whole(SmallNet):
    def forward(self, x):
        return F.cast(super().forward(x), "int32")


class FailsInEvaluation(SmallNet):
    def forward(self, x):
        return super().forward(x) if chainer.config.train else self.fc(x)


class Nothing(chainer.Chain):
    def __init__(self, classes):
        super().__init__()
        self.classes = classes

    def forward(self, x):
        return F.average(x, axis=(2, 3))[:, : self.classes]


class Inner:
    net = SmallNet


def raises(classes):
    raise LookupError("nothing\\nhere\\x1b[1m" + 1000 * "!")


class Own(BaseException):
    def __str__(self):
        raise ValueError


def speechless(classes):
    raise Own


def classifier(classes):
    return L.Classifier(SmallNet(classes))


def number(classes):
    return 3


made = SmallNet(3)
seven = 7
"""
)
MODULES = {
    "nets.py": NETS,
    "package/__init__.py": "",
    "package/nets.py": "from nets import SmallNet",
    "package/needs.py": "import package.nets\nimport nobody_has_this",
    "ill.py": "import chainer\n\nraise RuntimeError('ill')\n",
    "quits.py": "import sys\n\nsys.exit('usage: quits')\n",
    "code.py": "def net(classes): ...\n",
}


@pytest.fixture
def work(tmp_path, monkeypatch):
    """The user's folder: modules, a config, and the images of three classes, 6 and 3."""
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    random = np.random.RandomState(0)
    for (split, count), label in itertools.product((("train", 2), ("val", 1)), "abc"):
        (tmp_path / split / label).mkdir(parents=True)
        for index in range(count):
            Image.fromarray(random.randint(0, 255, (12, 12, 3)).astype(np.uint8)).save(
                tmp_path / split / label / f"{index}.png"
            )
    settings = {
        "model": {"arch": "nets:SmallNet", "classes": 3},
        "data": {"train": "train", "val": "val", "size": 8, "resize": 8, "threads": 1},
        "optimizer": {"lr": 0.02},
        "training": {"batch_size": 3, "epochs": 2, "device": "cpu"},
        "snapshot": {"every": "1 epoch"},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(Plots, "__call__", lambda self, trainer: None)
    yield tmp_path
    for name in [name for name in sys.modules if f"{name.partition('.')[0]}" in ("nets", "package", "ill", "quits")]:
        del sys.modules[name]


@pytest.fixture
def run(work):
    """Calls the command with the config and further arguments."""
    return functools.partial(call, train.main, "--config", "mine.yaml")


@pytest.mark.slow
def test_the_example_of_the_docs_trains_as_printed(tmp_path):
    """In an empty folder; one epoch of the 355 validation images, as the whole run takes minutes."""
    assert len(CODE.splitlines()) <= 22
    (tmp_path / "nets.py").write_text(CODE)
    (tmp_path / "mine.yaml").write_text(CONFIG)
    settings = ("data.train=data/digits/val", "training.epochs=1", "schedule.warmup_epochs=0", "training.device=cpu")
    short = " ".join(["--out out", *(f"--set {setting}" for setting in settings)])
    for command, more in zip(COMMANDS, ("", short), strict=True):
        program, *arguments = shlex.split(f"{command} {more}")
        assert program == "mixprec"
        process = subprocess.run(
            [sys.executable, "-W", "error", "-m", program, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert (process.returncode, process.stderr) == (0, "")
    assert "validation accuracy 0." in process.stdout
    assert "/conv2" in (tmp_path / "out" / "conversion.txt").read_text()
    plain = {}
    exec(CODE, plain)
    network = plain["SmallNet"](10)
    chainer.serializers.load_npz(tmp_path / "out" / "model.npz", network)


def test_a_network_of_ones_own_trains_and_resumes_from_any_module(run, work):
    """A function or a class, in a module, a package or a namespace; the config of the results has the import path."""
    for arch in ("package.nets:SmallNet", "nets:Inner.net"):
        process = run("--out", arch[:4], "--set", f"model.arch={arch}")
        assert (process.returncode, process.stderr) == (0, "")
        assert yaml.safe_load((work / arch[:4] / "config.yaml").read_text())["model"]["arch"] == arch
    expected = (work / "pack" / "model.npz").read_bytes()
    assert (work / "nets" / "model.npz").read_bytes() == expected
    (work / "pack" / "snapshot_iter_4.npz").unlink()
    process = call(train.main, "--config", work / "pack" / "config.yaml", "--out", "pack", "--resume", "auto")
    assert (process.returncode, process.stderr) == (0, "")
    assert "resuming from pack/snapshot_iter_2.npz" in process.stdout
    assert (work / "pack" / "model.npz").read_bytes() == expected


def test_a_dry_run_of_a_network_of_ones_own_with_blocks_that_start_at_zero(run, work):
    settings = ("--set", "model.arch=nets:Residual", "--set", "model.zero_init_residual=true")
    process = run("--dry-run", *settings)
    assert (process.returncode, process.stderr) == (0, "")
    assert "arch: nets:Residual" in process.stdout


def test_no_module_is_hidden_by_a_file_of_the_working_directory(run, work, monkeypatch):
    before = [folder for folder in sys.path if folder]  # "" of another test is the working directory, too
    monkeypatch.setattr(sys, "path", before[:])
    assert run("--set", "model.arch=code:net").stderr.startswith(
        f"error: --set: 'model.arch' is 'code:net': code has no attribute net in {sys.modules['code'].__file__}"
    )
    assert sys.path == [*before, str(work)]


WANTED = "; wanted: a function or class that is called with the number of classes and makes a chainer.Link"
LINK = "; wanted: a chainer.Link from images to logits, without the loss"
LOGITS = "; wanted: logits, a chainer.Variable (2, 3) in floating point"
TRAINING = "in training on images (2, 3, 8, 8) float32 it "
BAD = {
    "nets.py:SmallNet": "or an import path, package.module:function; did you mean 'nets:SmallNet'?",
    "nets:Small-Net": "resnet8, resnext50_32x4d, or an import path, package.module:function",
    "nowhere:Net": "there is no module 'nowhere' in the working directory, in PYTHONPATH, or among the installed ",
    "package.net:Net": "there is no module 'net' in package, which is package/__init__.py",
    "package.needs:Net": "importing package.needs failed: ModuleNotFoundError: No module named 'nobody_has_this' "
    "(package/needs.py, line 2)",
    "ill:Net": "importing ill failed: RuntimeError: ill (ill.py, line 3)",
    "quits:Net": "importing quits failed: SystemExit: usage: quits (quits.py, line 3)",
    "nets:SmallNets": "nets has no attribute SmallNets in nets.py; did you mean 'SmallNet'?",
    "nets:seven": f"found int{WANTED}",
    "nets:made": f"found a SmallNet instance{WANTED}",
    "nets:NoClasses": "it is called with the number of classes, NoClasses(3), and takes (): too many positional",
    "nets:raises": "called with 3 it raises LookupError: nothing here\\x1b[1m!!!",
    "nets:speechless": "called with 3 it raises Own (nets.py, line ",
    "nets:number": f"called with 3 it returns int{LINK}",
    "nets:classifier": f"called with 3 it returns Classifier{LINK}",
    "nets:Nothing": "called with 3 it returns a Nothing without parameters to train",
    "nets:WithLoss": f"{TRAINING}raises TypeError: WithLoss.forward() missing 1 required positional argument: 't'",
    "nets:Image": f"{TRAINING}returns Variable (2, 32, 8, 8) float32{LOGITS}",
    "nets:Whole": f"{TRAINING}returns Variable (2, 3) int32{LOGITS}",
    "nets:FailsInEvaluation": "in evaluation on images (2, 3, 8, 8) float32 it raises InvalidType: ",
}


@pytest.mark.parametrize("arch", BAD)
def test_what_is_wrong_with_a_network_of_ones_own_is_one_line_before_the_data_are_looked_at(run, work, arch):
    before = sorted(work.rglob("*"))
    process = run("--set", f"model.arch={arch}", "--set", "data.train=nowhere")
    assert process.returncode == 2, process.stdout + process.stderr
    (line,) = process.stderr.splitlines()
    assert line.startswith(f"error: --set: 'model.arch' is {arch!r}")
    assert BAD[arch] in line
    assert len(line) < 700
    assert process.stdout == ""
    assert sorted(work.rglob("*")) == before


def test_an_unknown_name_tells_the_names_and_the_form_of_an_import_path(run):
    (line,) = run("--set", "model.arch=SmallNet").stderr.splitlines()
    assert line.startswith("error: --set: 'model.arch' is 'SmallNet'; allowed: resnet101, ")
    assert line.endswith(", resnext50_32x4d, or an import path, package.module:function")


def test_what_is_wrong_with_a_network_that_the_file_names_has_the_file_as_its_place(run, work):
    config = work / "mine.yaml"
    for arch in ("nets:number", "nowhere:Net"):
        config.write_text(re.sub("arch: .*", f"arch: {arch}", config.read_text()))
        (line,) = run("--set", "training.epochs=1").stderr.splitlines()
        assert line.startswith(f"error: mine.yaml: 'model.arch' is '{arch}': ")
