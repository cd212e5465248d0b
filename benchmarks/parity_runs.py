"""Runs of the training script side by side, in processes that can be killed and started again."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import subprocess
import time

from tqdm import tqdm

from benchmarks.parity_arms import command
from mixprec import files
from mixprec.training.log_report import LOG

_ACCURACY = "validation/main/accuracy"
_FINISHED = "model.npz"  # what the script writes last


class ParityError(Exception):
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
        seconds: time of its last process, from the start.
    """

    arm: str
    seed: int
    accuracies: tuple[float, ...]
    skipped: int
    loss_scale: float
    seconds: float

    @property
    def accuracy(self):
        """After the last epoch, in percent."""
        return self.accuracies[-1]


def run_all(todo, *, config, settings, out, jobs, epochs):
    """Trains what has not been trained yet.

    Args:
        todo: list of pairs ``(arm, seed)``, in the order in which they are started.
        config: path of the YAML file.
        settings: overrides for all arms.
        out: folder; each run has its own in it, ``<arm>-<seed>``.
        jobs: number of runs at the same time.
        epochs: of a run, for the progress bar.

    Returns:
        list of :class:`Run`, in the order of ``todo``.

    Raises:
        ParityError: ``out`` cannot be made, a run failed, another study is in ``out``, or is at work there.
    """
    out = pathlib.Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ParityError(f"--out {out}: {error.strerror}") from error
    with _lock(out) as lock:
        _check_same_study(out, config, settings, {arm.name: list(arm.settings) for arm, _ in todo})
        waiting = [(arm, seed) for arm, seed in todo if not _finished(_folder(out, arm, seed))]
        working = {}
        try:
            with tqdm(total=len(todo) * epochs, unit="epoch", disable=None, dynamic_ncols=True) as bar:
                while waiting or working:
                    while waiting and len(working) < jobs:
                        arm, seed = waiting.pop(0)
                        folder = _folder(out, arm, seed)
                        working[folder] = _start(command(arm, seed, config, settings, folder), folder, lock)
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
            raise ParityError(f"{out}: a study, or a run of one that was killed, is at work there") from error
        yield file


def _check_same_study(out, config, settings, arms):
    """Runs of different configs must not get into one table, nor an arm's with other settings than it has now."""
    try:
        with files.open_regular(config) as file:
            text = file.read()
    except OSError as error:
        raise ParityError(f"{config}: {error.strerror}") from error
    study = {"config (SHA-256)": hashlib.sha256(text).hexdigest(), "settings": list(settings)}
    path = out / "study.json"
    before = json.loads(path.read_text()) if path.exists() else study
    known = before.pop("arms", {})
    if before != study or any(known.get(name, own) != own for name, own in arms.items()):
        raise ParityError(f"{out}: holds runs of another config, or with other settings; give another --out")
    files.write_text(path, json.dumps({**study, "arms": {**known, **arms}}, indent=1) + "\n")


def _folder(out, arm, seed):
    return out / f"{arm.name}-{seed}"


def _finished(folder):
    return (folder / _FINISHED).exists()


def _start(words, folder, lock):
    with open(folder.with_suffix(".txt"), "a") as output:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=(lock.fileno(),),
        )


def _check_success(process, folder):
    if process.returncode == 0 and _finished(folder):
        return
    output = folder.with_suffix(".txt")
    lines = output.read_text().strip().splitlines() or ["no output"]
    raise ParityError(f"{folder.name} ended with code {process.returncode}: {lines[-1]} (all in {output})")


def _log(folder):
    try:
        return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    except FileNotFoundError:
        return []


def _epochs(folder):
    return sum(_ACCURACY in entry for entry in _log(folder))


def _read(folder, arm, seed):
    entries = [entry for entry in _log(folder) if _ACCURACY in entry]
    last = entries[-1]
    return Run(
        arm=arm.name,
        seed=seed,
        accuracies=tuple(round(100 * entry[_ACCURACY], 4) for entry in entries),
        skipped=int(last["skipped"]),
        loss_scale=last["loss_scale"],
        seconds=round(last["elapsed_time"], 1),
    )
