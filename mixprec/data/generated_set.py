"""A generated set of images: written completely or not at all, with a manifest, and made once."""

import contextlib
import glob
import hashlib
import json
import os
import shutil
from pathlib import Path

from tqdm import tqdm

from mixprec.base import working_folder
from mixprec.base.process_limits import start_of
from mixprec.data.data_error import DataError

MANIFEST = "manifest.json"


def make_set(out, kind, parameters, images, *, force=False):
    """Makes ``out/train/<class>/*.jpg`` and ``out/val/<class>/*.jpg``, and a manifest with the SHA-256 of each file.

    The folder is built beside ``out`` and renamed when it is complete; after an error or Ctrl-C nothing is left of it.
    An existing set with the same parameters is verified and left as it is.

    Args:
        out (path): Folder to make; its parent folders are made too.
        kind (str): Plural noun for the images, for messages.
        parameters (dict): Everything that determines the content of the files; goes into the manifest.
        images (callable): Returns the number of images and a generator of pairs (path inside the set, bytes of the
            file); called only if the set is to be made.
        force (bool): Make an earlier set again that is damaged or has other parameters.

    Returns:
        tuple: ``(train, val, made)``: number of images in each part, and whether they were written just now.

    Raises:
        DataError: ``out`` cannot be written, holds other files, or holds another or a damaged set without ``force``.
    """
    out = Path(working_folder.real(out))
    try:
        present = _read_manifest(out, kind)
        if present is not None:
            problem = _difference(present, parameters, kind) or _damage(out, present["files"])
            if problem is None:
                return *_counts(present["files"]), False
            if not force:
                raise DataError(f"{out}: {problem}; --force makes the set again")
        files = _build(out, kind, parameters, *images())
    except OSError as error:
        raise DataError(f"{out}: cannot be read or written ({error.strerror or error})") from error
    return *_counts(files), True


def _build(out, kind, parameters, count, contents):
    """Writes the set into a temporary folder beside ``out`` and renames it; returns {path: SHA-256}."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    replaced = out.with_name(f".{out.name}.{os.getpid()}.old")
    files = {}
    _remove_left_over(out)
    try:
        with contextlib.closing(contents):
            for name, content in tqdm(
                contents, total=count, desc=f"Writing {kind}", unit="img", delay=1, leave=False, disable=None
            ):
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


def _remove_left_over(out):
    """Removes what earlier processes, which were killed, were writing: hidden folders beside ``out``."""
    for folder in out.parent.glob(f".{glob.escape(out.name)}.*.tmp"):
        pid = folder.name.removesuffix(".tmp").rpartition(".")[2]
        if pid.isdecimal() and start_of(int(pid)) is None:
            shutil.rmtree(folder, ignore_errors=True)


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _read_manifest(out, kind):
    """The manifest of an earlier set, or None if ``out`` is missing or empty; refuses a folder that is not ours."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not out.is_dir():
        raise DataError(f"{out}: is a file; the output must be a folder")
    try:
        manifest = json.loads((out / MANIFEST).read_bytes())
        foreign = _on_disk(out) - set(manifest["files"])
    except (FileNotFoundError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{out}: not empty, and not a set of {kind} made by mixprec (no {MANIFEST})") from error
    if foreign:
        raise DataError(f"{out}: holds {min(foreign)}, which is not part of the set of {kind}")
    return manifest


def _on_disk(out):
    return {str(path.relative_to(out)) for path in out.rglob("*") if not path.is_dir()} - {MANIFEST}


def _difference(manifest, parameters, kind):
    for key, value in parameters.items():
        if manifest.get(key) != value:
            return f"holds {kind} of {key} {manifest.get(key)}, not {value}"
    return None


def _damage(out, files):
    """The fault of the first file that differs from what was written, or None."""
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
