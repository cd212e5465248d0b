"""Export after training: networks as ONNX files, and weights for other programs.

Reading order. Weights: ``state_dicts`` has the public functions, ``torch_names`` translates names, ``matching`` checks
and loads, ``weight_files`` reads and writes files. ONNX in float32: ``onnx_file`` calls ``chainer_graph``, with its
``converters`` and ``sequence_links``, for two batch sizes, then ``dynamic_batch`` and ``folding``; it makes float16 of
the result, too. INT8: ``int8``, with ``placement``, ``calibration`` and ``qdq``. ``preprocessing`` adds the treatment
of images to a file, ``sessions`` runs one on the CPU, ``export_error`` has the errors. ``onnx`` is loaded on first use:
it needs the extra ``export``. The command is :mod:`mixprec.app.commands.export`.
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
