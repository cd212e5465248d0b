"""Processes in which contestants live by themselves: what one has imported, changed or allocated is not another's."""

import concurrent.futures
import multiprocessing


def process():
    """Returns a new process, to be used in a ``with`` statement, which ends it."""
    return concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def run_in(process, function, *arguments):
    """Calls a function at the top of a module in a process and waits for what it returns."""
    return process.submit(function, *arguments).result()
