"""The task inside: layers of the small run by hand, and uploads that are no images to look at."""

import base64
import io
import struct
import zlib

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from PIL import Image

from mixprec.app.monitor.work import uploaded_image
from mixprec.app.monitor.work.inside_task import layer
from mixprec.app.monitor.work.seen_layers import SeenLayers
from mixprec.recipes.models import MODELS
from tests.app.monitor.work.asking import answer, error, picture


def _encoded(content):
    return base64.b64encode(content).decode()


def _saved(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def found(work):
    content = (work / "images/val/b/01.jpg").read_bytes()
    return answer("inside", run=str(work / "run"), image=_encoded(content))


def test_top_is_what_plain_chainer_says(found, work):
    network = MODELS["resnet8"](3)
    chainer.serializers.load_npz(work / "run" / "model.npz", network)
    with Image.open(work / "images/val/b/01.jpg") as image:
        pixels = np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR), np.float64)
    x = ((pixels - [123.675, 116.28, 103.53]) / [58.395, 57.12, 57.375]).transpose(2, 0, 1)[None].astype("f")
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        shares = F.softmax(network(x)).array[0]
        first = network.conv1(x).array
    assert [name for name, _ in found["top"]] == ["abc"[index] for index in np.argsort(-shares)]
    assert [share for _, share in found["top"]] == pytest.approx(sorted(shares, reverse=True), rel=1e-5)
    assert sum(share for _, share in found["top"]) == pytest.approx(1)
    numbers = [found["layers"][0][key] for key in ("minimum", "maximum", "mean", "std")]
    assert numbers == pytest.approx([first.min(), first.max(), first.mean(), first.std()], rel=1e-4)


def test_layers_come_in_their_order(found):
    names = [each["name"] for each in found["layers"]]
    assert names[:6] == [
        *("conv1", "bn1", "after bn1: ReLU", "layer1/0/conv1", "layer1/0/bn1", "after layer1/0/bn1: ReLU")
    ]
    assert names[-1] == "fc"
    assert len(set(names)) == len(names)
    by_name = {each["name"]: each for each in found["layers"]}
    assert by_name["conv1"]["type"] == "Convolution2D"
    assert by_name["conv1"]["shape"] == [1, 16, 16, 16]
    assert by_name["fc"]["shape"] == [1, 3]
    relu = by_name["after bn1: ReLU"]
    assert (relu["type"], relu["minimum"]) == ("ReLU", 0)
    assert 0 < relu["zeros"] < 1
    assert by_name["bn1"]["zeros"] == 0
    for each in found["layers"]:
        assert sum(each[key] for key in ("zeros", "fp16_zeros", "subnormals", "overflows")) <= 1
        assert picture(each["png"]).ndim == 2


def test_weights(found):
    names = [each["name"] for each in found["weights"]]
    assert names[0] == "conv1/W"
    assert "fc/W" in names
    assert "layer1/0/conv1/W" in names
    assert found["weights"][0]["shape"] == [16, 3, 3, 3]
    assert picture(found["weights"][0]["png"]).shape[2:] == (3,)
    assert all(picture(each["png"]).ndim == 2 for each in found["weights"][1:])


def test_the_images_of_the_run_need_not_be_there(work):
    image = _encoded((work / "images/val/b/01.jpg").read_bytes())
    overrides = ["data.train=nowhere", "data.val=nowhere"]
    assert answer("inside", run=str(work / "run"), image=image, overrides=overrides)["top"]


def test_shares_of_float16():
    """2^-25 is flushed, 2^-24 is the smallest subnormal, 65520 the smallest that overflows."""
    values = np.array([[0, 0, 2.0**-25, 2.0**-24, 2.0**-14, 65519, 65520, np.inf, np.nan, 1]], "f")
    told = layer("it", "Linear", values, False)
    assert [told[key] for key in ("zeros", "fp16_zeros", "subnormals", "overflows")] == [0.2, 0.1, 0.1, 0.3]
    assert (told["shape"], told["png"]) == ([1, 10], None)


