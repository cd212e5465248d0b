"""The error of what a CUDA graph cannot record."""


class CaptureError(RuntimeError):
    """While a CUDA graph captures, something would have to be built, measured or allocated: warm up first."""
