"""The errors of cuDNN plans: no engine, a lack of memory, a broken device."""

import re

from mixprec.base.messages import text_of

# In the text of an error: there is not enough memory, says cuDNN, or CUDA below it.
_NO_MEMORY = re.compile("ALLOC(ATION)?_FAILED|OUT_OF_MEMORY|cudaErrorMemoryAllocation")


class NoEngine(RuntimeError):
    """cuDNN has no engine for an operation: one line with shapes, layout, dtypes, GPU, version and the reason."""


class BrokenDevice(RuntimeError):
    """After what an engine did every call of CUDA fails: the process has to be started again, which will avoid it."""


def lacks_memory(error):
    """Whether an exception says that there is not enough memory, which may be otherwise the next time."""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(text_of(error)) is not None


def one_line(error):
    """Returns the first line of an exception's text, or its type if it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
