"""Capturing work that is done again and again as CUDA graphs: the training step, and the evaluation of a model."""

from mixprec.backends.capture_error import CaptureError
from mixprec.graph_capture.captured_evaluation import capture_evaluation
from mixprec.graph_capture.training_step import capture

__all__ = ["CaptureError", "capture", "capture_evaluation"]
