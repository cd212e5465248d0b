"""Threads on all cores, and progress bars, for work over a whole source."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

from tqdm import tqdm

from mixprec.base.standard_streams import bars_are_off
from mixprec.data.data_error import printable


@contextlib.contextmanager
def threads(per_core=1):
    """Gives a pool of threads; tasks that have not begun when the block ends, as after an error, are cancelled."""
    pool = ThreadPoolExecutor(per_core * len(os.sched_getaffinity(0)))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def bar(verb, root, items=None, **settings):
    """Returns a progress bar of :mod:`tqdm` over ``items``, with a verb and the path of the source as its name."""
    return tqdm(items, desc=f"{verb} {printable(root)}", leave=False, disable=bars_are_off(), **settings)
