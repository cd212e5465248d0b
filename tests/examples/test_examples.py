"""Each example runs as its README says, in plain Chainer and with mixprec, which changes at most eight of its lines."""

import dataclasses
import difflib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import mpi

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
PROGRAMS = ("plain.py", "mixed.py")
MOST_CHANGED = 8


@dataclasses.dataclass(frozen=True)
class Example:
    """What a user sees who runs an example.

    Attributes:
        loss: entry of the log that falls, from the first row that has it to the last.
        quality: entry of the log that says how good the model is.
        quick: bound of its last value in a run with ``--quick``.
        whole: the same in a run of the whole example.
        apart: how far the last values of the two whole programs may be from each other.
        rises: whether a higher quality is better.
        files: patterns of the names of files in the folder of results, beside ``log``.
        processes: how many ``mpiexec`` starts; 1 for none.
        falls: whether the loss does; that of Q-learning has targets that move.
        marks: of the quick run.
    """

    loss: str
    quality: str
    quick: float
    whole: float
    apart: float
    rises: bool = True
    files: tuple = ("model.npz",)
    processes: int = 1
    falls: bool = True
    marks: tuple = (pytest.mark.slow,)


EXAMPLES = {
    "cifar": Example(
        *("main/loss", "validation/main/accuracy"), *(0.5, 0.95, 0.02), files=("model.npz", "snapshot_epoch-*")
    ),
    "dcgan": Example(
        *("distance", "distance"),
        *(0.13, 0.08, 0.03),
        rises=False,
        files=("gen.npz", "dis.npz", "preview/epoch-2.png", "snapshot_epoch-*"),
    ),
    "ptb": Example(
        *("main/loss", "val_perplexity"), *(35, 6, 0.4), rises=False, files=("model.npz", "snapshot_epoch-*")
    ),
    "mnist": Example(
        *("main/loss", "validation/main/accuracy"),
        *(0.88, 0.97, 0.02),
        files=("model.npz", "snapshot_epoch-*"),
        marks=(),
    ),
    "seq2seq": Example(*("main/loss", "validation/main/exact"), *(0.5, 0.97, 0.02)),
    "unet": Example(*("main/loss", "validation/main/miou"), *(0.3, 0.8, 0.12)),
    "dqn": Example(*("loss", "return"), *(60, 100, 80), falls=False),
    "chainermn": Example(*("main/loss", "validation/main/accuracy"), *(0.88, 0.97, 0.02), processes=2),
}


def _code(name, program):
    return [line for line in (FOLDER / name / program).read_text().splitlines() if line.strip()]


def changed_lines(before, after):
    """Number of lines that are added, removed or changed; one that is changed counts once. Blank lines do not count."""
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in blocks if tag != "equal")


def diff(name):
    """The unified diff of an example without context, as the README of the examples prints one."""
    files = [f"examples/{name}/{program}" for program in PROGRAMS]
    plain, mixed = ((ROOT / file).read_text().splitlines() for file in files)
    return "\n".join(difflib.unified_diff(plain, mixed, *files, n=0, lineterm=""))


def run(name, program, out, *args):
    """Runs a program in the folder ``out``, as a user does; returns its log, and what it printed."""
    command = [sys.executable, FOLDER / name / program, "--out", "out", *args]
    strict = {"PYTHONWARNINGS": "error"}
    if EXAMPLES[name].processes > 1:
        done = mpi.launch(EXAMPLES[name].processes, command, out, **strict)
    else:
        done = subprocess.run(command, cwd=out, env=os.environ | strict, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{done.stderr}"
    return json.loads((out / "out" / "log").read_text()), done.stdout


def last_quality(name, log):
    """The last quality in a log that is complete, finite and falls."""
    example = EXAMPLES[name]
    losses = [row[example.loss] for row in log if example.loss in row]
    assert len(losses) > 1
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0] or not example.falls
    return [row[example.quality] for row in log if example.quality in row][-1]


def _runs(name, tmp_path, bound, *args):
    """Runs both programs; returns their last qualities, each on the right side of the bound."""
    example, found = EXAMPLES[name], []
    for program in PROGRAMS:
        out = tmp_path / program
        out.mkdir()
        log, printed = run(name, program, out, *args)
        assert str(log[-1].get("epoch", "")) in printed
        found.append(last_quality(name, log))
        assert found[-1] >= bound if example.rises else found[-1] <= bound, f"{program}: {found[-1]}"
        missing = [file for file in example.files if not list(out.glob(f"out/{file}"))]
        assert not missing, f"{program}: {os.listdir(out / 'out')}"
    return found


def test_all_examples_are_here():
    assert {path.parent.name for path in FOLDER.glob("*/*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_few_lines_are_changed(name):
    """Run with ``-s`` to see them."""
    print(f"\n{diff(name)}")
    assert 1 <= changed_lines(_code(name, "plain.py"), _code(name, "mixed.py")) <= MOST_CHANGED


def test_the_readme_shows_a_diff_as_it_is_and_names_all_examples():
    text = (FOLDER / "README.md").read_text()
    assert re.findall(r"```diff\n(.*?)\n```", text, re.DOTALL) == [diff("mnist")]
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(EXAMPLES)


@pytest.mark.parametrize("name", [pytest.param(name, marks=example.marks) for name, example in EXAMPLES.items()])
def test_a_quick_run(name, tmp_path):
    _runs(name, tmp_path, EXAMPLES[name].quick, "--quick")


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_whole_run_is_as_good_as_plain_chainer(name, tmp_path):
    plain, mixed = _runs(name, tmp_path, EXAMPLES[name].whole)
    assert abs(mixed - plain) <= EXAMPLES[name].apart
