"""The results folder of a run: the training command writes to it after checking config, network and images."""

import contextlib
import datetime
import itertools
import os
import shutil
import tempfile

from mixprec.app.run.lock import FILE as LOCK
from mixprec.app.run.lock import locked
from mixprec.base import files, working_folder
from mixprec.base.messages import OneLineError, beside, hint, reworded
from mixprec.training import gradient_log, heartbeat, snapshots, tensorboard
from mixprec.training.log_report import LOG

CONFIG = "config.yaml"
# Files that an earlier run may have left, and a new one replaces later, or never.
_OF_A_RUN = (LOG, snapshots.BEST, gradient_log.FILE, heartbeat.FILE)


class OutputError(OneLineError):
    """A results folder that cannot be used; the message is one line and names it."""


def choose(out, resume, config_path):
    """Chooses the results folder of a run.

    Args:
        out: the folder the user asked for, or ``None``.
        resume: ``None``, ``"auto"`` or the path of a snapshot.
        config_path: path of the config file, which names the default: ``results/<config>/<date-time>``.

    Returns:
        str: ``out`` if given; else the folder of the snapshot to resume; else the newest run of this config when
        ``resume`` is ``"auto"`` and there is one; else a new folder.

    Raises:
        OutputError: ``out`` or ``resume`` is empty, such as an unset variable of the shell.
    """
    if out == "":
        raise OutputError("--out is empty; give a folder, or leave it out")
    if resume == "":
        raise OutputError("--resume is empty; give auto or a snapshot, or leave it out")
    if out is not None:
        return out
    if resume not in (None, "auto"):
        return os.path.dirname(resume) or "."
    runs = os.path.join("results", os.path.splitext(os.path.basename(config_path))[0])
    if resume == "auto" and os.path.isdir(runs):
        names = sorted(name for name in os.listdir(runs) if os.path.isdir(os.path.join(runs, name)))
        if names:
            return os.path.join(runs, names[-1])
    fresh = os.path.join(runs, f"{datetime.datetime.now():%Y%m%d-%H%M%S}")
    names = itertools.chain([fresh], (f"{fresh}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not os.path.exists(name))


def check_snapshot(resume):
    """Checks that the value of ``--resume`` is nothing, ``auto`` or a file.

    Raises:
        OutputError: it is something else; the message suggests what may be meant.
    """
    if resume in (None, "", "auto"):
        return
    if os.path.isdir(resume):
        raise OutputError(f"{resume}: a folder, not a snapshot{hint(f'--resume auto --out {resume}')}")
    if not os.path.exists(resume):
        is_word = os.path.splitext(resume)[1] == "" and os.sep not in resume
        raise OutputError(f"{resume}: no such snapshot{hint('auto') if is_word else beside(resume)}")


def check_writable(out):
    """Makes sure that results can be written to ``out``, without creating anything.

    Raises:
        OutputError: it is not a folder, or cannot be made.
    """
    if os.path.exists(out) and not os.path.isdir(out):
        raise OutputError(f"{out}: not a folder; give another --out")
    try:
        os.stat(out)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # the name is too long, or holds a null character
        raise OutputError(f"{out}: not a folder ({getattr(error, 'strerror', error)}); give another --out") from error
    folder = nearest_folder(out)
    if any(len(os.fsencode(name)) > os.pathconf(folder, "PC_NAME_MAX") for name in out.split(os.sep)):
        raise OutputError(f"{out}: a name is too long; give another --out")
    with reworded(lambda reason: OutputError(f"{out}: not writable ({reason}); give another --out")):
        tempfile.TemporaryFile(dir=folder).close()


@contextlib.contextmanager
def created(out):
    """Creates and locks a new results folder."""
    with reworded(lambda reason: OutputError(f"{out}: cannot be created ({reason}); give another --out")):
        os.makedirs(out, exist_ok=True)
    with locked(out):
        yield


def nearest_folder(out):
    """Returns ``out``, or its nearest existing parent folder."""
    existing = working_folder.absolute(out)
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    return existing


def prepare(out, *, resumed):
    """Removes files from ``out`` that a killed run was writing.

    Args:
        out: results folder, which is locked.
        resumed: whether the run resumes from a snapshot; if not, the log of a killed run and its best snapshot are
            removed, too.
    """
    for name in os.listdir(out):
        path = os.path.join(out, name)
        if name.startswith(files.TEMPORARY) or (not resumed and name in _OF_A_RUN):
            if not os.path.isdir(path):
                os.remove(path)
        elif not resumed and name == tensorboard.FOLDER:
            shutil.rmtree(path)


def write(path, text, *, resumed):
    """Writes a file about a run. A resumed run keeps the earlier file, and uses the next number: ``config.1.yaml``.

    Args:
        path: path of the file.
        text: its content.
        resumed: whether there is a run before this one, in the same folder.
    """
    if resumed and os.path.exists(path):
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            is_same = file.read() == text
        if not is_same:
            stem, suffix = os.path.splitext(path)
            names = (f"{stem}.{number}{suffix}" for number in itertools.count(1))
            os.rename(path, next(name for name in names if not os.path.exists(name)))
    files.write_text(path, text)


def snapshot_to_resume(out, resume):
    """Returns the path of the snapshot that ``--resume`` means, or ``None`` to start afresh.

    Raises:
        OutputError: ``out`` holds other files than the run is to continue with.
    """
    there = os.listdir(out) if os.path.isdir(out) else []
    is_used = any(name != LOCK and not name.startswith(files.TEMPORARY) for name in there)
    if resume is None:
        if is_used:
            raise OutputError(f"{out}: already used; continue that run with --resume auto, or give another --out")
        return None
    if resume == "auto":
        newest = snapshots.newest(out)
        if is_used and newest is None and CONFIG not in there:  # the first file that a run writes
            raise OutputError(f"{out}: holds no run, but other files; give another --out")
        return newest
    if is_used and not _is_in(resume, out):
        raise OutputError(f"{out}: already used, by a run that {resume} does not belong to; give another --out")
    return resume


def _is_in(path, folder):
    try:
        return os.path.samefile(os.path.dirname(path) or ".", folder)
    except OSError:
        return False
