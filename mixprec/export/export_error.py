"""Errors for models that cannot become an ONNX graph, and for weights that cannot be used."""

from mixprec.base.messages import OneLineError


class ExportError(OneLineError):
    """A model cannot become an ONNX graph; the message is one line and names the function and its link."""


class WeightsError(OneLineError):
    """Weights that do not fit, or an unusable file of weights; the message is one line and names the cause."""
