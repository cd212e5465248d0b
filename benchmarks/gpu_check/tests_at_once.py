"""A plugin of pytest for tests in many processes: a failure is printed when it happens.

A run that is killed at its limit never comes to its summary. A process of the tests has one thread of BLAS.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is imported


def options():
    """Returns the arguments of ``pytest`` for all tests that need a GPU, in up to 14 processes.

    With a line for each test. The packages of a lent machine are not pinned: their warnings are no errors.
    """
    processes = max(1, min(14, len(os.sched_getaffinity(0)) - 2))
    chosen = ["-m", "gpu", "-v", "-W", "default", "--tb=short", "--continue-on-collection-errors", "-p", __name__]
    chosen += [word for name in ("benchmark", "cov", "cacheprovider") for word in ("-p", f"no:{name}")]
    return [*chosen, "-n", str(processes), "--dist", "worksteal"]


def pytest_configure(config):
    """Called by pytest, in each process; those of the tests leave printing to the one that hears from all."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.unregister(name=__name__)


def pytest_runtest_logreport(report):
    """Called by pytest, with each report of a test."""
    if report.failed:
        print(f"\n{report.nodeid}, {report.when}:\n{report.longreprtext}", flush=True)
