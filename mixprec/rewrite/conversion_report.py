"""The report of a conversion: a table of the links, and facts about functions, fusion and memory.

:func:`mixprec.convert` returns one; it asks the links and the last trace whenever it is printed.
"""

import collections
import dataclasses
import json
from typing import Any

from mixprec.base.text_table import aligned
from mixprec.rewrite import parameters, trace
from mixprec.rewrite.fusions import NAMES

_NOT_TRACED = "not known before the model's first call in training mode: give convert an example, or print this later"
_IN_JSON = (
    *("compute", "layout", "links", "fused", "conv_statistics", "conversions", "unconverted", "too_narrow"),
    *("parameters", "parameter_bytes", "activation_bytes"),
)


@dataclasses.dataclass(frozen=True)
class LinkReport:
    """One link that owns parameters.

    Attributes:
        name: path of the link in the model (``/layer1/0/conv1``).
        kind: class name of the link.
        before: dtype names of its parameters before the conversion.
        after: dtype names of its parameters after the conversion.
        why: why the dtype is what it is.
        fused: what a batch normalization is fused with, and what is computed apart, or why it is not; otherwise empty.
        size: number of elements of its initialized parameters.
    """

    name: str
    kind: str
    before: str
    after: str
    why: str
    fused: str
    size: int


