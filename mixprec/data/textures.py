"""A generated set of pictures of ImageNet's size: textured shapes among clutter, as JPEG files in ImageNet's layout."""

import dataclasses
import functools
import io
import math
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from PIL import Image, ImageDraw

from mixprec.base.interruption import for_parent_only
from mixprec.data.data_error import DataError
from mixprec.data.generated_set import make_set

# Part of the manifest: raise it when the pictures of a seed change.
_VERSION = 1
_QUALITY = 80
_MOST = 10_000_000  # pictures: eight times ImageNet
_VALIDATION = 3  # of ten pictures of a class

# Variation of direction, frequency and colour within a class. With 1.0 the two classes of a pair overlap by a quarter:
# a picture in the overlap may be of either class, so that no network can be right on more than 88 %.
_DIFFICULTY = 1.0

_PHASES = 1024  # steps of a period


@dataclasses.dataclass(frozen=True)
class Texture:
    """The look of the objects of a class.

    Attributes:
        shape (str): Outline of the object.
        hue (int): Hue in degrees.
        angle (int): Direction across the stripes in degrees.
        periods (float): Periods of the grating along the shorter side of the picture.
        wave (str): Profile of the stripes.
    """

    shape: str
    hue: int
    angle: int
    periods: float
    wave: str

    @property
    def name(self):
        """Name of the class folder."""
        return f"{self.shape}-hue{self.hue:03}-{self.angle:03}deg-{self.periods:g}-{self.wave}"


# Five looks of two classes each, which differ in one attribute: colour, direction or frequency.
CLASSES = (
    Texture("disc", 10, 0, 9, "sine"),
    Texture("disc", 70, 0, 9, "sine"),
    Texture("square", 130, 45, 9, "square"),
    Texture("square", 130, 90, 9, "square"),
    Texture("triangle", 250, 0, 9, "sine"),
    Texture("triangle", 250, 0, 15, "sine"),
    Texture("ring", 190, 135, 9, "square"),
    Texture("ring", 190, 135, 15, "square"),
    Texture("disc", 310, 90, 15, "saw"),
    Texture("disc", 310, 135, 15, "saw"),
)


def make_textures(out, *, images=10000, seed=0, side=None, force=False):
    """Writes ``out/train/<class>/*.jpg`` and ``out/val/<class>/*.jpg`` and a manifest of them.

    A picture shows one object, a shape with an oriented grating, before a blotchy background and among other shapes,
    under a light that varies over the picture. Its class, one of :data:`CLASSES`, fixes shape, colour, and direction,
    frequency and profile of the grating; all except shape and profile vary around these. Pictures have a shorter side
    of 330 to 420 pixels, an aspect ratio of about 4:3, and three of ten are upright. Every class has the same number of
    pictures (if impossible, the first classes have one more), and three tenths of them, rounded down, are for
    validation.

    The random numbers of a picture follow from ``seed`` and its index alone, and its pixels are computed exactly on
    every machine, so that the bytes depend only on the version of Pillow. All cores are used.

    Args:
        out (path): Folder to make; its parent folders are made too.
        images (int): Number of pictures, from 100, ten of a class, to 10 million.
        seed (int): 0 to 2^32 - 1; different seeds give different pictures of the same classes.
        side (int): Pixels of the shorter side, from 16 to 320, to which the pictures are made smaller; ``None`` leaves
            them as they are.
        force (bool): Make an earlier set again that is damaged or has other parameters.

    Returns:
        tuple: ``(train, val, made)``: number of images in each part, and whether they were written just now.

    Raises:
        DataError: An argument is impossible, ``out`` cannot be written, holds other files, or holds another or a
            damaged set without ``force``.
    """
    if not 10 * len(CLASSES) <= images <= _MOST:
        raise DataError(f"images {images}: must be {10 * len(CLASSES)}, ten of a class, to {_MOST}")
    if not 0 <= seed < 2**32:
        raise DataError(f"seed {seed}: must be 0 to 2^32 - 1")
    if side is not None and not 16 <= side <= 320:
        raise DataError(f"side {side}: must be 16 to 320")
    parameters = {"source": "mixprec.data.textures", "version": _VERSION, "images": images, "seed": seed}
    parameters |= {"quality": _QUALITY, "difficulty": _DIFFICULTY, "side": side}
    return make_set(out, "textures", parameters, lambda: (images, _contents(images, seed, side)), force=force)


