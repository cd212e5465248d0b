"""The sources of the library: setup.py compiles their digest in, and :mod:`.native_library` compares it."""

import hashlib
import pathlib

_FOLDER = pathlib.Path(__file__).parent / "source"


def digest():
    """Returns 16 hexadecimal digits that change with any of the sources, or ``None`` where there are none (a wheel)."""
    paths = sorted(path for path in _FOLDER.glob("*") if path.suffix in (".cpp", ".h", ".inl"))
    if not paths:
        return None
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]