class Report:
    """The conversion of one model; ``print(report)`` shows an aligned table.

    Fusion, conversions and memory depend on the model's functions, and are known after its first two calls in training
    mode. With an example :func:`mixprec.convert` makes these calls; without one the report fills up during training.

    Args:
        conversion: :class:`~mixprec.rewrite.convert.Conversion`.
        rows: list of ``(name, link, state, before, why)``, state being ``None`` for a link that was left alone.
        bytes_before: size of parameters and statistics before the conversion.
    """

    def __init__(self, conversion: Any, rows: list[tuple[Any, ...]], bytes_before: int) -> None:
        self._conversion = conversion
        self._rows = rows
        self._bytes_before = bytes_before

    @property
    def compute(self) -> str:
        """Dtype name of activations and of the weights that they are multiplied with."""
        return self._conversion.policy.compute

    @property
    def layout(self) -> str:
        """``"nhwc"`` or ``"nchw"``."""
        return self._conversion.policy.layout

    @property
    def traced(self) -> bool:
        """Whether a call of the model has been traced."""
        return self._conversion.findings is not None

    @property
    def links(self) -> tuple[LinkReport, ...]:
        """Tuple of :class:`LinkReport`, one for each link that owns parameters."""
        return tuple(
            LinkReport(
                name,
                type(link).__name__,
                before,
                dtype_names(link),
                why,
                _fused(state),
                sum(param.size for param in parameters.own(link).values() if param.array is not None),
            )
            for name, link, state, before, why in self._rows
        )

    @property
    def parameters(self) -> dict[str, int]:
        """Number of elements of the initialized parameters by dtype name."""
        counts = collections.Counter()
        for param in self._params():
            counts[param.dtype.name] += param.size
        return dict(sorted(counts.items()))

    @property
    def parameter_bytes(self) -> tuple[int, int]:
        """``(before, after)``: memory of parameters and statistics."""
        return self._bytes_before, parameters.nbytes(link for _, link, *_ in self._rows)

    @property
    def activation_bytes(self) -> tuple[int, int] | None:
        """``(before, after)``: memory of the arrays that a step keeps for its backward pass, ``None`` if not known.

        ``before`` is the memory that the graph of plain Chainer would keep for the same batch in float32.
        """
        findings = self._conversion.findings
        return None if findings is None else (findings.bytes_before, findings.bytes_after)

    @property
    def largest_activation_bytes(self) -> int | None:
        """Memory of the largest array that a step keeps for its backward pass, ``None`` if not known."""
        return None if self._conversion.findings is None else self._conversion.findings.bytes_largest

    @property
    def conversions(self) -> list[trace.LayoutConversion] | None:
        """List of :class:`~mixprec.rewrite.trace.LayoutConversion` of a forward pass, ``None`` if not known."""
        return None if self._conversion.findings is None else list(self._conversion.findings.conversions)

    @property
    def fused(self) -> dict[str, int] | None:
        """Number of batch normalizations in a step by the name of their fusion, ``None`` if not known."""
        if self._conversion.findings is None:
            return None
        counts = dict.fromkeys((*NAMES, ""), 0)
        for (_, fused), count in self._conversion.findings.normalizations.items():
            counts[fused] += count
        return counts

    @property
    def conv_statistics(self) -> int:
        """Number of convolutions that may take the sums of the batch normalization after them, as known so far."""
        states = [state for _, _, state, _, _ in self._rows if state is not None]
        sites = (item for state in states for item in state.convolution_sites.items())
        return sum(train and site.following is not None for (train, _), site in sites)

    @property
    def unknown_links(self) -> dict[tuple[str, str], str]:
        """``{(name, class name): why}`` of links whose parameters stayed as they were."""
        return {(name, type(link).__name__): why for name, link, _, _, why in self._rows if why == parameters.UNKNOWN}

    @property
    def unconverted(self) -> list[str]:
        """Links and functions that stayed as they were, each as a text with the reason."""
        findings = self._conversion.findings
        return trace.lines_of(self.unknown_links | ({} if findings is None else findings.left))

    @property
    def too_narrow(self) -> list[str]:
        """Weights that become inf or 0 in 16 bits, and results on the example that need more: texts with the remedy."""
        findings = self._conversion.findings
        return self._conversion.lost_weights + ([] if findings is None else findings.narrow_results)

    def to_json(self) -> str:
        """Returns the report as a JSON text."""
        return json.dumps({name: getattr(self, name) for name in _IN_JSON}, indent=2, default=dataclasses.asdict)

    def __str__(self) -> str:
        rows = [("link", "class", "before", "after", "why", "fused with, or why not")]
        rows += [(link.name or "/", link.kind, link.before, link.after, link.why, link.fused) for link in self.links]
        return "\n".join([*aligned(rows), "", *(f"{title + ':':22}{text}" for title, text in self._totals())])

    def _totals(self):
        yield "compute", f"{self.compute}, {self.layout.upper()}"
        counts = ", ".join(f"{count:,} in {dtype}" for dtype, count in self.parameters.items())
        yield "parameters", counts or "none initialized yet"
        yield "parameter memory", _change(*self.parameter_bytes)
        if self.too_narrow:
            yield "too narrow", f"\n{'':22}".join(self.too_narrow)
        if not self.traced:
            yield "functions", _NOT_TRACED
            return
        yield "kept for backward", f"{_change(*self.activation_bytes)}, with {self._conversion.findings.batch}"
        counts = [f"{count} with {name}" for name, count in self.fused.items() if name and count]
        yield "batch normalizations", ", ".join([*counts, f"{self.fused['']} alone"])
        yield "statistics", f"{self.conv_statistics} may be taken in the convolution before, on a GPU"
        where = [f"{each.direction} at {each.link or '/'} for {each.function}" for each in self.conversions]
        yield "layout conversions", f"{len(where)} a step" + "".join(f"\n{'':22}{line}" for line in where)
        left = self.unconverted
        yield "as it was", f"\n{'':22}".join(left) if left else "nothing"

    def _params(self):
        unique = {id(param): param for _, link, *_ in self._rows for param in parameters.own(link).values()}
        return [param for param in unique.values() if param.array is not None]


def dtype_names(link):
    """Returns the dtype names of the parameters of a link itself."""
    return ", ".join(sorted({parameters.dtype_name(param) for param in parameters.own(link).values()}))


def _fused(state):
    sites = [] if state is None else [site for (train, _), site in sorted(state.normalization_sites.items()) if train]
    return "; ".join(dict.fromkeys(site.text for site in sites))


def _change(before, after):
    size, unit = (1e6, "MB") if before >= 1e6 else (1e3, "kB")
    return f"{before / size:,.1f} {unit} before, {after / size:,.1f} {unit} after"
