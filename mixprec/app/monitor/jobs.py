"""Training jobs that the pages start and stop, if the server allows it."""

import contextlib
import datetime
import os
import platform
import re
import signal
import subprocess
import sys

from mixprec.app.config.config_error import ConfigError
from mixprec.app.config.yaml_source import read_file
from mixprec.base import files
from mixprec.base.messages import OneLineError, one_line, reworded
from mixprec.base.process_limits import is_alive

_FOLDER = ".jobs"  # below the root: the output of jobs, and the configs of cloned runs
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._-]{0,99}){0,3}")
_LARGEST_CONFIG = 1 << 18  # bytes, as for the training command
_SHOWN = 4000  # bytes of the end of a job's output


class JobError(OneLineError):
    """A job cannot be started or stopped; the message is one line."""


class Jobs:
    """The jobs of this server. They continue when it ends.

    Args:
        root: folder of results.
    """

    def __init__(self, root):
        self._root = os.path.realpath(root)
        self._jobs = {}  # name of the run -> process, path of its output

    def start(self, config, name, overrides):
        """Starts a run, as ``mixprec train`` does.

        Args:
            config: path of a config that was listed.
            name: name of the run, below the root.
            overrides: list of ``"section.key=value"``.

        Raises:
            JobError: the name is invalid or in use; or the config is a link, or has a base.
        """
        if not _NAME.fullmatch(name):
            raise JobError(
                f"{name!r}: not a name of a run; allowed: letters, digits, '.', '_', '-', and '/' between them"
            )
        out = os.path.join(self._root, *name.split("/"))
        if os.path.lexists(out) or not os.path.realpath(out).startswith(os.path.join(self._root, "")):
            raise JobError(f"{name}: the folder exists already; give another name")
        called = f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{name.replace('/', '-')}"
        printed = os.path.join(self._root, _FOLDER, f"{called}.txt")
        try:
            if config.startswith(os.path.join(self._root, "")):
                config = self._copied(config, f"{called}.yaml")
            command = [sys.executable, "-m", "mixprec", "train", "--config", config, "--out", out]
            for override in filter(None, map(str.strip, overrides)):
                command += ["--set", override]
            with self._made(f"{called}.txt") as file:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
                )
        except OSError as error:
            raise JobError(f"{error.filename or printed}: {error.strerror}") from error
        self._jobs[name] = process, printed

    def _copied(self, config, name):
        """Copies the config of a run to the folder of the jobs, as a training process would follow links to it."""
        with files.open_below(self._root, config) as file:
            text = file.read(_LARGEST_CONFIG + 1)  # a larger one is an error of the training command
        with self._made(name) as file:
            file.write(text)
        path = os.path.join(self._root, _FOLDER, name)
        with contextlib.suppress(ConfigError):  # the training command reports it, too
            if any(entry.key == "base" for entry in read_file(path)):
                raise JobError(f"{config}: it has a 'base'; the config of a run has all keys, and no base")
        return path

    def _made(self, name):
        """Returns a new file in the folder of the jobs, opened for writing bytes."""
        folder = os.path.join(self._root, _FOLDER)
        os.makedirs(folder, exist_ok=True)
        with files.folder_below(self._root, folder) as handle:
            return open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=handle), "wb")

    def stop(self, run):
        """Sends SIGTERM to a run on this machine: it finishes its step, writes a snapshot and ends.

        Args:
            run: :class:`mixprec.app.monitor.run_folder.Run`.

        Raises:
            JobError: its process is not here, or not ours.
        """
        status = run.status
        if status.get("host") != platform.node() or not is_alive(status) or not _holds(status["pid"], run.folder):
            raise JobError(f"{run.name}: none of its processes runs on this machine")
        with reworded(lambda reason: JobError(f"{run.name}: {reason}")):
            os.kill(int(status["pid"]), signal.SIGTERM)

    def rows(self):
        """Returns the jobs, the newest first: tuples of name, state, and the end of what was printed."""
        found = []
        for name, (process, printed) in reversed(self._jobs.items()):
            code = process.poll()
            try:
                with files.open_below(self._root, printed) as file:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - _SHOWN))
                    text = file.read(_SHOWN).decode("utf-8", "replace")
            except OSError as error:
                text = one_line(error)
            found.append((name, "runs" if code is None else f"ended with code {code}", text))
        return found


def _holds(pid, folder):
    """Returns ``True`` if a process has the lock of a results folder open, as its run has; no file can claim that."""
    lock, handles = os.path.join(folder, "run.lock"), f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for handle in os.listdir(handles):
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(os.path.join(handles, handle)) == lock:
                    return True
    return False
