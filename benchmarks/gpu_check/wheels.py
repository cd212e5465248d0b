"""Wheels that were carried to a machine: unpacked into a folder of their own, where the machine has no such package."""

import sys
import zipfile
from importlib import metadata

from mixprec.base.archives import reading


def unpack(folder, target):
    """Unpacks the wheels in a folder whose packages this interpreter does not have, and can use, to be on its path.

    Returns:
        The names of what was unpacked, and of what cannot be used, as a list.

    Raises:
        OSError: the folder cannot be written.
        mixprec.base.archives.Damaged: a wheel is not as it was written.
    """
    taken, ours = [], f"cp{sys.version_info[0]}{sys.version_info[1]}"
    for path in sorted(folder.glob("*.whl")):
        name, *tags = path.stem.split("-")
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if not any(tag in "-".join(tags) for tag in ("py3-", "abi3-", f"{ours}-")):
                taken.append(f"{name} not, which is not for {ours}")
                continue
            with reading(path.name), zipfile.ZipFile(path) as wheel:
                wheel.extractall(target)
            taken.append(name)
    return taken
