"""The tests that need a GPU: those that have changed since the last record, the others, or some by name.

python -m benchmarks.gpu_check.gpu_tests FOLDER changed|others|TEST ...

A file of tests has changed if its digest is not that of the record, ``benchmarks/results/gpu-tests.json``: of itself,
and of what it tests, the module of its name (``tests/backends/cuda/test_pooling.py``: ``mixprec/backends/cuda/
pooling.py`` and ``mixprec/backends/kernels/pooling*``), or where there is no such module, the folder. Changes elsewhere
are left to the others. In FOLDER are ``tests.json``, the outcomes so far, and, if pytest comes to its end,
``passed.json``, the record with the files that have passed by now; it takes the place of the record.

It is also a plugin of pytest: a failure is printed when it happens, as a run that is killed has no summary.
"""

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import re
import sys

from mixprec.base import standard_streams

if __name__ == "__main__":
    standard_streams.guard()

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is imported: there are as many processes as cores

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORD = ROOT / "benchmarks" / "results" / "gpu-tests.json"
OUTCOMES, PASSED = "tests.json", "passed.json"
_FOLDER = "MIXPREC_GPU_TESTS"  # variable by which the plugin knows FOLDER
_MENTION = re.compile(r"\bgpu\b|sides")  # in each file with such tests


def digests(root=ROOT):
    """Returns a dict from the files with tests that may need a GPU to their digests, both as text."""
    found = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        if _MENTION.search(path.read_text("utf-8")):
            digest = hashlib.sha256()
            for each in (path, *_tested(root, path.relative_to(root / "tests"))):
                digest.update(each.read_bytes())
            found[path.relative_to(root).as_posix()] = digest.hexdigest()[:16]
    return found


def _tested(root, path):
    """Returns the list of the files that a file in the folder of tests is about."""
    base = root if path.parts[0] in ("benchmarks", "scripts") else root / "mixprec"
    name, folder = path.stem.removeprefix("test_"), base / path.parent
    if (folder / f"{name}.py").exists():
        return [folder / f"{name}.py", *sorted((root / "mixprec" / "backends" / "kernels").glob(f"{name}*"))]
    while not folder.exists():
        folder = folder.parent
    return sorted(each for each in folder.rglob("*") if each.suffix in (".py", ".cu", ".cuh"))


def main(folder, *names):
    """Runs pytest on named tests in one process, on files of tests in many; returns its exit status."""
    processes = 0
    if names in (("changed",), ("others",)):
        processes = max(1, min(14, len(os.sched_getaffinity(0)) - 2))
        known = json.loads(RECORD.read_text())
        names = [name for name, digest in digests().items() if (known.get(name) != digest) == (names[0] == "changed")]
    if not names:
        print("no such file of tests")
        return 0
    import pytest

    os.environ[_FOLDER] = folder
    # The packages of a lent machine are not pinned: their warnings are no errors.
    chosen = ["-m", "gpu", "-v", "-W", "default", "--tb=short", "--continue-on-collection-errors", "-p", __spec__.name]
    chosen += [word for name in ("benchmark", "cov", "cacheprovider") for word in ("-p", f"no:{name}")]
    return pytest.main([*chosen, "-n", str(processes), "--dist", "worksteal", *names])


_counts = collections.Counter(passed=0, failed=0, skipped=0)
_failures, _failed = [], set()  # of the latter, the files


def pytest_configure(config):
    """Called by pytest, in each process; those of the tests leave printing to the one that hears from all."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.unregister(name=__name__)


def pytest_collectreport(report):
    """Called by pytest for each file; one that cannot be imported is a failure."""
    if report.failed:
        _fail(report, "import")


def pytest_runtest_logreport(report):
    """Called by pytest with each report of a test, of which there are up to three."""
    if report.failed:
        _fail(report, report.when)
    elif report.when == "call" or report.skipped:
        _counts[report.outcome] += 1
        _note()


def _fail(report, when):
    name = report.nodeid.partition("::")[0]
    if when == "import" and name in _failed:  # in another process, too
        return
    print(f"\n{report.nodeid}, {when}:\n{report.longreprtext}", flush=True)
    lines = report.longreprtext.splitlines() or [""]
    _failures.append(f"{report.nodeid}, {when}: {lines[-1]}")
    _failed.add(name)
    _counts["failed"] += 1
    _note()


def pytest_sessionfinish(session, exitstatus):
    """Called by pytest when all tests are over; a signal has a status of its own."""
    _note(complete=exitstatus in (0, 1))
    if exitstatus in (0, 1) and _counts["passed"]:
        passed = json.loads(RECORD.read_text())
        for other in sorted(pathlib.Path(os.environ[_FOLDER]).parent.glob(f"tests-*/{PASSED}")):
            passed |= json.loads(other.read_text())
        good = set(session.config.args) - _failed
        _write(PASSED, {**passed, **{name: digest for name, digest in digests().items() if name in good}})


def _note(*, complete=False):
    _write(OUTCOMES, {**_counts, "failures": _failures, "complete": complete})


def _write(name, content):
    with contextlib.suppress(OSError):  # the disk is full; what has failed was printed
        pathlib.Path(os.environ[_FOLDER], name).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(standard_streams.run(lambda: main(*sys.argv[1:])))
