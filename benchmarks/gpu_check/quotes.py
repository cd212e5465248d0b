"""The lines that the summary quotes of each stage, from the files that it has made.

Each function takes the stage's folder, a path, and the lines that it has printed. It raises ``OSError``, ``ValueError``
or ``LookupError`` if the files are not as they should be.
"""

import collections
import contextlib
import json
import re
import statistics
from xml.etree import ElementTree

from benchmarks.bars import record
from benchmarks.gpu_check import properties as properties_file

JUNIT = "junit.xml"
BARS, PROFILE = "bars.json", "profile.json"
_BARS = {"plain": ("plain",), "mixprec": ("config", "precision", "ablation"), "peer": ("peer",)}  # title -> groups
LOG = "log.jsonl"  # of training, as mixprec.training.log_report has it, which imports Chainer
CAPTURED = "mixprec-256"  # folder of the same step, captured
# Titles, and kinds of benchmarks.profile.kinds, which imports Chainer
_KINDS = {
    "fprop": ("conv fprop",),
    "wgrad": ("conv wgrad",),
    "dgrad": ("conv dgrad",),
    "BN forward": ("BN forward",),
    "BN backward": ("BN backward",),
    "sums of gradients": ("gradient sum",),
    "conversions of layout and dtype": ("layout and dtype",),
    "pools": ("pooling",),
    "update": ("update",),
    "loss and the rest": ("loss", "linear", "elementwise", "other"),
}
_MOST = 10  # failures
_WIDTH = 240  # characters of a line: with it the reason of a row says how far it had come


def cut(line):
    """Returns a line of a length that suits a summary."""
    line = line.rstrip()
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def last_line(folder, lines):
    """The last line."""
    return [cut(line) for line in lines[-1:]]


def environment(folder, lines):
    """Memory, disk and the lines about the GPU."""
    wanted = re.compile(r"(cpu |cores|memory|free disk|CuPy |CUDA driver|GPU \d|cuDNN |DALI |device 'auto')")
    return [cut(line) for line in lines if wanted.match(line)]


def properties(folder, lines):
    """The GPU, and what to do with the file."""
    path = folder / properties_file.NAME
    found = json.loads(path.read_text())
    number = found["deviceVer"] // 10
    return [
        f"{found['deviceName']}, compute capability {number // 10}.{number % 10}",
        f"plans for it: {path.name} as dev_NAME.json in tests/stand_ins/deviceless, and NAME: {number} in"
        " tests/stand_ins/deviceless_cudnn.py",
    ]


def tests(folder, lines):
    """How many tests passed, failed and were skipped, and the first failures; of a killed run what its log says."""
    path = folder / JUNIT
    outcomes, failures = _junit(path) if path.exists() else _verbose(lines)
    if not outcomes:
        raise ValueError("no test has run")
    if not path.exists():
        failures.append("pytest did not come to its end; these are counts of its log")
    return [", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()), *failures]


def _junit(path):
    try:
        cases = ElementTree.parse(path).getroot().iter("testcase")
    except ElementTree.ParseError as error:
        raise ValueError(f"{path.name}: {error}") from error
    outcomes, failures = collections.Counter(), []
    for case in cases:
        wrong = next((part for part in case if part.tag in ("failure", "error")), None)
        outcomes["failed" if wrong is not None else "skipped" if case.find("skipped") is not None else "passed"] += 1
        if wrong is not None:
            message = (wrong.get("message") or "").partition("\n")[0]
            failures.append(cut(f"{case.get('classname')}::{case.get('name')}: {message}"))
    return outcomes, _first(failures)


def _verbose(lines):
    """The same from the lines that pytest prints with -v while it runs in several processes."""
    outcomes, failures = collections.Counter(), []
    words = {"PASSED": "passed", "SKIPPED": "skipped", "FAILED": "failed", "ERROR": "failed", "XFAIL": "skipped"}
    for line in lines:
        if re.match(r"=+ (FAILURES|ERRORS|warnings summary|short test summary info)", line):
            break
        match = re.match(r"\[gw\d+\] \[ *\d+%\] (PASSED|SKIPPED|FAILED|ERROR|XFAIL) (\S+\.py::.+?) *$", line)
        if match is not None:
            outcomes[words[match[1]]] += 1
            if words[match[1]] == "failed":
                failures.append(match[2])
    return outcomes, _first(failures)


def bars(folder, lines):
    """The device; for each batch size the quickest of plain Chainer, of mixprec and of the peer; what is missing."""
    found = record.read(folder / BARS)
    measured = [row for row in found["rows"] if row["median"] is not None]
    missing = [row for row in found["rows"] if row["median"] is None]
    quoted = [cut(found["device"])]
    for batch in sorted({row["batch"] for row in measured}, reverse=True):
        for title, groups in _BARS.items():
            rows = [row for row in measured if row["batch"] == batch and row["group"] in groups]
            if rows:
                quoted.append(_bar(title, max(rows, key=lambda row: row["median"])))
    if missing:
        first = f"{missing[0]['name']}, batch {missing[0]['batch']}: {missing[0]['reason']}"
        quoted.append(cut(f"{len(missing)} of {len(found['rows'])} rows not measured, first {first}"))
    if not measured:
        raise ValueError("; ".join(quoted))
    return quoted if found["complete"] else [*quoted, "the run did not come to its end"]


def _bar(title, row):
    ratio = "" if row["ratio"] is None else f", {row['ratio']:.2f} times the base"
    return f"batch {row['batch']}, best of {title}: {row['name']}, {row['median']:.0f} images/s{ratio}"


def profile(folder, lines):
    """Milliseconds of each kind of kernel in a step, beside what it needs at least, and of what is in none."""
    found = json.loads((folder / PROFILE).read_text())
    kinds = {each["kind"]: each for each in found["kinds"]}
    quoted = [f"an eager step of {found['step'] / 1e3:.2f} ms"]
    for title, names in _KINDS.items():
        calls, time, floor = (
            sum(kinds[name][key] for name in names if name in kinds) for key in ("calls", "microseconds", "floor")
        )
        if calls:
            quoted.append(f"{title}: {calls} calls, {time / 1e3:.3f} ms, at least {floor / 1e3:.3f}")
    quoted.append(f"in no call (copies, other kernels, gaps): {found['rest'] / 1e3:.3f} ms")
    with contextlib.suppress(OSError, ValueError):
        (row,) = record.read(folder.parent / CAPTURED / BARS)["rows"]
        gap = row["milliseconds"] - sum(each["microseconds"] for each in kinds.values()) / 1e3
        quoted.append(f"a captured step of {row['milliseconds']:.2f} ms, {gap:+.2f} beside all calls: copies, gaps")
    return [cut(line) for line in quoted]


def training(folder, lines):
    """Images/s from the log of the run, and the snapshot that SIGTERM has left."""
    entries = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    rates = [entry["images/s"] for entry in entries]
    usual = statistics.median(rates[1:] or rates)
    counted = (
        f"median of epochs 2 to {len(rates)}" if len(rates) > 1 else "of the first epoch, engines and graph chosen"
    )
    quoted = [f"{usual:.0f} images/s in training, {counted}; evaluation, plots and snapshots not counted"]
    snapshots = sorted(path.name for path in folder.glob("snapshot_iter_*.npz"))
    if not snapshots:
        raise ValueError("SIGTERM has left no snapshot")
    return [*quoted, *last_line(folder, lines), f"snapshot: {', '.join(snapshots)}"]


def _first(failures):
    more = len(failures) - _MOST
    return [*failures[:_MOST], f"and {more} more"] if more > 0 else failures
