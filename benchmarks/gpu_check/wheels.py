"""Wheels that were carried to a machine: unpacked into a folder of their own, where the machine has no such package."""

import sys
import zipfile
from importlib import metadata


def unpack(folder, target):
    """Unpacks the wheels of packages that this interpreter does not have.

    Nothing is installed: ``target`` is to be on ``PYTHONPATH``.

    Args:
        folder: where the wheels are, a path; without one nothing is unpacked.
        target: folder to unpack them into.

    Returns:
        ``(taken, left)``: lists of what was unpacked, as ``name==version``, and of why others cannot be.

    Raises:
        OSError: they cannot be unpacked.
        zipfile.BadZipFile: a file is not whole.
    """
    taken, left = [], []
    for path in sorted(folder.glob("*.whl")) if folder.is_dir() else ():
        name, version, *_, python, abi, _ = path.stem.split("-")
        title = f"{name.replace('_', '-').lower()}=={version}"
        if _is_installed(name):
            continue
        if not _fits(python, abi):
            left.append(f"{title}: made for {python}, and this is Python {sys.version_info[0]}.{sys.version_info[1]}")
        else:
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(target)
            taken.append(title)
    return taken, left


def _is_installed(distribution):
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _fits(python, abi):
    """Whether a wheel with these tags is for this interpreter."""
    major, minor = sys.version_info[:2]
    if abi == "abi3":
        return any(int(tag[3:]) <= minor for tag in python.split(".") if tag.startswith(f"cp{major}"))
    return bool({f"py{major}", f"py{major}{minor}", f"cp{major}{minor}"} & set(python.split(".")))
