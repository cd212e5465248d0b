"""All commands of a wheel, one after the other, as its user calls them: in another folder, without the checkout."""

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request

import numpy as np
import pytest

from tests.app.monitor.server import TOKEN, free_port

pytestmark = pytest.mark.long

COMMANDS = [
    *("train", "evaluate", "predict", "export", "weights", "convert-report", "pack", "digits", "monitor", "tune"),
    "info",
]
LINES = 20  # of a help, on a terminal with 80 columns
EPOCHS = 3
LEAST = 0.8  # of the validation images, after so many epochs; chance is 0.1


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """The folder in which all of it is done; what one test leaves there, the next ones read."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def call(environment, work):
    """Runs ``mixprec``, and returns what it printed."""

    def run(*arguments, code=0):
        return environment.mixprec(*arguments, cwd=work, code=code)

    return run


@pytest.fixture(scope="module")
def digits(call, work):
    printed, _ = call("digits", "data/digits")
    assert printed == "data/digits: 1442 training and 355 validation images\n"
    return work / "data" / "digits"


@pytest.fixture(scope="module")
def run(call, digits, work):
    printed, _ = call("train", "--config", "digits.yaml", "--set", f"training.epochs={EPOCHS}", "--out", "run")
    accuracy = float(re.search(r"validation accuracy ([\d.]+)", printed)[1])
    assert accuracy > LEAST
    return work / "run", accuracy


@pytest.fixture(scope="module")
def exported(call, run):
    call("export", "--run", "run", "--out", "exported", "--fp16", "--images", "64")
    files = sorted(path for path in (run[0].parent / "exported").glob("*.onnx"))
    assert len(files) == 2
    return files


def test_each_command_has_a_help_that_fits_on_a_screen(call):
    printed, errors = call("--help")
    assert errors == ""
    assert re.findall(r"^  ([a-z-]+)  ", printed, re.MULTILINE) == COMMANDS
    for name in COMMANDS:
        printed, errors = call(name, "--help")
        assert printed.startswith(f"usage: mixprec {name} ")
        assert len(printed.splitlines()) <= LINES
        assert (errors, "scripts/" in printed) == ("", False)


def test_info(call):
    printed, _ = call("info")
    assert len(printed.splitlines()) <= 24
    assert "mixprec" in printed
    assert call("--version")[0] == "mixprec 0.1.0\n"


def test_evaluation_has_the_accuracy_of_the_training(call, run):
    folder, accuracy = run
    printed, _ = call("evaluate", "--run", "run", "--json", "evaluation.json")
    found = json.loads((folder.parent / "evaluation.json").read_text())
    assert f"top-1 {100 * accuracy:.2f} %" in printed
    assert found["images"] == 355


def test_prediction_from_weights_and_from_onnx_agree(call, run, digits, exported):
    images = sorted((digits / "val" / "3").iterdir())[:5]
    first = []
    for model in (["--run", "run"], *([file] for file in exported)):
        printed, _ = call("predict", *model, *images)
        first.append(re.findall(r"^(?:.*?)(?:val/3/\S+).*$", printed, re.MULTILINE))
        assert len(first[-1]) == len(images)


def test_weights_go_to_pytorch_and_back(call, run):
    call("weights", "run/model.npz", "model.safetensors", "--arch", "resnet8")
    call("weights", "model.safetensors", "back.npz", "--arch", "resnet8")
    folder = run[0].parent
    with np.load(folder / "run" / "model.npz") as before, np.load(folder / "back.npz") as after:
        assert before.files
        assert all(np.array_equal(before[name], after[name]) for name in after.files)


def test_pack_and_report(call, digits):
    call("pack", "--source", digits / "val", "--out", "shards", "--format", "tfrecord")
    printed, _ = call("pack", "--verify", "shards")
    assert printed == "shards: 355 images in 1 shard are as they were packed\n"
    printed, _ = call("convert-report", "mixprec.recipes.models.resnet_cifar:resnet8", "--input", "2x3x32x32")
    assert "float16, NHWC" in printed


def test_monitor(environment, run):
    port = free_port()
    usual = {name: value for name, value in environment.variables.items() if not name.startswith("PYTEST")}
    variables = {**usual, "MIXPREC_MONITOR_TOKEN": TOKEN}
    command = [environment.command, "monitor", ".", "--port", str(port)]
    process = subprocess.Popen(command, cwd=run[0].parent, env=variables, stdout=subprocess.PIPE, text=True)
    try:
        assert "Ctrl-C" in process.stdout.readline() + process.stdout.readline()
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(asked, timeout=60) as page:
            assert page.status == 200
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode in (0, 130)


def test_messages_name_what_a_user_of_a_wheel_has(call, work):
    """Neither the checkout's files nor ``pip install .`` help."""
    _, errors = call("train", "--config", "digits.yaml", "--set", "data.train=nowhere", code=2)
    assert re.fullmatch(r"error: .*nowhere.*\n", errors)
    _, errors = call("train", "--config", "digits.yaml", "--out", "other", "--set", "data.val=data/none", code=2)
    assert "scripts/" not in errors
    shutil.rmtree(work / "other", ignore_errors=True)
    assert os.path.exists(work)
