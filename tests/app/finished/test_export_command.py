"""mixprec export: the files, the check, what is written when something is wrong, and the digits end to end."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="ONNX is not installed: extra export")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: extra export")

import chainer
from PIL import Image

from mixprec.app.commands import export as export_command
from mixprec.app.commands import predict
from mixprec.app.finished.validation_images import Files, ValidationImages
from mixprec.export.preprocessing import Preprocessing
from mixprec.export.sessions import session
from models import MODELS
from tests import ROOT
from tests.app.finished.runs import ALL, export, validation
from tests.cases import first


def test_the_files(exporting):
    folder, printed = exporting
    found = json.loads((folder / "export.json").read_text())
    names = ["model.onnx", "model_fp16.onnx", "model_int8.onnx"]
    assert {path.name for path in folder.iterdir()} == {*names, "export.json", "export.png"}
    assert [row["name"] for row in found["rows"]] == ["mixprec FP32", *names]
    assert all(row["is_good"] for row in found["rows"])
    assert [set(row["speeds"]) for row in found["rows"]] == [{"1", "32"}] * 4
    assert (found["images"], found["int8"]["target"]) == (7, "cpu")
    assert found["int8"]["calibration_images"] + found["int8"]["held_out_images"] == 16
    lines = printed.splitlines()
    assert [line.split("  ")[0] for line in lines[1:5]] == ["mixprec FP32", *names]
    assert lines[-1] == f"files, export.json and export.png: {folder}"
    for name in names:
        model = onnx.load(folder / name)
        onnx.checker.check_model(model, full_check=True)
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        assert Preprocessing.read(metadata, name) == Preprocessing(
            resize=16, size=16, mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375), classes=("a", "b", "c")
        )
        assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        assert model.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_the_numbers_are_those_of_the_network(work, exported):
    """Accuracy and logits by hand: plain Chainer, and images by another path."""
    network = MODELS["resnet8"](3)
    chainer.serializers.load_npz(work / "run" / "model.npz", network)
    found = json.loads((exported / "export.json").read_text())
    images, labels = validation(work)
    with chainer.using_config("train", False):
        logits = network(images).array
    (given,) = session(onnx.load(exported / "model.onnx")).run(None, {"images": images})
    np.testing.assert_allclose(given, logits, rtol=0, atol=1e-5 * np.abs(logits).max())
    assert [row["accuracy"] for row in found["rows"][:2]] == [np.mean(logits.argmax(1) == labels)] * 2
    assert found["rows"][1]["equal"] == 1


@pytest.mark.slow
def test_files_that_take_pixels(work, exported, tmp_path):
    assert export(work, tmp_path, *ALL, "--preprocess")[0] == 0
    images, _ = validation(work)
    numbers = images * np.reshape([58.395, 57.12, 57.375], (3, 1, 1)) + np.reshape([123.675, 116.28, 103.53], (3, 1, 1))
    for name in ("model.onnx", "model_fp16.onnx", "model_int8.onnx"):
        model = onnx.load(tmp_path / name)
        assert [dim.dim_param or dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == [
            *("N", 16, 16, 3)
        ]
        (expected,) = session(onnx.load(exported / name)).run(None, {"images": images})
        given = np.rint(numbers).astype(np.uint8).transpose(0, 2, 3, 1)
        (found,) = session(model).run(None, {"images": np.ascontiguousarray(given)})
        # A pixel that lies between two steps of INT8 may be rounded the other way.
        bound = {"model.onnx": 1e-5, "model_fp16.onnx": 1e-2}.get(name, 0.1)
        np.testing.assert_allclose(found, expected, rtol=0, atol=bound * np.abs(expected).max())


@pytest.mark.parametrize(("target", "half_ends"), first(1, [("tensorrt", True), ("cpu", False)]))
def test_int8_for(target, half_ends, work, tmp_path):
    options = ("--int8", "--images", "16", "--for", target, *(["--half-ends"] if half_ends else []))
    code, found = export(work, tmp_path, *options)
    assert code == 0
    assert found["int8"]["target"] == target
    assert len(found["int8"]["left_out"]) == (2 if half_ends else 0)
    assert bool(found["rows"][2]["speeds"]) == (target == "cpu")


def test_a_file_above_its_limit_has_another_name(work, tmp_path, capsys, monkeypatch):
    def worse(model):
        worse = onnx.ModelProto()
        worse.CopyFrom(model)
        tensor = next(each for each in worse.graph.initializer if each.dims == [3])
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([1e3, 0, 0], np.float32), tensor.name))
        return worse

    monkeypatch.setattr("mixprec.export.onnx_file.to_half", worse)
    code, found = export(work, tmp_path, "--fp16")
    assert code == 1
    assert {path.name for path in tmp_path.iterdir()} == {
        *("model.onnx", "model_fp16.failed.onnx", "export.json", "export.png")
    }
    assert [row["is_good"] for row in found["rows"]] == [True, True, False]
    printed = capsys.readouterr()
    assert "ABOVE the limit of 0.1 points" in printed.out
    assert printed.err == "error: model_fp16.onnx: less accurate than the limits allow\n"
    assert export(work, tmp_path, "--fp16", "--set", "export.max_drop_float16=100")[0] == 0
    assert (tmp_path / "model_fp16.onnx").exists()
    assert not (tmp_path / "model_fp16.failed.onnx").exists()


BAD = {
    "no folder": (["--run", "nowhere"], r"nowhere: no such folder; wanted: a results folder of mixprec train"),
    "no run": (["--run", "images"], r"images: no config.yaml in it; wanted: a results folder"),
    "no weights": (None, r"run: no model.npz in it, .*; --weights run/snapshot_best.npz takes a snapshot"),
    "other images": (["--set", "data.val=elsewhere"], r"elsewhere: no such file or folder; --set data.val=\.\.\. says"),
    "few images": (["--int8", "--set", "data.train=few"], r"few: 3 images; INT8 needs at least 16 to be calibrated"),
    "other classes": (["--set", "data.val=other"], r"run/classes.txt: class 0 is 'a' there, 'b' in .*/other"),
    "more classes": (["--set", "data.val=more"], r".*/more: 4 classes, but model.classes is 3"),
    "other weights": (["--weights", "other.npz"], r"other.npz: .*another network"),
    "an unknown key": (["--set", "export.drop=1"], r"--set: .*'export.drop'.*"),
    "no number": (["--images", "x"], r"argument --images: found 'x'; wanted: a whole number from 16 on \(see --help\)"),
    "int8 of nothing": (["--for", "tensorrt"], r"--for tensorrt is about INT8: give --int8, too \(see --help\)"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line(what, work, tmp_path, monkeypatch, capsys):
    shutil.copytree(work, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    options, message = BAD[what]
    if what == "no weights":
        pathlib.Path("run/model.npz").rename("run/snapshot_best.npz")
    shutil.copytree("images/val", "other")
    os.rename("other/a", "other/x")
    shutil.copytree("images/val", "more")
    shutil.copytree("images/val/a", "more/d")
    for name in "abc":
        pathlib.Path("few", name).mkdir(parents=True)
        shutil.copy(next(pathlib.Path("images/val", name).iterdir()), pathlib.Path("few", name))
    chainer.serializers.save_npz("other.npz", MODELS["resnet14"](3))
    before = set(pathlib.Path().rglob("*"))
    try:
        code = export_command.main(["--run", "run", "--out", "out", *(options or [])], MODELS)
    except SystemExit as stopped:
        code = stopped.code
    error = capsys.readouterr().err
    assert code == 2, error
    assert error.count("\n") == 1
    assert re.match(f"error: {message}", error), error
    assert set(pathlib.Path().rglob("*")) == before


def test_a_part_of_the_images(work, tmp_path):
    code, found = export(work, tmp_path, "--val-images", "5")
    assert (code, found["images"]) == (0, 5)


@pytest.fixture
def with_head(work, tmp_path):
    """Writes weights of the run with others in the last layer, and returns their path."""

    def write(weights, bias):
        with np.load(work / "run" / "model.npz") as file:
            arrays = dict(file)
        arrays["fc/W"][...], arrays["fc/b"][...] = weights, bias
        np.savez(tmp_path / "head.npz", **arrays)
        return str(tmp_path / "head.npz")

    return write


def test_a_run_that_has_learned_nothing_is_told(with_head, work, exported, tmp_path, capsys):
    weights = with_head(0, [1, 0, 0])
    code, found = export(work, tmp_path / "out", "--weights", weights)
    assert code == 0
    assert found["guessed"] == found["rows"][0]["accuracy"] == 3 / 7
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].startswith("7 validation images, 42.86 % of them of one class; ")
    assert lines[-2] == "always naming that class would be as good as mixprec FP32: kept limits prove nothing"
    assert json.loads((exported / "export.json").read_text())["rows"][0]["accuracy"] > 3 / 7


def test_logits_that_are_not_finite(work, tmp_path, monkeypatch, capsys):
    def divided(model):
        half = onnx.ModelProto()
        half.CopyFrom(model)
        half.graph.node[-1].output[0] = "finite"
        half.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0), "zero"))
        half.graph.node.append(onnx.helper.make_node("Div", ["finite", "zero"], ["logits"], "division"))
        return half

    monkeypatch.setattr("mixprec.export.onnx_file.to_half", divided)
    code, _ = export(work, tmp_path, "--fp16")
    printed = capsys.readouterr()
    assert (code, printed.err) == (1, "error: model_fp16.onnx: logits that are not finite\n")
    assert "NOT FINITE" in printed.out

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    found = json.loads((tmp_path / "export.json").read_text(), parse_constant=refuse)
    assert found["rows"][2]["name"] == "model_fp16.failed.onnx"
    assert found["rows"][2]["difference"] is None


@pytest.mark.slow
def test_weights_of_7_bits_are_told(work, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("mixprec.export.int8.has_vnni", lambda: False)
    export(work, tmp_path, "--int8", "--images", "16", "--set", "export.max_drop_int8=100")
    assert "weights of 7 bits, as this processor has no VNNI\n" in capsys.readouterr().out


@pytest.mark.slow
def test_an_output_that_is_full_is_not_the_folders_fault(work, tmp_path, monkeypatch, capfd):
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", full)
        code, _ = export(work, tmp_path)
    told = "error: standard output: No space left on device; the files are written\n"
    assert (code, capfd.readouterr().err) == (1, told)
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "export.json", "export.png"}


@pytest.mark.slow
def test_the_scripts_run(work, tmp_path):
    """As a user calls them, from another folder; the second on files that the first has written."""
    out = tmp_path / "out"
    images = sorted((work / "images" / "val" / "b").iterdir())[:2]
    for name, *arguments in (
        ("export.py", "--run", work / "run", "--out", out, "--preprocess"),
        ("predict.py", out / "model.onnx", *images),
    ):
        command = [sys.executable, "-W", "error", ROOT / "scripts" / name, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[::4]] == [str(image) for image in images]
    assert {line.split()[-1] for line in lines[1:4]} == {"a", "b", "c"}
    shares = [float(line.split()[0]) for line in lines[1:4]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=0.2)


@pytest.mark.parametrize(("size", "turned"), [((23, 17), 1), ((17, 24), 6), ((10, 33), 1)])
def test_the_program_of_the_page_makes_the_same_pixels(work, tmp_path, size, turned, monkeypatch, capsys):
    """It needs no mixprec. Resized images differ in roundings, as mixprec resizes what is cut out alone."""
    (program,) = re.findall(r"```py\n(.*?)```", (ROOT / "docs" / "export.md").read_text(), re.DOTALL)
    assert "mixprec" not in program
    assert program.count("\n") <= 20
    x, y = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    picture = Image.fromarray(np.stack([9 * x, 9 * y, 4 * (x + y)], -1).astype(np.uint8))
    exif = picture.getexif()
    exif[0x0112] = turned
    picture.save(tmp_path / "image.png", exif=exif)
    about = Preprocessing(resize=12, size=9, mean=(1, 2, 3), std=(4, 5, 6), classes=("a", "b"), input="uint8 NHWC")
    fed = []

    class Session:
        def __init__(self, path, providers):
            pass

        def get_modelmeta(self):
            metadata = {name: json.dumps(value) for name, value in dataclasses.asdict(about).items()}
            return types.SimpleNamespace(custom_metadata_map=metadata)

        def run(self, outputs, inputs):
            fed.append(inputs["images"])
            return [np.array([[0, 1]])]

    monkeypatch.setattr("onnxruntime.InferenceSession", Session)
    monkeypatch.setattr(sys, "argv", ["serve.py", "model.onnx", str(tmp_path / "image.png")])
    exec(program, {})
    assert capsys.readouterr().out == "b\n"
    ((pixels, _),) = ValidationImages(Files([tmp_path / "image.png"]), about, [0]).batches(1)
    np.testing.assert_allclose(fed[0].astype(int), pixels.astype(int), atol=4)


def test_predictions_are_those_of_the_network(work, exported, capsys):
    images, _ = validation(work)
    paths = [str(path) for name in "abc" for path in sorted((work / "images" / "val" / name).iterdir())]
    assert predict.main([str(exported / "model.onnx"), *paths]) == 0
    network = MODELS["resnet8"](3)
    chainer.serializers.load_npz(work / "run" / "model.npz", network)
    with chainer.using_config("train", False):
        shares = chainer.functions.softmax(network(images)).array
    lines = capsys.readouterr().out.splitlines()
    for row, share in enumerate(shares):
        for rank, index in enumerate(np.argsort(-share)):
            percent, _, name = lines[4 * row + 1 + rank].split()
            assert (float(percent), name) == (pytest.approx(100 * share[index], abs=0.06), "abc"[index])


def test_images_are_those_of_the_pillow_loader(work):
    from mixprec.data.loaders.pillow import PillowIterator
    from mixprec.data.sources.opening import open_images
    from tests.data.loader_settings import objects

    source = open_images(str(work / "images" / "val"), "folders", None, "stop")
    what = Preprocessing(resize=18, size=10, mean=(1, 2, 3), std=(4, 5, 6), classes=("a", "b", "c"))
    images = ValidationImages(source, what, range(7), threads=2)
    loader = PillowIterator(source, *objects(7, train=False, size=10, resize=18, mean=(1, 2, 3), std=(4, 5, 6)))
    try:
        x, t = next(loader)
    finally:
        loader.finalize()
    batches = list(images.batches(3))
    assert [len(labels) for _, labels in batches] == [3, 3, 1]
    np.testing.assert_array_equal(
        np.concatenate([images.normalize(pixels) for pixels, _ in batches]).transpose(0, 2, 3, 1), x
    )
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in batches]), t)
