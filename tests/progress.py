"""One line of progress in the place of a letter for each test: ``pytest -p tests.progress``, as `make test` calls it.

On a terminal the line is written anew as tests end. Elsewhere, as in the log of CI, a tenth of the tests has a line.
What fails is named at once.
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
        self._clear = "\r\x1b[K" if self._terminal else ""

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report):
        """Keeps what the summary needs and drops the letters."""
        category, _, word = yield
        return category, "", word if category != "passed" else ""

    def pytest_runtest_logreport(self, report):
        self._ended += report.when == "teardown"
        if report.failed:
            self._failed += 1
            print(f"{self._clear}FAILED {report.nodeid}", flush=True)
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
        print(f"{self._clear}{text}", end="" if self._terminal else "\n", flush=True)

    def pytest_sessionfinish(self):
        print(self._clear, end="", flush=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    if not hasattr(session.config, "workerinput"):  # not in a worker of pytest-xdist
        session.config.pluginmanager.register(Progress(session))
