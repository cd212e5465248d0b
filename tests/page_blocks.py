"""The fenced blocks of pages, and how each is tried: see docs/tests.md."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

from mixprec.app.config import load

_FENCE = re.compile(r"^( *)(`{3,})(.*)$")
_COMMENT = re.compile(r"<!-- (not run|save as): (.+?) -->")
_BINARIES = str(pathlib.Path(sys.executable).parent)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: path of the page, as ``"docs/convert.md"``.
        line: number of its first fence.
        language: as ``"python"``, or an empty string.
        text: what is in it, without the page's indentation.
        not_run: the reason why it is not tried, or ``None``.
        save_as: name of the file that the reader writes it to, or ``None``.
    """

    page: str
    line: int
    language: str
    text: str
    not_run: str | None
    save_as: str | None

    def run(self, folder):
        """Tries the block as a reader would.

        Args:
            folder: path of the page's folder, in which the blocks before it have run.

        Raises:
            AssertionError: It failed; the message has its page and line, and the error.
        """
        if self.save_as:
            folder.joinpath(self.save_as).write_text(self.text)
        if self.not_run is None and self.language in _RUNNERS:
            _RUNNERS[self.language](self, folder)


def blocks(page, text):
    """Returns the list of blocks of a page."""
    found, lines, fence = [], text.splitlines(), None
    for i, line in enumerate(lines):
        match = _FENCE.match(line)
        if match and fence is None:
            fence, start = match, i
        elif match and match[2] == fence[2] and not match[3].strip():
            inner = "".join(f"{each.removeprefix(fence[1])}\n" for each in lines[start + 1 : i])
            notes = dict(_COMMENT.findall(lines[start - 1])) if start else {}
            found.append(Block(page, start + 1, fence[3].strip(), inner, notes.get("not run"), notes.get("save as")))
            fence = None
    return found


def _process(block, folder, command):
    environment = dict(os.environ, PATH=f"{_BINARIES}{os.pathsep}{os.environ['PATH']}", MPLBACKEND="agg")
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300
    )
    assert done.returncode == 0, f"{block.page}:{block.line}: {done.stdout[-2000:]}{done.stderr[-4000:]}"


def _python(block, folder):
    source = [block.save_as] if block.save_as else ["-c", block.text]
    _process(block, folder, [sys.executable, "-W", "error", *source])


def _bash(block, folder):
    _process(block, folder, ["bash", "-euo", "pipefail", "-c", block.text])


def _yaml(block, folder):
    """A config by itself, or keys that are added to those of the digits."""
    complete = re.search(r"^base:", block.text, re.MULTILINE) or ("arch:" in block.text and "epochs:" in block.text)
    file = folder / (block.save_as or f"line-{block.line}.yaml")
    file.write_text(block.text if complete else f"base: digits.yaml\n{block.text}")
    load(file)
    if block.save_as:
        file.write_text(block.text)


_RUNNERS = {"python": _python, "bash": _bash, "yaml": _yaml}
SAYS_NOTHING = {"text"}
LANGUAGES = {*_RUNNERS, *SAYS_NOTHING}
