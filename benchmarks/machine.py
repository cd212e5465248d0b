"""Versions, commit and machine of a measurement."""

import dataclasses
import datetime
import pathlib
import platform
import subprocess
from importlib import metadata

from mixprec.app.parts import environment

_ROOT = pathlib.Path(__file__).resolve().parents[1]


def record():
    """Returns date, versions, commit (``None`` outside of a git checkout) and CPU, as a dict for JSON."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("numpy", "chainer", "mixprec", "torch")},
        "commit": _commit(),
        "cpu": environment.cpu(),
    }


def as_json(rows, settings, **more):
    """Returns rows, dataclasses, as a dict for JSON with their settings and what they were measured on."""
    return {"settings": settings, **record(), **more, "rows": [dataclasses.asdict(row) for row in rows]}


def _version(distribution):
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _commit():
    """The commit that is checked out, with ``-dirty`` if the files are not those of the commit."""
    if not (_ROOT / ".git").exists():
        return None
    try:
        describe = ["git", "-C", _ROOT, "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or a checkout of another user
        return None
