"""The error for work that a CUDA graph cannot record."""


class CaptureError(RuntimeError):
    """Something would have to be built, measured or allocated while a CUDA graph captures: warm up first."""
