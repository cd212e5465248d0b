"""The results folder of a run."""

import datetime
import os
import shutil
import tempfile

from mixprec import files
from mixprec.training import snapshots, tensorboard
from mixprec.training.log_report import LOG


class OutputError(ValueError):
    """A results folder that cannot be used; the message is one line and names it."""


def choose(out, resume, config_path):
    """Decides where the results of a run go.

    Args:
        out: the folder the user asked for, or ``None``.
        resume: ``None``, ``"auto"`` or the path of a snapshot.
        config_path: path of the config file, which names the default: ``results/<config>/<date-time>``.

    Returns:
        str: ``out`` if given; else the folder of the snapshot to resume; else the newest run of this config when
        ``resume`` is ``"auto"`` and there is one; else a new folder.
    """
    if out is not None:
        return out
    if resume not in (None, "auto"):
        return os.path.dirname(resume) or "."
    runs = os.path.join("results", os.path.splitext(os.path.basename(config_path))[0])
    if resume == "auto" and os.path.isdir(runs) and (names := sorted(os.listdir(runs))):
        return os.path.join(runs, names[-1])
    return os.path.join(runs, f"{datetime.datetime.now():%Y%m%d-%H%M%S}")


def check(out, resume):
    """Makes sure that results can be written to ``out``, without creating anything.

    Raises:
        OutputError: ``out`` is a file, is not writable, or holds results that nobody asked to resume.
    """
    if os.path.exists(out) and not os.path.isdir(out):
        raise OutputError(f"{out}: not a folder; give another --out")
    if resume is None and os.path.isdir(out) and os.listdir(out):
        raise OutputError(f"{out}: already used; continue that run with --resume auto, or give another --out")
    existing = os.path.abspath(out)
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise OutputError(f"{out}: not writable ({error.strerror}); give another --out") from error


def prepare(out, *, resumed):
    """Creates ``out``, or clears it of what a killed run was just writing.

    Args:
        out: results folder.
        resumed: whether the run goes on from a snapshot; if not, a killed run's log and best snapshot are none of it.
    """
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(out):
        path = os.path.join(out, name)
        if name.startswith(files.TEMPORARY) or (not resumed and name in (LOG, snapshots.BEST)):
            os.remove(path)
        elif not resumed and name == tensorboard.FOLDER:
            shutil.rmtree(path)


def snapshot_to_resume(out, resume):
    """Returns the path of the snapshot that ``--resume`` means, or ``None`` to start afresh."""
    return snapshots.newest(out) if resume == "auto" else resume
