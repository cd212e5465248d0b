"""The section of the page of results about memory, from a record of :mod:`benchmarks.activations`."""

import shlex

from benchmarks.activations.memory_table import cells  # noqa: F401  (the table of the section)

TEXT = """\
The largest square image, in steps of 256 pixels, with which a training step stays within the budget: the most memory
that the process has had, libraries and all. What is offloaded goes to a file, most of which the system keeps in memory
that counts for no process; a disk may be slower. Pixels and time a pixel are relative to the first row. The last two
columns are at the size that all rows reach. In all rows `MALLOC_MMAP_THRESHOLD_=1048576` makes the C library give
memory back to the system that is free; without it mixprec has it keep that, for speed.
"""


def what(record):
    """Returns what a record measures."""
    settings = record["settings"]
    network = f"U-Net of width {settings['width']} in {settings['dtype']}, batch {settings['batch']}"
    return f"{network}, the largest image in {settings['budget'] / 1e9:g} GB"


def command(record):
    """Returns the command that measures it, but for the script."""
    settings = record["settings"]
    words = ["memory", "--budget", f"{settings['budget'] / 1e6:g} MB"]
    for key in ("steps", "width", "batch", "dtype"):
        words += [f"--{key}", str(settings[key])]
    return shlex.join(words)
