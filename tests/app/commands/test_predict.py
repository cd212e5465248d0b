"""mixprec predict: the network of a run, and files that are not, or do not say, what they should: one line."""

import json
import os
import re
import shutil
import warnings

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="ONNX is not installed: extra export")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: extra export")

from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from mixprec.app.commands import predict
from tests.app.finished import runs
from tests.called import call
from tests.guard import guarded

METADATA = {"resize": 8, "size": 8, "mean": [0, 0, 0], "std": [1, 1, 1], "classes": ["red", "green", "blue"]}
METADATA["input"] = "float32 NCHW"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8), (0, 250, 0)).save("green.png")
    with guarded():
        yield


def write(*nodes, images=("N", 3, 8, 8), dtype=TensorProto.FLOAT, more=(), logits=("N", 3), **metadata):
    """Writes ``model.onnx``: the mean of each channel is the logit of its class, but for what the arguments say."""
    inputs = [helper.make_tensor_value_info("images", dtype, images), *more]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, logits)]
    constants = {"axes": [2, 3], "twice": [2, 1], "vast": [1, 3, 60000, 60000]}
    nodes = nodes or [helper.make_node("ReduceMean", ["images", "axes"], ["logits"], keepdims=0)]
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "graph", inputs, outputs, initializer=constants),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}
    helper.set_model_props(model, {name: json.dumps(value) for name, value in METADATA.items()} | texts)
    onnx.save(model, "model.onnx")


