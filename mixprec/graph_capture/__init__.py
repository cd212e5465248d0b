"""Capturing work that is done again and again as CUDA graphs: the training step, and the evaluation of a model.

Begin to read in :mod:`~mixprec.graph_capture.captured`.
"""

from mixprec.backends.capture_error import CaptureError
from mixprec.graph_capture.captured import capture, capture_evaluation

__all__ = ["CaptureError", "capture", "capture_evaluation"]
