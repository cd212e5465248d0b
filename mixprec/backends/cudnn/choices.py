"""What was found to be the fastest, on disk: measured once for a GPU and the versions of its software."""

import fcntl
import json
import logging
import os
import re
import threading

from mixprec import files

_FORMAT = 1
_log = logging.getLogger("mixprec")


class Choices:
    """Names by the text of what they were chosen for, shared with other processes.

    The file is JSON: ``{"format": 1, "environment": {...}, "choices": {text: {"name": ..., "milliseconds": ...}}}``.
    If it is damaged or of another environment, it counts as empty and is replaced; if none can be written, choices last
    as long as the process. Each of these is said once, by a warning.

    Args:
        folder: where the file is, or ``None`` for no file.
        environment: what measurements depend on: a dict of str and int, of which the name of the file is made.
    """

    def __init__(self, folder, environment):
        self._environment = environment
        self._lock = threading.Lock()
        self._warned = set()
        self.path = None
        if folder is not None:
            name = "-".join(f"{key} {value}" for key, value in environment.items())
            self.path = os.path.join(folder, re.sub(r"[^A-Za-z0-9.-]+", "_", name) + ".json")
        self._choices = self._read()

    def get(self, text):
        """Returns the name that was chosen, or ``None``."""
        choice = self._choices.get(text)
        return None if choice is None else choice["name"]

    def put(self, text, name, milliseconds):
        """Remembers a choice, together with those that other processes have made meanwhile."""
        choice = {text: {"name": name, "milliseconds": round(milliseconds, 6)}}
        with self._lock:
            self._choices = {**self._choices, **choice}
            if self.path is None:
                return
            try:
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
                with open(f"{self.path}.lock", "w") as lock:
                    # Until it is closed no other process writes: none loses what another has just added.
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    self._choices = {**self._choices, **self._read(), **choice}
                    content = {"format": _FORMAT, "environment": self._environment, "choices": self._choices}
                    files.write_text(self.path, json.dumps(content, indent=1, sort_keys=True) + "\n")
            except OSError as error:
                self._warn(f"choices for cuDNN cannot be kept in {self.path}: {error}")

    def _read(self):
        if self.path is None:
            return {}
        try:
            with open(self.path, encoding="utf-8") as file:
                content = json.load(file)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self._warn(f"choices for cuDNN in {self.path} cannot be read and are made anew: {error}")
            return {}
        if not _well_formed(content):
            self._warn(f"choices for cuDNN in {self.path} are damaged and are made anew")
            return {}
        if content["environment"] != self._environment:
            self._warn(f"choices for cuDNN in {self.path} are of another environment and are made anew")
            return {}
        return content["choices"]

    def _warn(self, message):
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("%s", message)


def _well_formed(content):
    return (
        isinstance(content, dict)
        and content.keys() == {"format", "environment", "choices"}
        and content["format"] == _FORMAT
        and isinstance(content["choices"], dict)
        and all(isinstance(c, dict) and isinstance(c.get("name"), str) for c in content["choices"].values())
    )
