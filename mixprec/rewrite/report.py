"""What :func:`mixprec.convert` did to a model, as a table."""

import collections
import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class LinkReport:
    """One link that owns parameters.

    Attributes:
        name: path of the link in the model (``/layer1/0/conv1``).
        kind: class name of the link.
        before: dtype names of its parameters before the conversion.
        after: dtype names of its parameters after the conversion.
        reason: why the dtype is what it is.
        size: number of elements of its initialized parameters.
    """

    name: str
    kind: str
    before: str
    after: str
    reason: str
    size: int


@dataclasses.dataclass(frozen=True)
class Report:
    """The conversion of one model; ``print(report)`` shows an aligned table.

    Attributes:
        compute: dtype name of activations and of convolution and linear weights.
        links: a :class:`LinkReport` for each link that owns parameters.
        parameters: number of parameter elements by dtype name after the conversion (initialized ones).
    """

    compute: str
    links: tuple
    parameters: dict

    @classmethod
    def of(cls, compute, links, params):
        """Builds the report of ``links`` (:class:`LinkReport`) and the model's ``params`` after the conversion."""
        counts = collections.Counter()
        for param in params:
            if param.array is not None:
                counts[param.dtype.name] += param.size
        return cls(compute, tuple(links), dict(sorted(counts.items())))

    def to_json(self):
        """Returns the report as a JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def __str__(self):
        rows = [("link", "class", "before", "after", "why")]
        rows += [(link.name, link.kind, link.before, link.after, link.reason) for link in self.links]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        counts = ", ".join(f"{count:,} in {dtype}" for dtype, count in self.parameters.items())
        return "\n".join([*lines, f"compute {self.compute}; parameters: {counts or 'none initialized yet'}"])
