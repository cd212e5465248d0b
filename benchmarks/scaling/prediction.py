"""The model at published points, its error there, and its prediction for nodes of H200s. All of it is a model."""

import dataclasses

from benchmarks import rates
from benchmarks.roofline import h200_model
from benchmarks.roofline.network_layers import layers
from benchmarks.scaling.backward_timeline import LEVEL, timeline
from benchmarks.scaling.cluster import ASSUMPTIONS, Cluster, Training, one_ring, ring_of_rails, tree_of_rails
from benchmarks.scaling.collectives import NVLINK
from benchmarks.scaling.published_points import POINTS
from benchmarks.step import recorded

BATCHES = (256, 32)
GPUS = tuple(2**power for power in range(3, 13))  # 8 to 4096
ROUTES = {"tree of rails": tree_of_rails, "ring of rails": ring_of_rails, "one ring": one_ring}
NODE = Cluster(8, NVLINK, 450e9, 8 * 50e9)  # NVLink 4 and a link of 400 Gbit/s for each of 8 H200s
_H200 = rates.from_numbers(h200_model.COPY / 1e9, h200_model.PRODUCTS / 1e12)
_SUMS = {"float16": 2, "float32": 4}  # bytes


@dataclasses.dataclass(frozen=True)
class Check:
    """A published point beside the model.

    Attributes:
        name: authors and year.
        source: where the point is from.
        gpus: number of them.
        gpu: name of the GPU.
        assumed: of them, lines of text.
        published: efficiency in %.
        model: the same by the model.
        error: model minus published, in points.
    """

    name: str
    source: str
    gpus: int
    gpu: str
    assumed: list[str]
    published: float
    model: float
    error: float


@dataclasses.dataclass(frozen=True)
class Row:
    """A prediction.

    Attributes:
        batch: images of a GPU in a step.
        route: one of :data:`ROUTES`.
        gpus: number of H200s.
        model: efficiency in %; 100 % is one GPU.
        images_per_second: of all GPUs.
    """

    batch: int
    route: str
    gpus: int
    model: float
    images_per_second: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What :func:`predict` has found.

    Attributes:
        checks: list of :class:`Check`.
        rates: dict from batches to the images a second of one H200 that the prediction starts from, a model, too.
        rows: list of :class:`Row`.
    """

    checks: list[Check]
    rates: dict[int, float]
    rows: list[Row]

    @property
    def error(self):
        """The largest error at a published point, in points."""
        return max(abs(check.error) for check in self.checks)

    def table(self):
        """Returns two aligned text tables: published points, predictions."""
        return "\n".join([*self._head(), "", *self._published(), "", *self._predicted()])

    def as_json(self):
        """Returns all numbers, and what is assumed, as a dict for JSON."""
        found = {"is": "a model, nothing of it is measured", "error": self.error, "assumptions": ASSUMPTIONS}
        return {**found, **dataclasses.asdict(self)}

    def _head(self):
        yield "model: data parallel training of ResNet-50 on many GPUs; nothing of it is measured"
        for text, value in ASSUMPTIONS.items():
            yield f"  model assumes: {text}: {value:,.7g}"

    def _published(self):
        yield f"{'model beside published points, efficiency':48}{'published':>11}{'model':>9}{'error':>9}"
        for check in self.checks:
            numbers = f"{check.published:10.1f}%{check.model:8.1f}%{check.error:+9.1f}"
            yield f"  model, {f'{check.name}, {check.gpus:,} {check.gpu}':39}{numbers}"
            yield from (f"    model assumes: {text}" for text in check.assumed)
        yield f"  model: largest error {self.error:.1f} points"

    def _predicted(self):
        for batch in self.rates:
            alone = f"one alone {self.rates[batch]:,.0f} images/s by the model"
            yield f"model of nodes of 8 H200s, batch {batch} a GPU, {alone}: efficiency, +- {self.error:.0f} points"
            yield f"  {'model, GPUs':14}{''.join(f'{route:>16}' for route in ROUTES)}{'images/s, tree':>18}"
            rows = {(row.route, row.gpus): row for row in self.rows if row.batch == batch}
            for gpus in dict.fromkeys(row.gpus for row in self.rows):
                cells = [f"{f'{rows[route, gpus].model:.0f} +- {self.error:.0f} %':>16}" for route in ROUTES]
                first = rows[next(iter(ROUTES)), gpus]
                yield f"  {f'model, {gpus}':14}{''.join(cells)}{first.images_per_second:18,.0f}"


def predict(network, *, arch="resnet50", size=224, batches=BATCHES, gpus=GPUS):
    """Computes the model at published points, which are those of ResNet-50 on 224x224 pixels, and for H200s.

    Args:
        network: callable, at the top of a module, from the number of classes to a Chainer link from images to logits.
        arch: its name.
        size: height and width of an image in pixels.
        batches: images of a GPU in a step.
        gpus: numbers of GPUs, powers of two from 8 on.

    Returns:
        Prediction
    """
    found = layers(network, size)
    launches = recorded.record(network, arch=arch, size=size, dtype="float16")[recorded.AS_IT_IS]
    steps = {batch: sum(h200_model.seconds(launch, batch) + h200_model.GAP for launch in launches) for batch in batches}
    rows = []
    for batch, seconds in steps.items():
        step = timeline(found, "float16", batch, _H200, LEVEL).lasting(seconds)
        for name, route in ROUTES.items():
            training = Training(step, NODE, route, _SUMS)
            rows += [_row(training, batch, name, number) for number in gpus]
    return Prediction(
        [_check(point, found) for point in POINTS], {batch: batch / seconds for batch, seconds in steps.items()}, rows
    )


def _check(point, network):
    model = 100 * point.training(network).efficiency(point.gpus, point.base)
    published = 100 * point.efficiency
    assumed = [point.assumed, f"a GPU alone has {point.rate:.0f} images/s: {point.rate_from}"]
    return Check(point.name, point.source, point.gpus, point.gpu, assumed, published, model, model - published)


def _row(training, batch, route, gpus):
    seconds = training.seconds(gpus)
    return Row(batch, route, gpus, 100 * training.efficiency(gpus), gpus * batch / seconds)
