"""A small real data set without a download: scikit-learn's handwritten digits as JPEG files in ImageNet's layout."""

import hashlib
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from mixprec.data.folders import DataError

MANIFEST = "manifest.json"
_QUALITY = 95
_SMALLEST = 32


def make_digits(out, *, size=40, force=False):
    """Writes ``out/train/<digit>/*.jpg`` and ``out/val/<digit>/*.jpg`` and a manifest of them.

    The source is Alpaydin and Kaynak's *Optical Recognition of Handwritten Digits* (UCI, 1998), whose 1,797 test
    images of 8x8 pixels come with scikit-learn. They are enlarged with Pillow's Lanczos filter and saved as gray JPEG
    of quality 95; the bytes depend on the version of Pillow and on nothing else.

    The split is stratified and uses no random numbers: within each digit the images are sorted by the SHA-256 of
    their 64 pixels (as bytes 0..16), and the first fifth, rounded down, is for validation.

    The folder is built beside ``out`` and renamed when it is complete.

    Args:
        out (path): Folder to make; its parent folders are made too.
        size (int): Height and width of the images in pixels, >= 32.
        force (bool): Make an earlier set again that is damaged or has another size.

    Returns:
        tuple: ``(train, val, made)``: number of images in each part, and whether they were written just now.

    Raises:
        DataError: ``out`` cannot be written, holds other files, or holds another or a damaged set without ``force``.
    """
    out = Path(os.path.realpath(out))
    if size < _SMALLEST:
        raise DataError(f"size {size}: must be at least {_SMALLEST} pixels")
    parameters = {"source": "sklearn.datasets.load_digits", "size": size, "quality": _QUALITY}
    try:
        present = _read_manifest(out)
        if present is not None:
            problem = _difference(present, parameters) or _damage(out, present["files"])
            if problem is None:
                return *_counts(present["files"]), False
            if not force:
                raise DataError(f"{out}: {problem}; --force makes the set again")
        files = _build(out, parameters)
    except OSError as error:
        raise DataError(f"{out}: cannot be read or written ({error.strerror})") from error
    return *_counts(files), True


def _build(out, parameters):
    """Writes the set into a temporary folder beside ``out`` and puts it in its place; returns {path: SHA-256}."""
    images, digits = _load()
    size = parameters["size"]
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    replaced = out.with_name(f".{out.name}.{os.getpid()}.old")
    files = {}
    try:
        for name, pixels in tqdm(
            _named(images, digits), desc="Writing digits", unit="img", delay=1, leave=False, disable=None
        ):
            content = _jpeg(pixels, size)
            _write(temporary / name, content)
            files[name] = hashlib.sha256(content).hexdigest()
        _write(temporary / MANIFEST, (json.dumps({**parameters, "files": files}, indent=1) + "\n").encode())
        if out.exists():
            out.rename(replaced)
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)
    return files


def _load():
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(f'scikit-learn cannot be imported ({error}): pip install -e ".[digits]"') from error
    bunch = load_digits()
    return bunch.images.astype(np.uint8), bunch.target


def _named(images, digits):
    """List of (path inside the set, pixels 0..16), sorted by path; the number is the image's in scikit-learn."""
    named = []
    for digit in range(10):
        members = np.flatnonzero(digits == digit).tolist()
        members.sort(key=lambda index: (hashlib.sha256(images[index].tobytes()).digest(), index))
        count = len(members) // 5
        for part, indices in (("val", members[:count]), ("train", members[count:])):
            named += [(f"{part}/{digit}/{index:04}.jpg", images[index]) for index in indices]
    return sorted(named, key=lambda pair: pair[0])


def _jpeg(pixels, size):
    """Enlarges 8x8 values of 0..16 to size x size and returns them as the bytes of a gray JPEG file."""
    levels = np.rint(pixels * (255 / 16)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).resize((size, size), Image.Resampling.LANCZOS).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _read_manifest(out):
    """The manifest of an earlier set, or None if ``out`` is missing or empty; refuses a folder that is not ours."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not out.is_dir():
        raise DataError(f"{out}: is a file; the output must be a folder")
    try:
        manifest = json.loads((out / MANIFEST).read_bytes())
        foreign = _on_disk(out) - set(manifest["files"])
    except (FileNotFoundError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{out}: not empty, and not a set of digits made by this script (no {MANIFEST})") from error
    if foreign:
        raise DataError(f"{out}: holds {min(foreign)}, which is not part of the set of digits")
    return manifest


def _on_disk(out):
    return {str(path.relative_to(out)) for path in out.rglob("*") if not path.is_dir()} - {MANIFEST}


def _difference(manifest, parameters):
    for key, value in parameters.items():
        if manifest.get(key) != value:
            return f"holds digits of {key} {manifest.get(key)}, not {value}"
    return None


def _damage(out, files):
    """What is wrong with the first file that is not as it was written, or None."""
    present = _on_disk(out)
    for name, sha256 in files.items():
        if name not in present:
            return f"{name} is missing"
        if hashlib.sha256((out / name).read_bytes()).hexdigest() != sha256:
            return f"{name} has been changed"
    return None


def _counts(files):
    train = sum(name.startswith("train/") for name in files)
    return train, len(files) - train
