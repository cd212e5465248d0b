"""A model of how long a captured step takes on an H100: what it launches, at the speeds of the records of 2026-11-26.

Measured were a step of ResNet-50 at batch 256 that had chosen its ways by measurement, launch by launch in a profile,
and an untuned one: in a profile at 256, and captured at 256 and 32. From these come

* ``fixed``, what a launch takes for any batch: its start, its end and the gap before it. With it the rows of the
  untuned step, scaled to 32 images, take as long as that step took;
* the time of each convolution, by the shapes of its images and its filter;
* for other launches, and for convolutions that the record does not have, the share of a copy's bandwidth, or of a
  product's rate, that the rows of their kind reached whose floors are most like theirs;
* what a captured step takes of the time of one in a profile.

The batch normalizations of the record moved more than its floors say: x and the gradient behind the ReLU twice in the
backward pass, and x twice in the forward pass if the convolution before had not taken its sums.

Assumed is that

* a launch takes ``fixed``, and the rest in proportion to the batch;
* new kernels reach the share of their kind, and kinds without rows are as fast as a copy;
* sums cost a convolution nothing where the record's took none (others: 4 to 15 us each);
* what a step took outside of all rows stays as it was.
"""

import collections
import dataclasses
import json
import math
import pathlib
import re

from benchmarks.profile import kinds

OUTSIDE = "outside of launches"
_RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
_CONVOLUTIONS = kinds.CONV_FPROP, kinds.CONV_DGRAD, kinds.CONV_WGRAD
_WITHOUT_SUMS = re.compile("bn1|layer3/[0-9]/bn3")  # of the tuned step: they took one pass more than others
# Launches of a row. A batch normalization has two, but by the sums of a convolution one of them goes over no images.
_LAUNCHES = {kinds.BN_FORWARD: 2, kinds.BN_BACKWARD: 2, kinds.UPDATE: 3}
_SMALL = 5e-6  # seconds: the time of a row with a smaller floor says nothing about bandwidth
_NEIGHBOURS = 5  # rows of which a share is taken


@dataclasses.dataclass(frozen=True)
class Model:
    """What launches take, in seconds.

    Attributes:
        bandwidth: bytes that a copy reads and writes in a second.
        product: operations of a large product of matrices in a second.
        batch: images of the step that was recorded.
        fixed: what a launch takes for any batch.
        rest: what a step takes outside of all launches.
        captured: time of a captured step, as a part of that in a profile.
        convolutions: dict from (kind, shapes), as of :class:`~benchmarks.step.launches.Launch`, to their times.
        rows: dict from kinds to lists of what a launch needs at least, and what it took without ``fixed``.
    """

    bandwidth: float
    product: float
    batch: int
    fixed: float
    rest: float
    captured: float
    convolutions: dict
    rows: dict

    def seconds(self, launch, batch):
        """Returns what a launch takes in a profile."""
        if self.knows(launch):
            known = self.convolutions[launch.kind, launch.shapes]
            return self.fixed + (known - self.fixed) * batch / self.batch
        least = max(launch.moved(batch) / self.bandwidth, launch.operations * batch / self.product)
        is_folding = launch.kind in _CONVOLUTIONS and not launch.operations
        return self.fixed + (least if is_folding or not least else least / self._share(launch.kind, least))

    def knows(self, launch):
        """Whether a launch is a convolution that the record has."""
        return (launch.kind, launch.shapes) in self.convolutions

    def _share(self, kind, least):
        rows = sorted(self.rows.get(kind, [(1, 1)]), key=lambda row: abs(math.log(row[0] / least)))[:_NEIGHBOURS]
        return sum(row[0] for row in rows) / sum(row[1] for row in rows)

    def by_kind(self, launches, batch):
        """Returns a dict from kinds, and :data:`OUTSIDE`, to what they take in a captured step."""
        found = collections.defaultdict(float)
        for launch in launches:
            found[launch.kind] += self.captured * self.seconds(launch, batch)
        return {**found, OUTSIDE: self.captured * self.rest}

    def text(self, launches, batch):
        """Returns as text what it says of a captured step, and by what; or that there is none."""
        if not launches:
            return "no model: there is no captured step"
        seconds = sum(self.by_kind(launches, batch).values())
        products = [launch for launch in launches if launch.kind in _CONVOLUTIONS and launch.operations]
        return "\n".join(
            (
                f"modelled: {sum(map(self.knows, products))} of {len(products)} convolutions by their own time in the "
                "record, others by their kind;",
                f"a copy {self.bandwidth / 1e12:.2f} TB/s, a product {self.product / 1e12:.0f} TFLOP/s, "
                f"{self.fixed * 1e6:.1f} us a launch; of all that a graph takes {self.captured:.3f}",
                f"model, by the rates of 2026-11-26 on an H100: {seconds * 1e3:.1f} ms, {batch / seconds:,.0f} "
                "images/s; a model, not a measurement",
            )
        )