def picture(index, seed):
    """Returns picture ``index`` of a set, of class ``index % 10``: uint8, (height, width, 3)."""
    random = np.random.RandomState([seed, index])  # its numbers never change from a version of NumPy to the next
    texture = CLASSES[index % len(CLASSES)]
    short = random.randint(330, 421)
    long = int(short * random.uniform(1.25, 1.42))
    height, width = (long, short) if random.uniform() < 0.3 else (short, long)
    pixels = _background(random, height, width)
    for _ in range(random.randint(2, 6)):
        _distract(random, pixels, short)
    _paint_object(random, pixels, short, texture)
    for _ in range(random.randint(0, 2)):
        _distract(random, pixels, short)
    pixels *= _light(random, height, width)[:, :, None]
    pixels += _noise(random, height, width)[:, :, None]
    return np.rint(pixels.clip(0, 255)).astype(np.uint8)


def _contents(images, seed, side=None):
    """Yields (path inside the set, JPEG in bytes); computed by processes, in order."""
    pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn"))
    try:
        with for_parent_only():  # the processes start now
            made = pool.map(functools.partial(_jpeg, seed=seed, side=side), range(images), chunksize=16)
        for index, content in enumerate(made):
            yield _path(index, images), content
    finally:
        pool.shutdown(cancel_futures=True)


def is_for_validation(index, images):
    """Returns whether picture ``index`` of a set of ``images`` is for validation."""
    number, label = divmod(index, len(CLASSES))
    members = len(range(label, images, len(CLASSES)))
    return number < members * _VALIDATION // 10


def _path(index, images):
    label = index % len(CLASSES)
    part = "val" if is_for_validation(index, images) else "train"
    return f"{part}/{CLASSES[label].name}/{index:05}.jpg"


def _jpeg(index, seed, side=None):
    file, image = io.BytesIO(), Image.fromarray(picture(index, seed))
    if side is not None:
        share = side / min(image.size)
        image = image.resize((round(share * image.width), round(share * image.height)), Image.Resampling.BILINEAR)
    image.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


# Pixels are float32 from 0 to 255, and only added and multiplied: that is exact on every processor. Sine and cosine of
# whole arrays are not, and are therefore taken from tables of rounded numbers.


def _background(random, height, width):
    """Smooth blotches of colour, under a faint grating."""
    blotches = random.randint(60, 196, (random.randint(3, 9), random.randint(3, 9), 3)).astype(np.uint8)
    pixels = np.asarray(Image.fromarray(blotches).resize((width, height), Image.Resampling.BICUBIC), np.float32)
    wave = _grating(
        height, width, random.uniform(0, 180), random.uniform(4, 24), _any(random, _WAVES), random.uniform()
    )
    return pixels + np.float32(random.uniform(0, 25)) * wave[:, :, None]


def _distract(random, pixels, short):
    """Paints a small shape of any colour, half of the time striped."""
    radius = short * random.uniform(0.04, 0.12)
    striped = random.uniform() < 0.5
    wave = (random.uniform(0, 180), random.uniform(6, 24), _any(random, _WAVES))
    contrast = random.uniform(0.3, 0.8) if striped else 0.0
    _paint(random, pixels, short, _any(random, _SHAPES), radius, random.uniform(0, 360), wave, contrast, margin=0.0)


def _paint_object(random, pixels, short, texture):
    angle = texture.angle + _DIFFICULTY * random.uniform(-30, 30)
    periods = texture.periods * 1.4 ** (_DIFFICULTY * random.uniform(-1, 1))
    hue = texture.hue + _DIFFICULTY * random.uniform(-40, 40)
    radius = short * random.uniform(0.2, 0.36)
    contrast = random.uniform(0.3, 0.9)
    _paint(random, pixels, short, texture.shape, radius, hue, (angle, periods, texture.wave), contrast, margin=0.6)


