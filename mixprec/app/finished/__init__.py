"""Exports a run of the training command: its network as ONNX files, checked on its validation images.

The commands behind ``scripts/export.py`` and ``scripts/predict.py``.
"""
