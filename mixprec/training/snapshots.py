"""Snapshots: written atomically, found again after a kill, and checked before anything is loaded from them."""

import os
import re
import zipfile
import zlib

import numpy as np
from chainer import serializers
from chainer.training import extensions
from chainer.training.extensions import snapshot_writers

from mixprec import files

_FILE = re.compile(r"snapshot_iter_(\d+)\.npz")
_MODEL = "updater/model:main"


class SnapshotError(ValueError):
    """A snapshot that cannot be used; the message is one line and names the file."""


class AtomicWriter(snapshot_writers.SimpleWriter):
    """Writes a snapshot through a temporary file, synced to disk before it is renamed."""

    def save(self, filename, outdir, target, savefun, **kwds):
        """Saves ``target`` to ``outdir/filename``; called by Chainer's snapshot extension."""
        with files.replacing(os.path.join(outdir, filename)) as temporary:
            savefun(temporary, target, **kwds)
        self._post_save()


def extension(keep):
    """Returns Chainer's snapshot extension, writing atomically and keeping the ``keep`` newest files."""
    return extensions.snapshot(filename="snapshot_iter_{.updater.iteration}.npz", writer=AtomicWriter(), n_retains=keep)


def newest(folder):
    """Returns the path of the snapshot of the latest iteration in ``folder``, or ``None``."""
    if not os.path.isdir(folder):
        return None
    matches = [match for match in map(_FILE.fullmatch, os.listdir(folder)) if match]
    if not matches:
        return None
    return os.path.join(folder, max(matches, key=lambda match: int(match[1]))[0])


def load(path, trainer):
    """Loads a snapshot into a trainer that was built like the one that wrote it.

    Args:
        path: snapshot file.
        trainer: :class:`chainer.training.Trainer`; it is not touched unless the file is whole and of the same model.

    Raises:
        SnapshotError: the file is missing, corrupt, or of another model or run.
    """
    arrays = _read(path)
    _check_model(path, arrays, trainer.updater.get_optimizer("main").target)
    try:
        serializers.NpzDeserializer(arrays).load(trainer)
    except KeyError as error:
        raise SnapshotError(f"{path}: not a snapshot of this run: {error.args[0]}") from error
    except ValueError as error:
        raise SnapshotError(f"{path}: not a snapshot of this run: {error}") from error


def _read(path):
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise SnapshotError(f"{path}: no such snapshot") from error
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SnapshotError(f"{path}: corrupt snapshot, or not a snapshot at all ({reason})") from error


def _check_model(path, arrays, model):
    saved = {name[len(_MODEL) :]: array for name, array in arrays.items() if name.startswith(_MODEL + "/")}
    if not saved:
        raise SnapshotError(f"{path}: not a snapshot of a training run (it has no {_MODEL})")
    for name, param in model.namedparams():
        if name not in saved:
            raise SnapshotError(f"{path}: a snapshot of another model: it has no parameter {name}")
        if param.array is not None and saved[name].shape != param.shape:
            raise SnapshotError(
                f"{path}: a snapshot of another model: {name} has shape {saved[name].shape}, here {param.shape}"
            )
