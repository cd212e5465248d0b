"""A wheel, and what a user has who installed it, in a folder of their own and without the checkout."""

import json
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from email.parser import Parser

import numpy as np
import pytest
from chainer.serializers import save_npz
from PIL import Image

from models import MODELS
from tests import ROOT
from tests.packaging.conftest import Environment, build

pytestmark = pytest.mark.slow

INFO = "mixprec-0.1.0.dist-info/"
# Where there is a compiler, for this processor.
HAS_NATIVE = shutil.which("g++") is not None and platform.machine() == "x86_64"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") if sys.version_info < (3, 11) else ".abi3.so"
NATIVE = [f"mixprec/native/_library{SUFFIX}"] if HAS_NATIVE else []
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}


def contents(wheel):
    """Returns a dict from names to contents of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Three classes, six images each: their colours differ."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.RandomState(0)
    for label, name in enumerate(("blue", "green", "red")):
        (folder / name).mkdir()
        for number in range(6):
            pixels = random.randint(0, 60, (40, 40, 3)).astype(np.uint8)
            pixels[..., 2 - label] += 150
            Image.fromarray(pixels).save(folder / name / f"{number}.jpg")
    return folder


def test_wheel_has_the_library_with_kernels_networks_and_configs_and_nothing_else(checkout, wheel):
    names = set(contents(wheel))
    expected = set()
    places = {
        "mixprec": "mixprec",
        "models": "mixprec/recipes/models",
        "configs": "mixprec/recipes/configs",
        "docs": "mixprec/docs",
    }
    for folder, prefix in places.items():
        left_out = (".pth", ".cpp", ".h", ".inl", ".so", ".png")
        files = [path for path in (checkout / folder).rglob("*.*") if path.is_file() and path.suffix not in left_out]
        expected |= {f"{prefix}/{path.relative_to(checkout / folder)}" for path in files}
    expected |= {"mixprec_startup.pth", *NATIVE}
    assert {name for name in names if not name.startswith(INFO)} == expected
    for name in (
        *("py.typed", "backends/kernels/batch_norm.cu", "data/digits.npz", "data/digits.txt"),
        *("backends/kernels/batch_norm_rows.cuh", "optimizer/batch/kernels/common.cuh", "docs/config.md"),
        *("recipes/models/resnet.py", "recipes/configs/digits.yaml", "recipes/configs/resnet50/90ep.yaml"),
    ):
        assert f"mixprec/{name}" in names
    assert f"{INFO}licenses/LICENSE" in names
    pages = {"mixprec/docs/benchmark.md", "mixprec/docs/tests.md"}
    assert not [name for name in names - pages if "bench" in name or "test" in name]


def test_metadata_of_the_wheel(wheel):
    metadata = Parser().parsestr(contents(wheel)[f"{INFO}METADATA"].decode())
    assert (metadata["Name"], metadata["License-Expression"]) == ("mixprec", "MIT AND CC-BY-4.0")
    assert sorted(metadata["Requires-Python"].split(",")) == ["<3.14", ">=3.10"]
    extras = "cuda12 cuda13 dali docs export legacy monitor mpi tensorboard test test-cupy test-legacy test-plans torch"
    assert set(metadata.get_all("Provides-Extra")) == set(extras.split())
    always = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert "chainer==7.8.1" in always
    assert len(always) == 7
    assert metadata.get_payload().startswith((ROOT / "README.md").read_text().splitlines()[0])
    assert metadata["Author"] == "the mixprec authors"
    assert "mixed precision" in metadata["Keywords"].split(",")
    assert metadata.get_all("Project-URL") == ["Chainer, https://chainer.org"]


def test_a_wheel_made_from_an_sdist_has_the_same_but_for_the_library(checkout, wheel, tmp_path):
    make = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", make, tmp_path], cwd=checkout, stdout=subprocess.DEVNULL, check=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path)
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert not (unpacked / "tests").exists()
    sources, expected_sources = (
        {path.name: path.read_bytes() for path in (folder / "mixprec" / "native" / "source").iterdir()}
        for folder in (unpacked, checkout)
    )
    assert sources == expected_sources
    made, expected = contents(build(unpacked, tmp_path, **NO_COMPILER)), contents(wheel)
    own = {*NATIVE, *(INFO + name for name in ("RECORD", "WHEEL"))}
    assert {name: made[name] for name in made.keys() - own} == {name: expected[name] for name in expected.keys() - own}


@pytest.mark.skipif(not HAS_NATIVE, reason="needs g++ on x86-64")
def test_the_native_library_of_a_wheel_computes(environment, wheel, tmp_path):
    assert not wheel.name.endswith("-any.whl")
    script = "from mixprec.native.native_library import library; print(library().instructions())"
    printed, errors = environment.run("-c", script, cwd=tmp_path)
    assert (printed[:3], errors) == ("AVX", "")


def test_without_a_compiler_numpy_computes_and_one_warning_says_so(checkout, tmp_path):
    copy = tmp_path / "checkout"
    shutil.copytree(checkout, copy, symlinks=True, ignore=shutil.ignore_patterns("build"))
    wheel = build(copy, tmp_path / "wheel", **NO_COMPILER)
    assert not [name for name in contents(wheel) if name.endswith(".so")]
    environment = Environment(tmp_path / "venv", wheel)
    script = """
        import mixprec, numpy as np
        from mixprec.backends import primitives_of
        x = np.full(3, 0.1, np.float32)
        print(primitives_of(x).cast(x, np.float16).tolist() == x.astype(np.float16).tolist())
        primitives_of(x).add(x, x)
    """
    printed, errors = environment.run("-c", textwrap.dedent(script), cwd=tmp_path)
    assert printed == "True\n"
    assert errors == (
        "NumPy computes instead of mixprec's native library, float16 at half the speed, and Chainer's own loop "
        "updates parameters: it was not compiled; to have it, install mixprec again where there is a C++ compiler; "
        "pip's -v shows what that says\n"
    )


def test_chainer_imports_without_mixprec_and_in_a_worker(environment, tmp_path):
    script = """
        import chainer, multiprocessing, sys
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply_async(chainer.links.Linear(3, 2).count_params).get(100))
        print(sys.modules["mixprec"].__file__)
    """
    printed, errors = environment.run("-W", "error", "-c", textwrap.dedent(script), cwd=tmp_path)
    count, file = printed.splitlines()
    assert count == "8"
    assert file.startswith(str(environment.folder))
    assert errors == ""


def test_convert_wrap_and_capture(environment, tmp_path):
    """On a machine without a GPU a captured step is the eager one."""
    script = """
        import chainer, chainer.functions as F, chainer.links as L, numpy as np
        import mixprec
        network = chainer.Sequential(L.Convolution2D(1, 4, 3), L.BatchNormalization(4), F.relu, L.Linear(None, 3))
        model = L.Classifier(network)
        images, labels = np.random.RandomState(0).rand(6, 1, 8, 8).astype("f"), np.arange(6, dtype="i") % 3
        print(mixprec.convert(model, images))
        optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(0.1)).setup(model)
        optimizer.update(model, images, labels)
        step = mixprec.capture(optimizer)
        losses = [float(step(images, labels).array) for _ in range(20)]
        assert losses[-1] < losses[0] / 2, losses
        assert network[0].W.dtype == np.float16
    """
    printed, errors = environment.run("-c", textwrap.dedent(script), cwd=tmp_path)
    assert "compute:              float16, NHWC" in printed
    assert errors == ""


def test_training_from_a_file_of_the_users_own(environment, images, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "base: resnet50/90ep.yaml\n"
        "model: {arch: resnet8, classes: 3}\n"
        f"data: {{train: '{images}', val: '{images}', loader: pillow, size: 32, resize: 40, threads: 1, prefetch: 1}}\n"
        "optimizer: {lr: 0.05, base_batch_size: null}\n"
        "schedule: {warmup_epochs: 0}\n"
        "training: {batch_size: 6, epochs: 2, device: cpu}\n"
    )
    printed, _ = environment.mixprec("train", "--config", "mine.yaml", "--out", "out", cwd=tmp_path)
    assert "18 training and 18 validation images in 3 classes" in printed
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["epoch"] == 2
    with np.load(tmp_path / "out" / "model.npz") as weights:
        assert weights["fc/W"].dtype == np.float32


def test_dry_run_of_a_config_that_comes_with_it(environment, images, tmp_path):
    settings = [f"data.train={images}", f"data.val={images}", "model.classes=3", "training.device=cpu"]
    settings = [argument for setting in settings for argument in ("--set", setting)]
    run = ("train", "--config", "digits.yaml", "--dry-run", *settings, "--set", "data.loader=pillow")
    printed, _ = environment.mixprec(*run, cwd=tmp_path)
    assert "dry run: all is well; without --dry-run the results would go to results/digits/" in printed
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_config_is_answered_with_those_there_are(environment, tmp_path):
    printed, errors = environment.mixprec("train", "--config", "resnet50/90epochs.yaml", cwd=tmp_path, code=2)
    assert printed == ""
    assert errors.startswith("error: resnet50/90epochs.yaml: no such file; mixprec comes with digits.yaml, resnet50/")
    assert errors.endswith("textures.yaml; did you mean 'resnet50/90ep.yaml'?\n")
    assert errors.count("\n") == 1


def test_hints_and_pages_of_a_wheel(environment, tmp_path):
    printed, _ = environment.run("-m", "mixprec", "train", "--help", cwd=tmp_path)
    (path,) = re.findall(r"see\s+(/\S+/config\.md)", printed)
    assert pathlib.Path(path).read_text() == (ROOT / "docs" / "config.md").read_text()
    script = "from mixprec.base.installation import cuda_hint; print(cuda_hint())"
    printed, _ = environment.run("-c", script, cwd=tmp_path)
    assert printed == 'pip install "mixprec[cuda13]"  (CUDA 12: "mixprec[cuda12]")\n'


def test_digits_that_are_written_packed_and_verified(environment, tmp_path):
    printed, errors = environment.run("-m", "mixprec", "digits", "data/digits", cwd=tmp_path)
    assert (printed, errors) == ("data/digits: 1442 training and 355 validation images\n", "")
    pack = ("-m", "mixprec", "pack")
    arguments = ("--source", "data/digits/val", "--out", "packed", "--format", "tfrecord")
    printed, _ = environment.run(*pack, *arguments, cwd=tmp_path)
    assert printed == "packed: 355 images of 10 classes in 1 shard, 0 MiB\n"
    printed, _ = environment.run(*pack, "--verify", "packed", cwd=tmp_path)
    assert printed == "packed: 355 images in 1 shard are as they were packed\n"


def test_weights_there_and_back(environment, tmp_path):
    save_npz(tmp_path / "a.npz", MODELS["resnet8"](10))
    for source, out in (("a.npz", "a.safetensors"), ("a.safetensors", "b.npz")):
        printed, _ = environment.run("-m", "mixprec", "weights", source, out, cwd=tmp_path)
        assert printed == f"{out}: 56 tensors of resnet8 from {source}\n"
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_report_of_a_conversion_by_name(environment, tmp_path):
    printed, errors = environment.run(
        "-m", "mixprec", "convert-report", "resnet8", "--input", "2x3x32x32", cwd=tmp_path
    )
    assert "as it was:            nothing" in printed
    assert errors == ""


def test_tuning_without_a_gpu_ends_with_one_line(environment, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    printed, errors = environment.run("-m", "mixprec", "tune", "--config", "digits.yaml", cwd=tmp_path, code=2)
    assert (printed, errors.count("\n")) == ("", 1)
    assert errors.startswith("error: mixprec tune needs a GPU; found CPU: ")
