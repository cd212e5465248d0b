"""``scripts/benchmark.py scaling``: a model of data parallel training on many GPUs, and ranks measured on this machine.

Nothing of the model is a measurement; it prints how far it is from published ones.
"""
