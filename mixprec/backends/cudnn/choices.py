"""Measured choices on disk: engines are measured once for a GPU and the versions of its software.

A plan looks up its choice when it is built, and :mod:`~mixprec.backends.cudnn.search` adds measured choices.
"""

import fcntl
import json
import logging
import os
import re
import threading

from mixprec.base import files

_FORMAT = 2
_log = logging.getLogger("mixprec")


class Choices:
    """Chosen names by the text of their purpose, and names that must never be tried, shared by processes.

    The file is JSON: ``{"format": 2, "environment": {...}, "choices": {text: {"name": ..., "milliseconds": ...,
    "seconds": ...}}, "never": {text: {name: why}}}``. If it is damaged or of another environment, it counts as empty
    and is replaced; if none can be written, choices last as long as the process. Each of these is said once, by a
    warning.

    Args:
        folder: folder of the file, or ``None`` for no file.
        environment: dict of str and int on which measurements depend; the name of the file is made from it.
    """

    def __init__(self, folder, environment):
        self._environment = environment
        self._lock = threading.Lock()
        self._warned = set()
        self.path = None
        if folder is not None:
            name = "-".join(f"{key} {value}" for key, value in environment.items())
            self.path = os.path.join(folder, re.sub(r"[^A-Za-z0-9.-]+", "_", name) + ".json")
        self._choices, self._never = self._read()

    def get(self, text, seconds=0):
        """Returns the name chosen by a search with at least this many seconds, or ``None``."""
        choice = self._choices.get(text)
        if choice is None or choice["seconds"] < seconds or choice["name"] in self.never(text):
            return None
        return choice["name"]

    def put(self, text, name, milliseconds, seconds=0):
        """Remembers a choice.

        Args:
            text: purpose of the choice.
            name: chosen name.
            milliseconds: its time.
            seconds: limit of the search.
        """
        choice = {"name": name, "milliseconds": round(milliseconds, 6), "seconds": seconds}
        self._add({text: choice}, {})

    def never(self, text):
        """Returns the names that must not be tried again: a dict from names to the reason."""
        return self._never.get(text, {})

    def ban(self, text, name, why):
        """Remembers that a name must not be tried again."""
        self._add({}, {text: {name: why}})

    def _add(self, choices, never):
        """Adds a record, and merges records that other processes have written meanwhile."""
        with self._lock:
            self._merge(choices, never)
            if self.path is None:
                return
            try:
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
                with open(f"{self.path}.lock", "w") as lock:
                    # Until it is closed no other process writes, so that no record is lost.
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    self._merge(*self._read())
                    self._merge(choices, never)
                    content = {"format": _FORMAT, "environment": self._environment}
                    content |= {"choices": self._choices, "never": self._never}
                    files.write_text(self.path, json.dumps(content, indent=1, sort_keys=True) + "\n")
            except OSError as error:
                self._warn(f"choices for cuDNN cannot be kept in {self.path}: {error}")

    def _merge(self, choices, never):
        # Both are replaced, not changed: readers need no lock.
        self._choices = {**self._choices, **choices}
        self._never = {**self._never, **{text: {**self.never(text), **names} for text, names in never.items()}}

    def _read(self):
        if self.path is None:
            return {}, {}
        try:
            with open(self.path, encoding="utf-8") as file:
                content = json.load(file)
        except FileNotFoundError:
            return {}, {}
        except (OSError, ValueError) as error:
            self._warn(f"choices for cuDNN in {self.path} cannot be read and are made again: {error}")
            return {}, {}
        if not _well_formed(content):
            self._warn(f"choices for cuDNN in {self.path} are damaged and are made again")
            return {}, {}
        if content["environment"] != self._environment:
            self._warn(f"choices for cuDNN in {self.path} are of another environment and are made again")
            return {}, {}
        return content["choices"], content["never"]

    def _warn(self, message):
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("%s", message)


def _well_formed(content):
    return (
        isinstance(content, dict)
        and content.keys() == {"format", "environment", "choices", "never"}
        and content["format"] == _FORMAT
        and isinstance(content["choices"], dict)
        and all(map(_is_choice, content["choices"].values()))
        and isinstance(content["never"], dict)
        and all(isinstance(names, dict) for names in content["never"].values())
    )


def _is_choice(choice):
    return isinstance(choice, dict) and type(choice.get("name")) is str and type(choice.get("seconds")) in (int, float)
