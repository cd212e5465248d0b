"""mixprec.data.sources.image_check: which pictures are good, held against what DALI and Pillow decode."""

import io
import os
import struct
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from mixprec.data.sources.image_check import image_problem

HEIGHT, WIDTH = 48, 64


def picture(height=HEIGHT, width=WIDTH):
    """Colours that run over the picture, under noise."""
    rows, columns = np.mgrid[0:height, 0:width]
    smooth = np.stack([columns * 3, rows * 4, (rows + columns) * 2], -1)
    noise = np.random.default_rng(0).integers(-12, 13, smooth.shape)
    return Image.fromarray((smooth + noise).clip(0, 255).astype(np.uint8))


RGB = picture()
GRAY = RGB.convert("L")
# Every ink in every amount, which convert("CMYK") does not give: it leaves black out.
CMYK = Image.frombytes("CMYK", (WIDTH, HEIGHT), RGB.tobytes() + GRAY.tobytes())
BITS = RGB.convert("1")
PALETTE = RGB.quantize(64)
DEEP = Image.fromarray((np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) * 21).astype(np.uint16))
RGBA, GRAY_ALPHA = RGB.copy(), GRAY.copy()
for _image in (RGBA, GRAY_ALPHA):
    _image.putalpha(GRAY)


def encode(image, form="JPEG", **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def turned(orientation):
    exif = Image.Exif()
    exif[0x112] = orientation
    return exif


def turned_in_bytes(orientation):
    """A JPEG with an orientation of type BYTE, which should be SHORT."""
    entry = struct.pack("<HHHIIHI", 1, 0x112, 1, 1, orientation, 0, 0)
    segment = b"Exif\0\0II*\0\x08\0\0\0" + entry
    return JPEG[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + JPEG[2:]


def turned_by_xmp(orientation):
    """A JPEG with an orientation in XMP, which DALI does not know."""
    xmp = f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="{orientation}"/></x:xmpmeta>'
    return encode(RGB, xmp=xmp.encode())


def without_adobe(content):
    start = content.index(b"\xff\xee")
    return content[:start] + content[start + 2 + struct.unpack_from(">H", content, start + 2)[0] :]


def as_ycck(content):
    """The same bytes, which now say that their first three channels are YCbCr."""
    at = content.index(b"Adobe") + 11
    return content[:at] + b"\2" + content[at + 1 :]


def png_16_bits(colour_type, channels):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = np.random.default_rng(0).integers(0, 65536, (HEIGHT, WIDTH * channels)).astype(">u2")
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, colour_type, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


JPEG = encode(RGB)

GOOD = (
    {
        "rgb.jpg": JPEG,
        "gray.jpg": encode(GRAY),
        "cmyk.jpg": encode(CMYK),  # inverted, as Adobe does it and Pillow writes it
        "ycck.jpg": as_ycck(encode(CMYK)),
        "progressive.jpg": encode(RGB, progressive=True),
        "progressive_gray.jpg": encode(GRAY, progressive=True),
        "restarts.jpg": encode(RGB, restart_marker_rows=1),
        "not_subsampled.jpg": encode(RGB, subsampling=0),
        "no_ycbcr.jpg": encode(RGB, keep_rgb=True),
        "odd_sides.jpg": encode(RGB.crop((0, 0, 63, 47))),
        "bytes_behind.jpg": JPEG + b"garbage" * 9,
        "fill_bytes.jpg": JPEG[:20] + b"\xff\xff" + JPEG[20:],
        "turned_by_xmp.jpg": turned_by_xmp(6),
        "upright_in_bytes.jpg": turned_in_bytes(1),
        "several.jpg": encode(RGB, "MPO", save_all=True, append_images=[GRAY.convert("RGB")]),
        "really_a.png.jpg": encode(RGB, "PNG"),
        "really_a.jpg.png": JPEG,
        "animated.png": encode(RGB, "PNG", save_all=True, append_images=[RGB.rotate(180)]),
        "gray.png": encode(GRAY, "PNG"),
        "bits.png": encode(BITS, "PNG"),
        "palette.png": encode(PALETTE, "PNG"),
        "palette_of_4_bits.png": encode(RGB.quantize(16), "PNG", bits=4),
        "palette_with_alpha.png": encode(PALETTE, "PNG", transparency=bytes(range(64))),
        "rgba.png": encode(RGBA, "PNG"),
        "gray_alpha.png": encode(GRAY_ALPHA, "PNG"),
        "transparent_colour.png": encode(RGB, "PNG", transparency=RGB.getpixel((3, 3))),
        "rgb.bmp": encode(RGB, "BMP"),
        "palette.bmp": encode(PALETTE, "BMP"),
        "rgb.tif": encode(RGB, "TIFF"),
        "rgb_lzw.tif": encode(RGB, "TIFF", compression="tiff_lzw"),
        "gray.tif": encode(GRAY, "TIFF"),
        "rgba.tif": encode(RGBA, "TIFF"),
        "rgb.webp": encode(RGB, "WEBP"),
        "rgba.webp": encode(RGBA, "WEBP", lossless=True),
        "rgb.ppm": encode(RGB, "PPM"),
        "gray.pgm": encode(GRAY, "PPM"),
        "wide.jpg": encode(RGB.resize((4000, 3))),
        "tall.png": encode(RGB.resize((1, 3000)), "PNG"),
        "with space, \N{LATIN SMALL LETTER E WITH ACUTE}.jpg": JPEG,
        "two\nlines.jpg": JPEG,
    }
    | {f"turned_{orientation}.jpg": encode(RGB, exif=turned(orientation)) for orientation in range(1, 9)}
)

# Intact, but DALI 2.4 decodes them to other pixels than Pillow, or does not decode them.
READ_DIFFERENTLY = {
    "no_adobe.jpg": (
        without_adobe(encode(CMYK)),
        "CMYK without Adobe's marker, which DALI and Pillow read differently",
    ),
    "turned_in_bytes.jpg": (turned_in_bytes(6), "an EXIF orientation that is not a number, which DALI and Pillow read"),
    "bytes_between.jpg": (JPEG[:20] + b"\x12\x34" + JPEG[20:], "damaged JPEG header"),
    "palette.tif": (encode(PALETTE, "TIFF"), "TIFF of mode P, which DALI and Pillow read differently; convert it"),
    "gray_alpha.tif": (encode(GRAY_ALPHA, "TIFF"), "TIFF of mode LA, which DALI and Pillow read differently"),
    "bits.tif": (encode(BITS, "TIFF"), "TIFF of mode 1, which DALI and Pillow read differently"),
    "exif.webp": (encode(RGBA, "WEBP", exif=turned(1)), "WebP with EXIF data, which DALI does not always read"),
    "few_values.ppm": (
        b"P6\n64 48\n15\n" + bytes(v // 16 for v in RGB.tobytes()),
        "PPM that is not binary, with values",
    ),
    "gray_16.png": (encode(DEEP, "PNG"), "16 bits a channel; convert it to 8 bits a channel"),
    "rgb_16.png": (png_16_bits(2, 3), "16 bits a channel"),
    "rgba_16.png": (png_16_bits(6, 4), "16 bits a channel"),
    "gray_16.tif": (encode(DEEP, "TIFF"), "16 bits a channel"),
    "gray_16.pgm": (encode(DEEP, "PPM"), "16 bits a channel"),
    "float.tif": (encode(DEEP.convert("F"), "TIFF"), "32 bits a channel"),
}

BAD = {
    "truncated.jpg": (JPEG[:-200], "image file is truncated"),
    "without_its_last_two_bytes.jpg": (JPEG[:-2], "image file is truncated"),
    "header_only.jpg": (JPEG[:100], ""),
    "truncated.png": (encode(RGB, "PNG")[:-200], ""),
    "without_its_end.png": (encode(PALETTE, "PNG")[:-8], ""),
    "zero_bytes.jpg": (b"", "the file is empty"),
    "text.jpg": (b"Not found\n", "not an image in a known format (JPEG, PNG, BMP, TIFF, WEBP, PPM)"),
    "animation.gif": (encode(GRAY, "GIF"), "not an image in a known format"),
    "one_pixel.png": (encode(RGB.resize((1, 1)), "PNG"), "1x1 pixels: a placeholder, not a picture"),
    "one_pixel.jpg": (encode(RGB.resize((1, 1))), "1x1 pixels: a placeholder, not a picture"),
    "lab.tif": (encode(Image.new("LAB", (8, 8)), "TIFF"), "TIFF of mode LAB, which DALI and Pillow read differently"),
    "two_exif.jpg": (
        JPEG[:2] + b"\xff\xe1\0\x0cExif\0\0abcd" * 2 + JPEG[2:],
        "two EXIF segments in a JPEG; remove one",
    ),
    "huge.png": (encode(Image.new("1", (20000, 10000)), "PNG"), "Image size (200000000 pixels) exceeds limit"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All of these as files."""
    folder = tmp_path_factory.mktemp("pictures")
    for name, content in [*GOOD.items(), *((name, content) for name, (content, _) in (READ_DIFFERENTLY | BAD).items())]:
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def decode():
    """DALI's decoder as a function from paths to uint8 (height, width, 3) arrays, turned as their EXIF says."""
    dali = pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")

    def run(paths):
        @dali.pipeline_def(batch_size=len(paths), num_threads=1, device_id=None)
        def graph():
            encoded, _ = dali.fn.readers.file(files=paths, labels=list(range(len(paths))))
            return dali.fn.decoders.image(encoded, output_type=dali.types.RGB)

        pipeline = graph()
        pipeline.build()
        (pixels,) = pipeline.run()
        return [np.array(pixels.at(index)) for index in range(len(paths))]

    return run


def by_pillow(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(path) as image:
            image.info.pop("xmp", None)  # Pillow looks there, too
            return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


@pytest.mark.parametrize("name", GOOD)
def test_picture_is_good(folder, name):
    assert image_problem(str(folder / name)) is None
    assert image_problem(io.BytesIO(GOOD[name])) is None


@pytest.mark.parametrize("name", READ_DIFFERENTLY | BAD)
def test_picture_is_bad_and_the_reason_is_one_line(folder, name):
    content, reason = (READ_DIFFERENTLY | BAD)[name]
    for image in (str(folder / name), io.BytesIO(content)):
        problem = image_problem(image)
        assert problem.startswith(reason)
        assert problem
        assert "\n" not in problem


def test_reason_for_what_is_no_file(tmp_path):
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "link.jpg").symlink_to(tmp_path / "gone.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    assert image_problem(str(tmp_path / "folder.jpg")) == "a folder, where an image should be"
    assert image_problem(str(tmp_path / "link.jpg")) == "No such file or directory"
    assert image_problem(str(tmp_path / "pipe.jpg")) == "a device, pipe or socket, not a file"
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xe9.jpg")
    with open(path, "wb") as file:
        file.write(JPEG)
    assert image_problem(path) == "the path is not valid UTF-8"
    assert image_problem(f"{tmp_path}/a\0b.jpg") == "not a path"


def damage(content, random):
    """One of the ways in which files come to harm."""
    at = int(random.integers(2, len(content) if random.random() < 0.5 else min(len(content), 700)))
    return (
        lambda: content[:at],
        lambda: content[:at] + b"\xff\xd9",
        lambda: content[:at] + random.bytes(1) + content[at + 1 :],
        lambda: content[:at] + bytes(64) + content[at + 64 :],
        lambda: content[:at] + random.bytes(5) + content[at:],
        lambda: content[:at] + content[at + 3 :],
    )[random.integers(6)]()


@pytest.mark.slow
def test_damaged_pictures_that_pass_are_decoded_alike_by_dali_and_pillow(tmp_path, decode):
    """DALI says nothing about many of them; none of those that pass may end the training."""
    random = np.random.default_rng(1)
    originals = ["rgb.jpg", "progressive.jpg", "restarts.jpg", "gray.jpg", "rgba.png", "rgb.webp", "rgb.bmp", "rgb.ppm"]
    originals.append("palette.png")
    passed = []
    for number in range(1200):
        content = damage(GOOD[originals[number % len(originals)]], random)
        if image_problem(io.BytesIO(content)) is None:
            path = tmp_path / str(number)
            path.write_bytes(content)
            passed.append(str(path))
    assert 200 < len(passed) < 1000
    for path, pixels in zip(passed, decode(passed), strict=True):
        np.testing.assert_array_equal(pixels, by_pillow(path), err_msg=path)


@given(
    st.integers(0, 2**32 - 1), st.sampled_from([JPEG, GOOD["progressive.jpg"], GOOD["restarts.jpg"], GOOD["cmyk.jpg"]])
)
def test_decoding_hardly_any_pixel_finds_what_decoding_all_of_them_does(seed, content):
    content = damage(content, np.random.default_rng(seed))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content)) as image:
                image.load()
        intact = True
    except Exception:
        intact = False
    problem = image_problem(io.BytesIO(content))
    if problem is None:
        assert intact
    elif intact:  # only what is not about the decoding
        assert problem == "damaged JPEG header" or "Adobe" in problem or "EXIF" in problem or "1x1" in problem