def _paint(random, pixels, short, shape, radius, hue, wave, contrast, margin):
    """Paints a striped shape somewhere, ``margin`` times its radius away from the edges.

    Args:
        random: source of the position, the rotation and the brightness.
        pixels: picture, float32 (height, width, 3); painted into.
        short: its shorter side.
        shape: key of ``_SHAPES``.
        radius: circumradius of the shape, in pixels.
        hue: colour in degrees.
        wave: ``(angle, periods along the shorter side, key of _WAVES)``.
        contrast: contrast of the stripes, 0 to 1.
        margin: distance from the edges, in radii.
    """
    height, width = pixels.shape[:2]
    y, x = (random.uniform(margin * radius, side - margin * radius) for side in (height, width))
    turn, value, saturation, phase = random.uniform(0, 360), *random.uniform(0.4, 0.8, 2), random.uniform()
    top, left = max(0, int(y - radius)), max(0, int(x - radius))
    bottom, right = min(height, int(y + radius) + 2), min(width, int(x + radius) + 2)
    if top >= bottom or left >= right:
        return
    mask = Image.new("L", (right - left, bottom - top))
    _SHAPES[shape](ImageDraw.Draw(mask), x - left, y - top, radius, turn)
    covered = np.asarray(mask) > 0
    angle, periods, profile = wave
    stripes = _grating(bottom - top, right - left, angle, periods * radius * 2 / short, profile, phase, radius * 2)
    colour = np.array(_rgb(hue, saturation, value), np.float32)
    painted = colour * (np.float32(1) + np.float32(contrast) * stripes[:, :, None])
    part = pixels[top:bottom, left:right]
    part[covered] = painted[covered]


def _rgb(hue, saturation, value):
    """Red, green and blue, 0..255, of a colour (Smith 1978: the hexcone model)."""
    return [
        255 * value * (1 - saturation * max(0.0, min(1.0, 2 - abs((hue / 60 + shift) % 6 - 3)))) for shift in (0, 4, 2)
    ]


def _grating(height, width, angle, periods, wave, phase, length=None):
    """Stripes of -1 to 1, float32 (height, width), with ``periods`` of them along ``length`` pixels (the shorter side).

    The position across the stripes is computed in whole numbers, in 1/65536 of a step of the table.
    """
    step = _PHASES * 65536 * periods / (length or min(height, width))
    across = (round(step * math.sin(math.radians(angle))), round(step * math.cos(math.radians(angle))))
    rows = np.arange(height, dtype=np.int64) * across[0] + round(phase * _PHASES) * 65536
    columns = np.arange(width, dtype=np.int64) * across[1]
    return _WAVES[wave][((rows[:, None] + columns) >> 16) & (_PHASES - 1)]


def _table(profile):
    values = [round(32768 * profile(step / _PHASES)) for step in range(_PHASES)]
    return np.array(values, np.float32) / np.float32(32768)


_WAVES = {
    "sine": _table(lambda part: math.sin(2 * math.pi * part)),
    "square": _table(lambda part: 0.75 if part < 0.5 else -0.75),
    "saw": _table(lambda part: 2 * part - 1),
}


def _light(random, height, width):
    """A light that rises across the picture, float32 (height, width)."""
    angle, slope, mean = random.uniform(0, 2 * math.pi), random.uniform(0, 0.8), random.uniform(0.7, 1.1)
    rows = np.linspace(-0.5, 0.5, height).astype(np.float32) * np.float32(slope * math.sin(angle))
    columns = np.linspace(-0.5, 0.5, width).astype(np.float32) * np.float32(slope * math.cos(angle))
    return np.float32(mean) * (np.float32(1) + rows[:, None] + columns)


def _noise(random, height, width):
    """Grain: uniform, of an amplitude that differs between pictures, the same in all channels."""
    amplitude = random.uniform(2, 14)
    grain = np.frombuffer(random.bytes(height * width), np.int8).reshape(height, width)
    return grain * np.float32(amplitude / 128)


def _disc(draw, x, y, radius, turn):
    draw.ellipse((x - 0.85 * radius, y - 0.85 * radius, x + 0.85 * radius, y + 0.85 * radius), fill=255)


def _ring(draw, x, y, radius, turn):
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    draw.ellipse((x - 0.5 * radius, y - 0.5 * radius, x + 0.5 * radius, y + 0.5 * radius), fill=0)


def _polygon(corners):
    def paint(draw, x, y, radius, turn):
        angles = [math.radians(turn + 360 * corner / corners) for corner in range(corners)]
        draw.polygon([(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles], fill=255)

    return paint


_SHAPES = {"disc": _disc, "ring": _ring, "triangle": _polygon(3), "square": _polygon(4)}


def _any(random, names):
    return list(names)[random.randint(len(names))]
