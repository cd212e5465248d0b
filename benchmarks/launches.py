"""Where :mod:`benchmarks.step.by_hand` was; ``tests/rewrite/test_recording.py`` still asks for it here."""

from benchmarks.step.by_hand import OTHERS, count
from benchmarks.step.counts import LAUNCHES

__all__ = ["LAUNCHES", "OTHERS", "count"]
