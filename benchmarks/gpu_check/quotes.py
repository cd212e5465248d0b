"""The lines that the summary quotes of each stage, from what it has printed and from the files that it has made.

Each function takes the stage's folder, a path, and the lines that it has printed. It raises ``OSError``, ``ValueError``
or ``LookupError`` if the files are not as they should be, or show that the stage has failed.
"""

import json
import re

from benchmarks.bars import record

BARS, PROFILE, TESTS, PARITY = "bars.json", "profile.json", "tests.json", "parity.json"
LOG = "log.jsonl"  # of training, as mixprec.training.log_report has it, which imports Chainer
MARGIN = 1.5  # percentage points
_MOST = 10  # failures
_EAGER = "runs eagerly"  # in the note of a row, see benchmarks.bars.row_worker, and in announcements
_LAUNCHES = re.compile(r"capture: (\d+) of ")


def everything(folder, lines):
    """All lines."""
    return lines


def environment(folder, lines):
    """Processors, memory, disk and the lines about the GPU."""
    wanted = re.compile(r"(cores|Mem:|/|CuPy |CUDA driver|GPU |cuDNN |NCCL|device 'auto')")
    return [line for line in lines if wanted.match(line)]


def bars(folder, lines):
    """The device and each row; a row that was to be captured and runs eagerly is a failure."""
    found = record.read(folder / BARS)
    quoted = [found["device"]]
    for row in found["rows"]:
        numbers = row["reason"]
        if row["median"] is not None:
            numbers = f"{row['median']:.0f} images/s ({row['minimum']:.0f} to {row['maximum']:.0f})"
            numbers += f", {row['milliseconds']:.2f} ms"
            numbers += "" if row["peak"] is None else f", peak {row['peak'] / 2**20:.0f} MiB"
            numbers += "" if row["launches"] is None else f", {row['launches']} launches, {row['syncs']} syncs"
            numbers += "" if row["ratio"] is None else f", {row['ratio']:.2f} times the base"
        note = f"; {row['note']}" if row["note"] else ""
        quoted.append(f"batch {row['batch']}, {row['name']}: {numbers}{note}")
    if not found["complete"]:
        quoted.append("the run did not come to its end")
    if all(row["median"] is None for row in found["rows"]) or any(_EAGER in row["note"] for row in found["rows"]):
        raise ValueError("; ".join(quoted))
    return quoted


def profile(folder, lines):
    """Milliseconds of each kind of kernel in a step, beside what it needs at least, and of what is in none."""
    found = json.loads((folder / PROFILE).read_text())
    quoted = [f"a step of {found['step'] / 1e3:.2f} ms without waiting for the host"]
    for each in found["kinds"]:
        time, floor = each["microseconds"] / 1e3, each["floor"] / 1e3
        quoted.append(f"{each['kind']}: {each['calls']} calls, {time:.3f} ms, at least {floor:.3f}")
    return [*quoted, f"in no call (copies, other kernels, gaps): {found['rest'] / 1e3:.3f} ms"]


def parity(folder, lines):
    """The accuracies of FP16 and FP32, and the mean of their differences, which may be up to :data:`MARGIN` points."""
    found = json.loads((folder / PARITY).read_text())
    paired = found["rows"][-1]
    quoted = [f"{row['arm']}: {row['mean']:.2f} % on average of {len(row['seeds'])} seeds" for row in found["rows"]]
    differences = ", ".join(f"{difference:+.2f}" for difference in paired["differences"])
    what = f"{paired['arm']}, against {paired['against']}"
    quoted.append(f"{what}: {paired['difference']:+.2f} points on average of {differences}")
    quoted.append(f"a check of +-{MARGIN} points, and no proof of parity")
    if not abs(paired["difference"]) <= MARGIN:
        raise ValueError("; ".join(quoted))
    return quoted


def tests(folder, lines):
    """How many tests passed, failed and were skipped, and the first failures."""
    if lines[-1:] == ["no such file of tests"]:
        return lines[-1:]
    found = json.loads((folder / TESTS).read_text())
    counts = ", ".join(f"{found[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
    counts += "" if found["complete"] else "; pytest did not come to its end"
    if not found["passed"]:
        raise ValueError(counts)
    more = len(found["failures"]) - _MOST
    return [counts, *found["failures"][:_MOST], *([f"and {more} more"] if more > 0 else [])]


def training(folder, lines):
    """The last lines of the log; a step that was to be captured and was never launched as a graph is a failure."""
    entries = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    captured = [line for line in lines if _LAUNCHES.match(line)]
    eager = [line for line in lines if _EAGER in line] + [line for line in captured if _LAUNCHES.match(line)[1] == "0"]
    if eager:
        raise ValueError(eager[0])
    line = "epoch {epoch}: loss {main/loss:.3f}, {images/s:.0f} images/s"
    quoted = [line.format_map(each) for each in entries]
    return [*quoted, *captured]