class _Twice(chainer.Chain):
    """A shared layer, one in a branch that is not used, and a parameter of its own."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.shared = L.Linear(4, 4)
            self.unused = L.Linear(4, 4)
            self.scale = chainer.Parameter(np.ones(4, "f"))

    def forward(self, x):
        return F.relu(self.shared(F.relu(self.shared(F.relu(x))))) * self.scale


def test_links_that_run_twice_and_own_parameters_of_a_chain():
    network, seen = _Twice(), []
    x = np.random.RandomState(0).normal(size=(1, 4)).astype("f")
    with chainer.no_backprop_mode():
        with SeenLayers(network, lambda *each: seen.append(each)):
            y = network(x)
        network(x)  # is not seen
    assert [(name, kind) for name, kind, _ in seen] == [
        *(("after the input: ReLU", "ReLU"), ("shared", "Linear"), ("after shared: ReLU", "ReLU")),
        *(("shared (2)", "Linear"), ("after shared: ReLU (2)", "ReLU"), ("_Twice", "_Twice")),
    ]
    np.testing.assert_array_equal(seen[0][2], np.maximum(x, 0))
    np.testing.assert_array_equal(seen[-2][2], y.array)


def test_only_so_many_pictures(work, monkeypatch):
    monkeypatch.setattr("mixprec.app.monitor.work.inside_task._PICTURES", 5)
    image = _encoded((work / "images/val/b/01.jpg").read_bytes())
    found = answer("inside", run=str(work / "run"), image=image)
    for part in ("layers", "weights"):
        pictures = [each["png"] is not None for each in found[part]]
        assert pictures[:5] == [True] * 5
        assert not any(pictures[5:])


def _png_header(width, height):
    """A PNG whose header promises so many pixels, and that has none."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


SMALL = Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3) % 251)
BAD = {
    "no base64": ("%%%", "not base64; wanted"),
    "no ASCII": ("ü" * 8, "not base64; wanted"),
    "no image": (_encoded(b"no image at all"), "not an image in a known format (JPEG, PNG, BMP, TIFF, WEBP, PPM)"),
    "GIF": (_encoded(_saved(SMALL, "GIF")), "not an image in a known format"),
    "EPS": (_encoded(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "not an image in a known format"),
    "cut off": (_encoded(_saved(SMALL, "PNG")[:-30]), ""),
    "a damaged JPEG": (_encoded(_saved(SMALL, "JPEG")[:200]), ""),
    "16 bits": (_encoded(_saved(Image.new("I;16", (9, 9)), "PNG")), "16 bits a channel"),
    "many pixels": (_encoded(_png_header(10_000, 5_001)), "10000 x 5001 pixels; wanted: at most 50000000"),
    "a bomb": (_encoded(_png_header(60_000, 60_000)), "too many pixels; wanted: at most 50000000"),
    "one pixel": (_encoded(_saved(Image.new("RGB", (1, 1)), "PNG")), "1x1 pixels"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_uploads_are_one_line(what, work):
    image, message = BAD[what]
    told = error("inside", run=str(work / "run"), image=image)
    assert told.startswith(f"the uploaded image: {message}")
    assert len(told) > len("the uploaded image: ")


def test_uploads_that_are_too_large(work, monkeypatch):
    assert len(base64.b64encode(bytes(20_000_000))) == uploaded_image.LONGEST
    text = "A" * (uploaded_image.LONGEST + 4)
    for long in (text, ""):
        told = error("inside", run=str(work / "run"), image=long)
        assert f"'image' is '{long[:4]}" in told
    monkeypatch.setattr(uploaded_image, "_BYTES", 50)
    told = error("inside", run=str(work / "run"), image=_encoded(_saved(SMALL, "PNG")))
    assert "bytes; wanted: at most 50" in told


@pytest.mark.parametrize(("form", "mode"), [("PNG", "P"), ("PNG", "RGBA"), ("BMP", "1"), ("JPEG", "L")])
def test_good_uploads(form, mode, work):
    image = _encoded(_saved(SMALL.convert(mode), form))
    assert len(answer("inside", run=str(work / "run"), image=image)["top"]) == 3
