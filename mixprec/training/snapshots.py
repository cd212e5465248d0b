"""Snapshots: written atomically, found again after a kill, and checked before loading.

The trainer writes them by :func:`extension` and :class:`BestSnapshot`. To resume, the training command finds a
snapshot, and loads it before the first step.
"""

import math
import os
import re
import warnings

import numpy as np
from chainer import Deserializer, serializers
from chainer.serializers import npz
from chainer.training import extension as chainer_extension
from chainer.training import extensions
from chainer.training.extensions import snapshot_writers

from mixprec.base import files
from mixprec.base.archives import Damaged, read_arrays
from mixprec.base.messages import OneLineError

BEST = "snapshot_best.npz"
_ACCURACY = "validation/main/accuracy"
_FILE = re.compile(r"snapshot_iter_([0-9]{1,18})\.npz")
_MODEL = "updater/model:main"


class SnapshotError(OneLineError):
    """A snapshot that cannot be used; the message is one line and names the file."""


class WriteError(RuntimeError):
    """A snapshot that cannot be written; the message is one line and names the file."""


class AtomicWriter(snapshot_writers.SimpleWriter):
    """Writes a snapshot through a temporary file, synced to disk before it is renamed.

    Attributes:
        written: name of the last written file, or ``None``.
    """

    written = None

    def save(self, filename, outdir, target, savefun, **kwds):
        """Saves ``target`` to ``outdir/filename``; called by Chainer's snapshot extension.

        Raises:
            WriteError: the file cannot be written, for example because the disk is full, or the folder is gone.
        """
        path = os.path.join(outdir, filename)
        try:
            with files.replacing(path) as temporary:
                # Weights hardly get smaller, and compressing them takes longer than SIGTERM leaves time for.
                savefun(temporary, target, compression=False, **kwds)
            self.written = filename
            self._post_save()
        except OSError as error:
            raise WriteError(f"{path}: cannot be written ({error.strerror or error})") from error


def extension(keep):
    """Returns Chainer's snapshot extension, writing atomically and keeping the ``keep`` newest files.

    The newest files are the last written ones, also by an earlier process of the run.
    """
    return extensions.snapshot(filename="snapshot_iter_{.updater.iteration}.npz", writer=AtomicWriter(), n_retains=keep)


class BestSnapshot(chainer_extension.Extension):
    """Keeps the snapshot with the highest validation accuracy, in ``snapshot_best.npz``; in a tie the first.

    The value is stored in the file, and a resumed run compares with it. So the two always belong together, even if the
    run is resumed from a snapshot that is older than the file.

    Args:
        out: results folder.
        ranks: from :mod:`mixprec.distributed.processes`. All observe the same value; only rank 0 reads and writes the
            file.
        in_files: function from a trainer to a context manager in which its state is as in a snapshot.
        allowed: function that returns whether a trainer's state is worth a snapshot. A network whose loss is NaN still
            has an accuracy.
    """

    trigger = 1, "iteration"
    priority = -99  # before the regular snapshot: a kill between the two must not lose it

    def __init__(self, out, ranks, in_files, allowed=lambda trainer: True):
        self._ranks, self._in_files, self._allowed = ranks, in_files, allowed
        self._path = os.path.join(out, BEST)
        self._value = -math.inf

    def __call__(self, trainer):
        if _ACCURACY not in trainer.observation:
            return
        value = float(trainer.observation[_ACCURACY])
        if self._ranks.any(self._ranks.is_first and value > self._value) and self._allowed(trainer):
            self._value = value
            folder, name = os.path.split(self._path)
            with self._in_files(trainer):
                if self._ranks.is_first:
                    AtomicWriter()(name, folder, npz.serialize(trainer))

    def serialize(self, serializer):
        """Saves the value; loading reads it from the file of the best snapshot.

        Raises:
            SnapshotError: the file exists and cannot be read.
        """
        if not isinstance(serializer, Deserializer):
            serializer("value", self._value)
        elif self._ranks.is_first and os.path.exists(self._path):
            self._value = float(read(self._path, [f"extensions/{self.name}/value"]).popitem()[1])


def newest(folder):
    """Returns the path of the snapshot of the latest iteration in ``folder``, or ``None``."""
    iterations = _iterations(folder)
    return _path(folder, max(iterations)) if iterations else None


def all_in(folder):
    """Returns the paths of all snapshots in ``folder``, the best included."""
    best = os.path.join(folder, BEST)
    return [*(_path(folder, iteration) for iteration in _iterations(folder)), *([best] if os.path.exists(best) else [])]