def refused(capfd, model="model.onnx", image="green.png"):
    """The one line that the command ends with."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert predict.main([model, image]) == 2
    out, error = capfd.readouterr()
    assert out == ""
    assert error.startswith(f"error: {model}: ")
    assert error.count("\n") == 1
    return error.removeprefix(f"error: {model}: ").rstrip("\n")


def test_the_best_classes_come_first(capsys):
    write()
    assert predict.main(["model.onnx", "green.png"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("green.png: ")
    assert lines[1:] == ["  100.0 %  green", "    0.0 %  red", "    0.0 %  blue"]


WRONG_METADATA = [
    *[("classes", value) for value in (3, [1, 2, 3], [["a"], ["b"], ["c"]], [], "null")],
    *[("mean", value) for value in ([1, 2], 1, [1, 2, True], ["1", "2", "3"], [10**400, 1, 1], "[1, 2, NaN]")],
    *[("std", value) for value in ([0, 0, 0], [1, 1, 1e-300], "[1, 1, Infinity]")],
    *[("size", value) for value in (True, 8.0, 0, 10**9)],
    *[("resize", value) for value in (True, None, 0, 10**30)],
    *[("input", value) for value in ("null", ["float32 NCHW"], '"NCHW"', {})],
]


@pytest.mark.parametrize(("name", "value"), WRONG_METADATA)
def test_metadata_that_are_not_of_their_kind_are_named(name, value, capfd):
    write(**{name: value})
    assert refused(capfd) == f"'{name}' in its metadata is not as mixprec export writes it"


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000])
def test_metadata_that_are_no_json_are_named(text, capfd):
    write(classes=text)
    assert refused(capfd) == "'classes' in its metadata is not JSON"


CHANGES = [
    *({"images": ("N", 3, 16, 16)}, {"images": ("N", 1, 8, 8)}, {"images": ("N", "C", "H", "W")}),
    *({"images": ("N", 192)}, {"images": ()}, {"images": (4, 3, 8, 8), "logits": (4, 3)}),
    *({"dtype": TensorProto.DOUBLE}, {"input": '"uint8 NHWC"'}, {"size": 4}),
    {"more": (helper.make_tensor_value_info("more", TensorProto.FLOAT, ["N"]),)},
]


@pytest.mark.parametrize("change", CHANGES)
def test_an_input_that_is_not_what_the_metadata_say_is_refused(change, capfd):
    nodes = [
        helper.make_node("Cast", ["images"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("RandomUniformLike", ["float"], ["random"]),
        helper.make_node("Identity", ["random"], ["logits"]),
    ]
    write(*nodes, **{"logits": None, **change})
    assert refused(capfd) == "its input is not one batch of images as its metadata describes"


def test_a_file_without_metadata(capfd):
    write()
    model = onnx.load("model.onnx")
    del model.metadata_props[:]
    onnx.save(model, "model.onnx")
    assert refused(capfd) == "no 'resize' in its metadata; wanted: a file of mixprec export"


@pytest.mark.parametrize("logits", [("N", 4), ("N",), ("N", 3, 1), ("N", "classes"), (4, 3)])
def test_other_outputs_are_refused(logits, capfd):
    write(helper.make_node("RandomUniform", [], ["logits"], shape=[1 for _ in logits]), logits=logits)
    assert refused(capfd) == "its output is not one number for each of its classes"


def test_a_batch_of_one_image_is_enough(capsys):
    write(images=(1, 3, 8, 8), logits=(1, 3))
    assert predict.main(["model.onnx", "green.png", "green.png"]) == 0
    assert capsys.readouterr().out.count("green.png") == 2


def test_a_graph_that_wants_40_gb_is_one_line(capfd):
    write(
        helper.make_node("ReduceMean", ["images", "axes"], ["means"]),
        helper.make_node("Expand", ["means", "vast"], ["large"]),
        helper.make_node("ReduceMean", ["large", "axes"], ["logits"], keepdims=0),
    )
    assert refused(capfd).startswith("onnxruntime cannot compute it: ")


def test_outputs_that_are_no_logits_are_one_line(capfd):
    mean = helper.make_node("ReduceMean", ["images", "axes"], ["means"], keepdims=0)
    zeros = helper.make_node("Sub", ["means", "means"], ["zeros"])
    write(mean, helper.make_node("Tile", ["means", "twice"], ["logits"]))
    assert refused(capfd) == "its output is not a finite number for each of its classes"
    write(mean, zeros, helper.make_node("Div", ["zeros", "zeros"], ["logits"]))
    assert refused(capfd) == "its output is not a finite number for each of its classes"


NO_MODELS = [
    (os.mkfifo, "a device, pipe or socket, not a file"),
    (lambda path: os.symlink("/dev/zero", path), "a device, pipe or socket, not a file"),
    (os.mkdir, "Is a directory"),
    (lambda path: None, "No such file or directory"),
    (lambda path: shutil.copy("green.png", path), "onnxruntime cannot open it: "),
]


@pytest.mark.parametrize(("make", "message"), NO_MODELS)
def test_no_file_of_a_model(make, message, capfd):
    make("model.onnx")
    assert refused(capfd).startswith(message)


def test_no_image(capsys):
    write()
    os.mkfifo("pipe.png")
    with open("broken.png", "wb") as file:
        file.write(b"no image" * 50)
    for name, message in (
        ("pipe.png", "a device, pipe or socket, not a file"),
        ("nothing.png", "No such file or directory"),
        ("broken.png", "not an image in a known format"),
    ):
        assert predict.main(["model.onnx", name]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {name}: {message}")
        assert error.count("\n") == 1


def test_huge_images_are_read_without_a_warning_and_vast_ones_are_refused(monkeypatch, capfd):
    """As when training checks them. Pillow warns above a limit, and raises above twice as many pixels."""
    write()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    assert predict.main(["model.onnx", "green.png"]) == 0
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    assert predict.main(["model.onnx", "green.png"]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: green.png: Image size (64 pixels) exceeds limit")
    assert error.count("\n") == 1


def test_an_output_that_nobody_reads_ends_quietly(monkeypatch, capfd):
    write()
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        assert predict.main(["model.onnx", "green.png", "green.png"]) == 1
        monkeypatch.undo()
    assert capfd.readouterr().err == ""


def test_an_output_that_is_full_is_one_line(monkeypatch, capfd):
    write()
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert predict.main(["model.onnx", "green.png"]) == 1
        monkeypatch.undo()
    assert capfd.readouterr().err == "error: standard output: No space left on device\n"


def pictures(work):
    """Paths of the validation images of a run, in the order of :func:`tests.app.finished.runs.validation`."""
    return [str(path) for name in "abc" for path in sorted((work / "images" / "val" / name).iterdir())]


@pytest.mark.parametrize("named", [False, True])
def test_a_run_is_asked_for_the_probabilities_of_plain_chainer(named, work, capsys):
    weights = work / "run" / "model.npz"
    paths = pictures(work)
    assert predict.main(["--run", str(work / "run"), *(["--weights", str(weights)] if named else []), *paths]) == 0
    lines = capsys.readouterr().out.splitlines()
    logits = runs.logits_of(weights, runs.validation(work)[0]).astype(float)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for row, (path, share) in enumerate(zip(paths, shares, strict=True)):
        assert re.fullmatch(re.escape(path) + r": \d+\.\d ms to read, \d+\.\d ms to compute", lines[4 * row])
        best = [f"  {100 * share[index]:5.1f} %  {'abc'[index]}" for index in np.argsort(-share)]
        assert lines[4 * row + 1 : 4 * row + 4] == best


ONE = "green.png"
BAD = {
    "nothing": ([], "no network; give MODEL.onnx or --run DIR, and IMAGE"),
    "an image only": (["a.jpg"], "no network; give MODEL.onnx or --run DIR, and IMAGE"),
    "no image": (["model.onnx"], "no image; give IMAGE, one or more image files"),
    "no image of a run": (["--run", "run"], "no image; give IMAGE, one or more image files"),
    "both": (["--run", "run", "model.onnx", ONE], "model.onnx and --run: two networks; give one of them"),
    "weights alone": (["--weights", "model.npz", ONE], "--weights needs --run DIR, the run of the weights"),
    "a folder": (["run", ONE], "run: Is a directory; give MODEL.onnx first, or --run DIR"),
    "images alone": ([ONE, ONE], "green.png: onnxruntime cannot open it: "),
    "an unknown run": (["--run", "nowhere", ONE], "nowhere: no such folder; wanted: a results folder of mixprec train"),
    "no weights": (["--run", "stopped", ONE], "stopped: no model.npz in it, as the run has not come to its end"),
    "other weights": (["--run", "run", "--weights", "no.npz", ONE], "no.npz: no such file"),
    "no picture": (["--run", "run", "run/config.yaml"], "run/config.yaml: not an image in a known format"),
    "diverged": (["--run", "diverged", ONE], "diverged/model.npz: its output is not a finite number for each of its"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_no_run_can_answer_is_one_line(what, work, tmp_path):
    run = shutil.copytree(work / "run", "run")
    (shutil.copytree(run, tmp_path / "stopped") / "model.npz").unlink()
    with np.load("run/model.npz") as file:
        arrays = dict(file)
    arrays["fc/b"][...] = np.nan
    shutil.copytree(run, "diverged")
    np.savez("diverged/model.npz", **arrays)
    arguments, message = BAD[what]
    found = call(predict.main, *arguments)
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (2, "", 1)
    assert found.stderr.startswith(f"error: {message}")
