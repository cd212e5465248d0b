"""What comes after training: ONNX files, and weights in PyTorch's format."""

from mixprec.export.onnx_file import export_onnx as onnx

__all__ = ["onnx"]