def load(path, trainer, arrays=None):
    """Loads a snapshot into a trainer that was built like the one that wrote it.

    Args:
        path: snapshot file.
        trainer: :class:`chainer.training.Trainer`; it is not changed unless the file is complete and of the same model.
        arrays: dict of arrays to load in place of the result of :func:`read`.

    Raises:
        SnapshotError: the file is missing, corrupt, or of another model or run.
    """
    arrays = read(path) if arrays is None else arrays
    _check_model(path, arrays, trainer.updater.get_optimizer("main").target)
    try:
        with warnings.catch_warnings():
            # For a trigger that the saved run did not have, such as the histogram's.
            warnings.filterwarnings("ignore", "The previous value of", UserWarning)
            # For a run with another loss_scale.mode; the change is reported elsewhere.
            warnings.filterwarnings("ignore", "the snapshot has no loss scale", UserWarning)
            serializers.NpzDeserializer(arrays).load(trainer)
    except SnapshotError:  # for the best snapshot
        raise
    except KeyError as error:
        raise SnapshotError(f"{path}: not a snapshot of this run: {error.args[0]}") from error
    except (ValueError, TypeError, ArithmeticError) as error:  # a value is text, has many dimensions, is too large...
        raise SnapshotError(f"{path}: not a snapshot of this run: {error}") from error


def check_newest(path, iteration, folder):
    """Checks that the results folder of a resumed run has no snapshots of later iterations.

    ``--resume auto`` would later take these as newer.

    Args:
        path: snapshot file.
        iteration: its iteration.
        folder: results folder.

    Raises:
        SnapshotError: the folder has a snapshot of a later iteration.
    """
    later = max(_iterations(folder), default=0)
    if later > iteration:
        raise SnapshotError(
            f"{path}: of iteration {iteration}, and {folder} has later snapshots, up to {_path(folder, later)}; remove "
            f"those, or give another --out"
        )


def check_length(path, epoch, epochs):
    """Checks that a resumed run is not already past its end.

    Args:
        path: snapshot file.
        epoch: its position, in epochs.
        epochs: length of training in epochs.

    Raises:
        SnapshotError: the snapshot is of a longer run.
    """
    if epoch > epochs:
        raise SnapshotError(f"{path}: of epoch {epoch:g}, and training.epochs is {epochs}; it must be at least that")


def _iterations(folder):
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [int(match[1]) for match in map(_FILE.fullmatch, names) if match]


def _path(folder, iteration):
    return os.path.join(folder, f"snapshot_iter_{iteration}.npz")


def read(path, names=None):
    """Reads a snapshot file.

    Args:
        path: snapshot file.
        names: names of the arrays to read; ``None`` reads all.

    Returns:
        dict: arrays by name.

    Raises:
        SnapshotError: the file is missing, corrupt, or lacks one of the names.
    """
    try:
        with files.open_regular(path) as file:
            return read_arrays(file, list if names is None else lambda _: names, _objects)
    except FileNotFoundError as error:
        raise SnapshotError(f"{path}: no such snapshot") from error
    except KeyError as error:
        raise SnapshotError(f"{path}: not a snapshot of this run: {error.args[0]}") from error
    except (OSError, ValueError, Damaged) as error:  # the path may contain a null byte
        raise SnapshotError(f"{path}: corrupt snapshot, or not a snapshot at all ({error}){_instead(path)}") from error


def _objects(name, shape):
    """Returns ``None`` for uninitialized values, which Chainer saves as arrays of objects."""
    if shape != ():
        raise Damaged(f"{name} holds Python objects")
    return np.asarray(None)


def _instead(path):
    """Returns advice about a corrupt snapshot, or ``""``."""
    folder, name = os.path.split(path)
    if name == BEST:
        return "; remove it, and a later best snapshot replaces it"
    match = _FILE.fullmatch(name)
    if match is None:
        return ""
    older = [number for number in _iterations(folder or ".") if number < int(match[1])]
    then = f"goes on from {_path(folder, max(older))}" if older else "starts afresh"
    return f"; remove it, and --resume auto {then}"


def _check_model(path, arrays, model):
    saved = {name[len(_MODEL) :]: array for name, array in arrays.items() if name.startswith(_MODEL + "/")}
    if not saved:
        raise SnapshotError(f"{path}: not a snapshot of a training run (it has no {_MODEL})")
    here = contents(model)
    for name, array in sorted(here.items()):  # Chainer's order differs between processes
        if f"/{name}" not in saved:
            raise SnapshotError(f"{path}: a snapshot of another model: it has no parameter /{name}")
        found = saved[f"/{name}"].shape
        if array is not None and np.shape(array) != found:
            raise SnapshotError(
                f"{path}: a snapshot of another model: /{name} has shape {found}, here {np.shape(array)}"
            )
    surplus = sorted(name for name in saved if name[1:] not in here)
    if surplus:
        more = f" and {len(surplus) - 1} more parameters" if len(surplus) > 1 else ""
        raise SnapshotError(
            f"{path}: a snapshot of another model: it has {surplus[0]}{more}, which the model here lacks"
        )


def contents(link):
    """Returns the contents of a link's file: arrays or numbers by name, not copied; ``None`` if not initialized."""
    serializer = _Contents()
    serializer.save(link)
    return serializer.target


class _Contents(serializers.DictionarySerializer):
    """Collects the saved values without copying them to the host, as Chainer's serializer would."""

    def __getitem__(self, key):
        return _Contents(self.target, f"{self.path}{key.strip('/')}/")

    def __call__(self, key, value):
        self.target[self.path + key.lstrip("/")] = value
        return value