def of_h100():
    """Returns the :class:`Model` by the records of 2026-11-26."""
    graphs = [_record(f"bars-h100-{batch}")["rows"][0] for batch in (256, 32)]
    profiles = _record("profile-h100-autotuned"), _record("profile-h100")
    return model_of(*profiles, {row["batch"]: row["milliseconds"] / 1e3 for row in graphs})


def model_of(tuned, untuned, graphs):
    """Returns a :class:`Model`.

    Args:
        tuned: record of a profile of a ResNet in 16 bits; the first convolution has folded its images by itself.
        untuned: another one, of the same batch.
        graphs: dict from two batches, the first of which is that one, to seconds of the untuned step, captured.
    """
    batch, rows = tuned["settings"]["batch"], tuned["rows"]
    of_layers = {row["layer"]: _shapes(row) for row in rows if row["kind"] == kinds.CONV_FPROP}
    add = next(row for row in rows if row["kind"] == kinds.GRADIENT_SUM)
    bandwidth = 3 * _bytes(_shapes(add)[0]) / _seconds(add, "floor")
    # A filter of 3x3 with stride 1: its output has as many pixels as its input.
    limited = next(row for row in rows if row["kind"] == kinds.CONV_FPROP and row["limit"] == "operations")
    x, w = of_layers[limited["layer"]]
    product = 2 * math.prod(x[:3]) * math.prod(w) / _seconds(limited, "floor")
    copied = 2 * _bytes(next(iter(of_layers.values()))[0]) / bandwidth  # the batch, into the memory of the graph
    captured = graphs[batch] / (untuned["step"] / 1e6 + copied)
    ((other, watched),) = ((key, seconds / captured) for key, seconds in graphs.items() if key != batch)
    fixed = _fixed(untuned, copied, other / batch, watched)

    times, found = collections.defaultdict(list), collections.defaultdict(list)
    for row in rows:
        kind, floor, taken = row["kind"], _seconds(row, "floor"), _seconds(row)
        if kind in _CONVOLUTIONS:
            shapes, folding = _as_launched(*of_layers[row["layer"]])
            times[kind, shapes].append(taken - (2 * fixed + folding / bandwidth if folding else 0))
        if _SMALL < floor < taken and row["layer"] != next(iter(of_layers)):
            count, again = _LAUNCHES.get(kind, 1), _again(row)
            large = 1 if kind == kinds.BN_FORWARD and not again else count
            found[kind].append(((floor + again / bandwidth) / large, (taken - count * fixed) / large))
    convolutions = {key: sum(each) / len(each) for key, each in times.items()}
    return Model(bandwidth, product, batch, fixed, tuned["rest"] / 1e6, captured, convolutions, dict(found))


def _fixed(untuned, copied, ratio, watched):
    """What a launch takes for any batch, if a step with a part ``ratio`` of the images takes so many seconds."""
    rows = [row for row in untuned["rows"] if row["kind"] != kinds.UPDATE]
    in_proportion = sum(map(_seconds, rows)) + copied
    kept = untuned["step"] / 1e6 + copied - in_proportion
    return (watched - kept - ratio * in_proportion) / ((1 - ratio) * sum(row["calls"] for row in rows))


def _again(row):
    """Bytes that the own kernels of a batch normalization move beyond its floor."""
    again = 2 * (row["kind"] == kinds.BN_BACKWARD)
    again += row["kind"] == kinds.BN_FORWARD and _WITHOUT_SUMS.fullmatch(row["layer"]) is not None
    return again and again * _bytes(_shapes(row)[0])


def _as_launched(x, w):
    """Returns the shapes that the launch of a convolution has, and bytes for folding images to squares: 0 if not."""
    if x[-1] != 3:
        return (x[1:], w), 0
    size, window = [length // 2 for length in x[1:3]], [(length + 1) // 2 for length in w[1:3]]
    padded = [length + rows - 1 for length, rows in zip(size, window, strict=True)]  # the record's were not
    return ((*padded, 16), (w[0], *window, 16)), _bytes(x) + x[0] * _bytes((*size, 16))


def _shapes(row):
    return [tuple(map(int, shape.split("x"))) for shape in row["shapes"].split()]


def _bytes(shape):
    return 2 * math.prod(shape)


def _seconds(row, name="microseconds"):
    return row[name] / 1e6


def _record(name):
    return json.loads((_RESULTS / f"2026-11-26-{name}.json").read_text("utf-8"))
