"""One line of progress in the place of a letter for each test: ``pytest -p tests.progress``, as `make test` calls it.

On a terminal the line is written anew as tests end. Elsewhere, as in the log of CI, a tenth of the tests has a line.
"""

import sys
import time

import pytest

_SECONDS = 0.2  # between two versions of the line


class Progress:
    def __init__(self, session):
        self._session = session
        self._start = self._written = time.monotonic()
        self._ended = self._failed = self._tenths = 0
        self._terminal = sys.stdout.isatty()

    def pytest_report_teststatus(self, report):
        """Keeps the categories of the summary and drops the letters; other plugins decide on what is odd."""
        if report.passed:
            return ("passed" if report.when == "call" else ""), "", ""
        if report.skipped and not hasattr(report, "wasxfail"):
            return "skipped", "", ""
        return None

    def pytest_runtest_logreport(self, report):
        self._failed += report.failed
        self._ended += report.when == "teardown"
        self._write(report.when == "teardown")

    def _write(self, ended):
        total, now = max(self._session.testscollected, self._ended), time.monotonic()
        tenths = 10 * self._ended // total if total else 0
        due = now - self._written > _SECONDS if self._terminal else tenths > self._tenths
        if not ended or not due:
            return
        self._tenths, self._written = tenths, now
        minutes, seconds = divmod(int(now - self._start), 60)
        text = f"{self._ended} of {total} tests, {self._failed} failed, {minutes}:{seconds:02}"
        print(f"\r\x1b[K{text}" if self._terminal else text, end="" if self._terminal else "\n", flush=True)

    def pytest_sessionfinish(self):
        if self._terminal:
            print("\r\x1b[K", end="", flush=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    if not hasattr(session.config, "workerinput"):  # not in a worker of pytest-xdist
        session.config.pluginmanager.register(Progress(session))
