"""The time of each layer and kind of kernel in a training step, beside its floor: where the next gain is."""

from benchmarks.profile.measure import measure
from benchmarks.profile.profile_rows import Profile, Row
from benchmarks.profile.tables import as_json, table

__all__ = ["Profile", "Row", "as_json", "measure", "table"]
