"""What K-FAC costs on an H200 as tables: each shape of layers, the time of a step, memory."""

import dataclasses

from benchmarks.roofline import kfac_estimate, kfac_seconds
from benchmarks.roofline.kfac_estimate import Memory, Row, Steps

_PRECISIONS = {"float32": "FP32", "tf32": "TF32"}
_COLUMNS = {
    "factor": {"GFLOP": 8, "MB": 8, "cache MB": 9, "us": 7},
    "inverse": {"GFLOP": 7, "MB": 7, "us": 8},
    "precondition": {"GFLOP": 7, "MB": 7, "us FP32": 8, "us TF32": 8},
}


@dataclasses.dataclass(frozen=True)
class Report:
    """What :func:`report` has found.

    Attributes:
        batch: the largest one, of the rows.
        rows: list of :class:`~benchmarks.roofline.kfac_estimate.Row`.
        steps: list of :class:`~benchmarks.roofline.kfac_estimate.Steps`.
        memory: :class:`~benchmarks.roofline.kfac_estimate.Memory`.
    """

    batch: int
    rows: list[Row]
    steps: list[Steps]
    memory: Memory

    def table(self):
        """Returns aligned text tables of layers and of steps, and a line about memory."""
        return "\n".join([*_head(), "", *self._layers(), "", *self._steps(), "", self._memory()])

    def as_json(self):
        """Returns all numbers, and what is assumed, as a dict for JSON."""
        return {
            "is": "a calculation, nothing of it is measured",
            "assumptions": kfac_seconds.ASSUMPTIONS,
            **dataclasses.asdict(self),
        }

    def _layers(self):
        parts = f"{'factor step':>32}{'inverse step':>22}{'every step':>30}"
        yield f"{f'K-FAC, batch {self.batch}':36}{parts}"
        titles = "".join(f"{title:>{width}}" for kind in _COLUMNS.values() for title, width in kind.items())
        yield f"{'':20}{'layers':>6}{'D':>5}{'K':>5}{titles}"
        for row in self.rows:
            yield f"  {_name(row):18}{row.layers:6}{row.d or '':>5}{row.k or '':>5}{_costs(row)}"
        yield f"  {'all':18}{'':16}{_costs(_total(self.rows))}"

    def _steps(self):
        titles = "".join(f"{f'batch {each.batch}, {_PRECISIONS[each.precision]}':>19}" for each in self.steps)
        yield f"{'ms, and as a ratio of the plain step':44}{titles}"
        lines = {
            "plain step": [each.plain for each in self.steps],
            "step that preconditions only": [each.between for each in self.steps],
            "factor step": [each.factor for each in self.steps],
            "inverse step": [each.inverse for each in self.steps],
        }
        for interval in kfac_estimate.INTERVALS:
            name = f"mean, inverse_every {interval}, factor_every {kfac_estimate.factor_interval(interval)}"
            lines[name] = [each.means[interval] for each in self.steps]
        for name, times in lines.items():
            cells = zip(times, self.steps, strict=True)
            yield f"  {name:42}" + "".join(f"{time:12.2f}{time / each.plain:7.2f}" for time, each in cells)

    def _memory(self):
        found = {field.name: getattr(self.memory, field.name) / 1e6 for field in dataclasses.fields(self.memory)}
        return "MB: " + ", ".join(f"{name} {megabytes:,.1f}" for name, megabytes in found.items())


def report(network, *, size, batches, dtype, plain):
    """Returns the :class:`Report` about a network; arguments as of :func:`kfac_estimate.estimate`."""
    return Report(max(batches), *kfac_estimate.estimate(network, size=size, batches=batches, dtype=dtype, plain=plain))


def _head():
    yield "a calculation of what K-FAC adds on an H200, by the model above and the following; nothing is measured:"
    for text, value in kfac_seconds.ASSUMPTIONS.items():
        yield f"  {text}: {value:g}"


def _name(row):
    if row.kind == "batch_normalization":
        return "BN"
    name = row.name.replace("downsample", "down")
    return f"{name}, {row.groups} groups" if row.groups > 1 else name


def _total(rows):
    costs = []
    for kind in _COLUMNS:
        parts = [getattr(row, kind) for row in rows]
        times = {name: sum(part.microseconds[name] for part in parts) for name in kfac_seconds.PEAKS}
        sums = (sum(getattr(part, name) for part in parts) for name in ("flops", "bytes", "cached"))
        costs.append(kfac_estimate.Cost(*sums, times))
    return Row("all", len(rows), "all", 0, 0, 0, 0, *costs)


def _costs(row):
    text = ""
    for kind, columns in _COLUMNS.items():
        found = getattr(row, kind)
        values = {
            "GFLOP": f"{found.flops / 1e9:.1f}",
            "MB": f"{found.bytes / 1e6:.1f}",
            "cache MB": f"{found.cached / 1e6:.1f}",
            "us": f"{found.microseconds['float32']:,.0f}",  # no product of float32 is part of it
            **{f"us {name}": f"{found.microseconds[precision]:,.0f}" for precision, name in _PRECISIONS.items()},
        }
        text += "".join(f"{values[title]:>{width}}" for title, width in columns.items())
    return text
