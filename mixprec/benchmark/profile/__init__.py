"""The time of each layer and kind of kernel in a training step, beside its floor: where the next gain is."""

from mixprec.benchmark.profile.measure import measure
from mixprec.benchmark.profile.rows import Profile, Row
from mixprec.benchmark.profile.tables import as_json, table

__all__ = ["Profile", "Row", "as_json", "measure", "table"]
