"""``scripts/benchmark.py scaling``: data parallel training by ranks on this machine."""
