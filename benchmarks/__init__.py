"""Measurements, as ratios within one run; the commands of ``scripts/benchmark.py``.

A folder for each larger one: ``bars`` (images/s), ``profile``, ``step`` (counts), ``scaling``, ``study`` (parity and
ablation); ``gpu_check`` is ``scripts/check_gpu.py``, and ``results`` has the records. A file for each smaller one:
``update``, ``convolutions``, ``inference``, ``loader``. The other files are shared; ``recording_device`` is a device
that only takes notes.
"""
