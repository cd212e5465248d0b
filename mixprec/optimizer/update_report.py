"""A table of how each parameter is updated, returned by ``optimizer.report()``."""

import dataclasses
import json
from typing import Any

from mixprec.base.text_table import aligned


@dataclasses.dataclass(frozen=True)
class ParameterReport:
    """One parameter.

    Attributes:
        name: as in ``namedparams`` of the model.
        dtype: dtype name of the parameter.
        size: number of its elements; 0 if it is not initialized yet.
        path: how a step updates it, and why.
    """

    name: str
    dtype: str
    size: int
    path: str


@dataclasses.dataclass(frozen=True)
class UpdateReport:
    """How a step of the optimizer updates each parameter; ``print(report)`` shows an aligned table.

    Attributes:
        parameters: a :class:`ParameterReport` of each parameter of the model.
    """

    parameters: tuple[ParameterReport, ...]

    @classmethod
    def of(cls, plan: Any, model: Any) -> "UpdateReport":
        """Makes the report for an :class:`~mixprec.optimizer.batch.update_plan.UpdatePlan` and a model."""
        rows = {}
        for name, param in model.namedparams():
            waits = param.array is None
            path = "waits until it is initialized" if waits else plan.reasons[name]
            rows[name] = ParameterReport(name, param.dtype.name, 0 if waits else param.size, path)
        return cls(tuple(rows.values()))

    @property
    def batched(self) -> int:
        """Number of parameters that are updated together."""
        return sum(row.path.startswith("batched") for row in self.parameters)

    def to_json(self) -> str:
        """Returns the report as a JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def __str__(self) -> str:
        rows = [("parameter", "dtype", "elements", "update")]
        rows += [(row.name, row.dtype, f"{row.size:,}", row.path) for row in self.parameters]
        last = f"{self.batched} of {len(self.parameters)} parameters in one batch"
        return "\n".join([*aligned(rows, right=(2,)), last])
