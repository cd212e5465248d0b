"""A profile as tables and as JSON."""

import dataclasses

from benchmarks.profile import kinds

_REST = "in no row: other kernels, Python, gaps"
_COLUMNS = {
    "fprop": (kinds.CONV_FPROP,),
    "dgrad": (kinds.CONV_DGRAD,),
    "wgrad": (kinds.CONV_WGRAD,),
    "BN": (kinds.BN_FORWARD, kinds.BN_BACKWARD),
    "update": (kinds.UPDATE,),
}


def table(profile, top=20):
    """Returns a :class:`~benchmarks.profile.profile_rows.Profile` as aligned text tables.

    They are the totals of each kind, those of each group of layers, and the rows with most to gain.

    Args:
        profile: what was measured.
        top: number of rows.
    """
    late = f"; {profile.late} times the device went on before the host was ready" if profile.late else ""
    head = f"a step of {profile.step / 1e3:.2f} ms, median of {profile.steps}; {profile.eager / 1e3:.2f} ms as it runs "
    head += f"without a profile{late}"
    return "\n\n".join([head, *map("\n".join, (_kinds(profile), _groups(profile), _top(profile, top)))])


def as_json(profile):
    """Returns a :class:`~benchmarks.profile.profile_rows.Profile` as a dict for JSON."""
    rows = [{**dataclasses.asdict(row), "gain": row.gain} for row in profile.rows]
    titles = "kind", "calls", "microseconds", "floor"
    by_kind = [dict(zip(titles, (kind, *numbers), strict=True)) for kind, numbers in profile.by_kind().items()]
    return {**dataclasses.asdict(profile), "rows": rows, "kinds": by_kind, "groups": profile.by_group()}


def _kinds(profile):
    lines = [f"{'':32}{'calls':>6}{'ms':>10}{'% of step':>11}{'floor ms':>10}{'share':>7}"]
    for kind, (calls, time, floor) in profile.by_kind().items():
        share = f"{floor / time:7.2f}" if time else ""
        lines.append(f"{kind:32}{calls:6}{time / 1e3:10.3f}{_percent(profile, time)}{floor / 1e3:10.3f}{share}")
    lines.append(f"{_REST:38}{profile.rest / 1e3:10.3f}{_percent(profile, profile.rest)}")
    return lines


def _percent(profile, time):
    return f"{100 * time / profile.step:11.1f}"


def _groups(profile):
    """In milliseconds; kinds that are no column of their own together."""
    groups = profile.by_group()
    width = max(map(len, groups), default=0) + 2
    lines = [f"{'ms':{width}}" + "".join(f"{name:>9}" for name in [*_COLUMNS, "other", "all"])]
    for name, times in groups.items():
        numbers = [sum(times.get(kind, 0.0) for kind in column) for column in _COLUMNS.values()]
        whole = sum(times.values())
        numbers += [whole - sum(numbers), whole]
        lines.append(f"{name:{width}}" + "".join(f"{each / 1e3:9.3f}" for each in numbers))
    return lines


def _top(profile, count):
    rows = sorted(profile.rows, key=lambda row: row.gain, reverse=True)[:count]
    names = "layer", "kind", "name"
    widths = {name: max([len(name), *(len(getattr(row, name)) for row in rows)]) + 2 for name in names}
    lines = ["".join(f"{name:{width}}" for name, width in widths.items())]
    lines[0] += f"{'calls':>5}{'us':>10}{'floor us':>10}{'gain us':>10}{'limit':>12}  shapes; engines"
    for row in rows:
        place = "".join(f"{getattr(row, name):{width}}" for name, width in widths.items())
        numbers = f"{row.calls:5}{row.microseconds:10.1f}{row.floor:10.1f}{row.gain:10.1f}{row.limit:>12}"
        lines.append(f"{place}{numbers}  {'; '.join(filter(None, (row.shapes, row.engines)))}".rstrip())
    return lines
