"""The error about a model that cannot become an ONNX graph."""

from mixprec.base.messages import OneLineError


class ExportError(OneLineError):
    """A model cannot become an ONNX graph; the message is one line and names the function and its link."""
