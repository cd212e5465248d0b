"""The errors of cuDNN plans: no engine, a lack of memory, a broken device."""

import re

from mixprec.base.messages import text_of

# Parts of error texts of cuDNN, or of CUDA below it, that mean a lack of memory.
_NO_MEMORY = re.compile("ALLOC(ATION)?_FAILED|OUT_OF_MEMORY|cudaErrorMemoryAllocation")


class NoEngine(RuntimeError):
    """cuDNN has no engine for an operation: one line with shapes, layout, dtypes, GPU, version and the reason."""


class BrokenDevice(RuntimeError):
    """An engine has made every call of CUDA fail: the process must be restarted, and will then avoid this engine."""


def lacks_memory(error):
    """Whether an exception means a lack of memory, which may be different the next time."""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(text_of(error)) is not None


def one_line(error):
    """Returns the first line of an exception's text, or its type if it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
