"""Runs of the training script side by side, in processes that can be killed and started again."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from tqdm import tqdm

from mixprec.base import files
from mixprec.training.log_report import LOG

_ACCURACY = "validation/main/accuracy"
_FINISHED = "model.npz"  # what the script writes last
_ROOT = pathlib.Path(__file__).resolve().parents[2]


class StudyError(Exception):
    """The study cannot go on; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        arm: name of its arm.
        seed: its seed.
        accuracies: on the validation images after each epoch, in percent.
        skipped: number of steps that were skipped.
        loss_scale: the last one.
        rate: images a second of training, the median of its epochs; ``None`` if they were not logged.
    """

    arm: str
    seed: int
    accuracies: tuple[float, ...]
    skipped: int
    loss_scale: float
    rate: float | None = None

    @property
    def accuracy(self):
        """After the last epoch, in percent."""
        return self.accuracies[-1]


def command(study, arm, seed, out):
    """Returns the command line of a run, which goes on where an earlier one was killed.

    Args:
        study: :class:`~benchmarks.study.study_arms.Study`.
        arm: one of its arms.
        seed: of weights, order of the images and crops: with the same one all arms get the same.
        out: results folder of the run.
    """
    program = [_ROOT / "scripts" / "train_imagenet.py"] if arm.masters else ["-m", "benchmarks.study.without_masters"]
    # One core a run, so that as many run side by side as there are cores.
    settings = ("data.threads=1", *study.settings, *arm.settings, f"training.seed={seed}")
    overrides = [word for setting in settings for word in ("--set", setting)]
    words = [sys.executable, *program, "--config", study.config, *overrides, "--out", out, "--resume", "auto"]
    return [str(word) for word in words]


def run_all(study, todo, *, out, jobs, epochs):
    """Trains what has not been trained yet.

    Args:
        study: :class:`~benchmarks.study.study_arms.Study`.
        todo: list of pairs ``(arm, seed)``, in the order in which they are started.
        out: folder; each run has its own in it, ``<arm>-<seed>``.
        jobs: number of runs at the same time.
        epochs: of a run, for the progress bar.

    Returns:
        list of :class:`Run`, in the order of ``todo``.

    Raises:
        StudyError: ``out`` cannot be made, a run failed, another study is in ``out``, or is at work there.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(f"--out {out}: {error.strerror}") from error
    with _lock(out) as lock:
        _check_same_study(out, study)
        waiting = [(arm, seed) for arm, seed in todo if not _finished(_folder(out, arm, seed))]
        working = {}
        try:
            with tqdm(total=len(todo) * epochs, unit="epoch", disable=None, dynamic_ncols=True) as bar:
                while waiting or working:
                    while waiting and len(working) < jobs:
                        arm, seed = waiting.pop(0)
                        folder = _folder(out, arm, seed)
                        working[folder] = _start(command(study, arm, seed, folder), folder, lock)
                    time.sleep(0.5)
                    for folder, process in list(working.items()):
                        if process.poll() is not None:
                            del working[folder]
                            _check_success(process, folder)
                    bar.set_description(", ".join(folder.name for folder in working), refresh=False)
                    bar.update(sum(_epochs(_folder(out, *each)) for each in todo) - bar.n)
        finally:
            for process in working.values():
                process.terminate()
            for process in working.values():
                process.wait()
    return [_read(_folder(out, arm, seed), arm, seed) for arm, seed in todo]


@contextlib.contextmanager
def _lock(out):
    """Holds the folder; runs that outlive a killed study hold it, too, until they are done."""
    with open(out / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StudyError(f"{out}: a study, or a run of one that was killed, is at work there") from error
        yield file


def _check_same_study(out, study):
    """Runs of different configs must not get into one table, nor an arm's with other settings than it has now."""
    try:
        with files.open_regular(study.config) as file:
            text = file.read()
    except OSError as error:
        raise StudyError(f"{study.config}: {error.strerror}") from error
    own = {"config (SHA-256)": hashlib.sha256(text).hexdigest(), "settings": list(study.settings)}
    arms = {arm.name: list(arm.settings) for arm in study.arms}
    path = out / "study.json"
    before = json.loads(path.read_text()) if path.exists() else {**own, "arms": {}}
    known = before.pop("arms")
    if before != own or any(known.get(name, settings) != settings for name, settings in arms.items()):
        raise StudyError(f"{out}: holds runs of another config, or with other settings; give another --out")
    files.write_text(path, json.dumps({**own, "arms": {**known, **arms}}, indent=1) + "\n")


def _folder(out, arm, seed):
    return out / f"{arm.name}-{seed}"


def _finished(folder):
    return (folder / _FINISHED).exists()


def _start(words, folder, lock):
    # The checkout has the module of runs without masters.
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}
    with open(folder.with_suffix(".txt"), "a") as output:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        return subprocess.Popen(words, env=environment, pass_fds=(lock.fileno(),), **streams)


def _check_success(process, folder):
    if process.returncode == 0 and _finished(folder):
        return
    output = folder.with_suffix(".txt")
    lines = output.read_text().strip().splitlines() or ["no output"]
    raise StudyError(f"{folder.name} ended with code {process.returncode}: {lines[-1]} (all in {output})")


def _log(folder):
    try:
        return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    except FileNotFoundError:
        return []


def _epochs(folder):
    return sum(_ACCURACY in entry for entry in _log(folder))


def _read(folder, arm, seed):
    entries = [entry for entry in _log(folder) if _ACCURACY in entry]
    last, rates = entries[-1], [entry["images/s"] for entry in entries if "images/s" in entry]
    accuracies = tuple(round(100 * entry[_ACCURACY], 4) for entry in entries)
    rate = round(statistics.median(rates), 1) if rates else None
    return Run(arm.name, seed, accuracies, int(last["skipped"]), last["loss_scale"], rate)
