"""What comes after training: networks as ONNX files, and weights for other programs.

``onnx`` is loaded on first use: it needs the extra ``export``.
"""

from typing import TYPE_CHECKING

from mixprec.base.installation import install_hint
from mixprec.export.export_error import ExportError, WeightsError
from mixprec.export.state_dicts import load_torchvision, torchvision

__all__ = ["ExportError", "WeightsError", "load_torchvision", "onnx", "torchvision"]

if TYPE_CHECKING:
    from mixprec.export.onnx_file import export_onnx as onnx
else:

    def __getattr__(name):
        if name != "onnx":
            raise AttributeError(f"module 'mixprec.export' has no attribute {name!r}")
        try:
            import onnxruntime  # noqa: F401

            from mixprec.export.onnx_file import export_onnx
        except ModuleNotFoundError as error:
            missing = f"mixprec.export.onnx needs {error.name}, which is not installed: {install_hint('export')}"
            raise ModuleNotFoundError(missing, name=error.name) from error
        globals()[name] = export_onnx
        return export_onnx
