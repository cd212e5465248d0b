"""The rows of a profile, and their sums."""

import dataclasses
import statistics

from benchmarks.profile import kinds


@dataclasses.dataclass(frozen=True)
class Row:
    """The calls of one primitive or function in one layer, on arrays of the same shapes.

    Attributes:
        layer: path of the link.
        kind: one of :data:`~benchmarks.profile.kinds.KINDS`.
        name: of the primitive or function.
        shapes: of the arrays that it is given.
        engines: what computes it: own kernels and cuDNN's engines by their names; empty on NumPy.
        calls: number of calls in a step.
        microseconds: of all of them in a step, the median over steps.
        floor: microseconds that they need at least, see :mod:`benchmarks.floors`.
        limit: ``"bytes"`` or ``"operations"``, whichever takes longer.
    """

    layer: str
    kind: str
    name: str
    shapes: str
    engines: str
    calls: int
    microseconds: float
    floor: float
    limit: str

    @property
    def group(self):
        """The first part of the path of the layer."""
        return self.layer.split("/")[0]

    @property
    def gain(self):
        """Microseconds of a step that there are between the time and the floor; negative for what a cache serves."""
        return self.microseconds - self.floor


@dataclasses.dataclass(frozen=True)
class Profile:
    """Where the time of a training step goes.

    Attributes:
        rows: tuple of :class:`Row`, in the order of the first calls.
        step: microseconds of a step while it was watched, the median over steps; on a GPU those of the device, which
            did not wait for the host.
        rest: microseconds of it that belong to no row, also a median: Python and gaps, and kernels that are launched
            outside of all calls, such as those of the loss scale and of the saving of running statistics.
        eager: microseconds of a step that is not watched; on a GPU with the time in which the device waits.
        steps: number of steps that were watched.
        late: how often in these a device went on before the host had asked for all that was to follow: gaps are then
            in the rows.
    """

    rows: tuple
    step: float
    rest: float
    eager: float
    steps: int
    late: int

    def by_kind(self):
        """Returns a dict from each kind that occurs to ``(calls, microseconds, floor)`` of a step."""
        found = {}
        for kind in kinds.KINDS:
            rows = [(row.calls, row.microseconds, row.floor) for row in self.rows if row.kind == kind]
            if rows:
                found[kind] = tuple(map(sum, zip(*rows, strict=True)))
        return found

    def by_group(self):
        """Returns a dict from groups of layers to dicts from kinds to microseconds of a step."""
        found = {}
        for row in self.rows:
            own = found.setdefault(row.group, {})
            own[row.kind] = own.get(row.kind, 0.0) + row.microseconds
        return found


def profile_of(steps, eager, late):
    """Returns the :class:`Profile` of some steps.

    What occurs in some of them only, such as the update of a step that is not skipped, counts 0 in the others.

    Args:
        steps: list of :class:`~benchmarks.profile.spans.Step`.
        eager: see :class:`Profile`, in seconds.
        late: see :class:`Profile`.
    """
    keys = dict.fromkeys(key for step in steps for key in step.calls)
    rows = []
    for key in keys:
        calls = [step.calls.get(key, ()) for step in steps]
        count, seconds = statistics.median_high(map(len, calls)), statistics.median(map(sum, calls))
        place = key.layer, key.kind, key.name, key.shapes, key.engines
        rows.append(Row(*place, count, seconds * 1e6, count * key.floor * 1e6, key.limit))
    step, rest = (statistics.median(getattr(each, name) for each in steps) for name in ("seconds", "rest"))
    return Profile(tuple(rows), step * 1e6, rest * 1e6, eager * 1e6, len(steps), late)
