"""What can go wrong when cuDNN is asked for something."""


class NoEngine(RuntimeError):
    """cuDNN has no engine for an operation: one line with shapes, layout, dtypes, GPU, version and the reason."""


class CaptureError(RuntimeError):
    """While a CUDA graph captures, something would have to be built, measured or allocated: warm up first."""


class BrokenDevice(RuntimeError):
    """After what an engine did every call of CUDA fails: the process has to be started again, which will avoid it."""
