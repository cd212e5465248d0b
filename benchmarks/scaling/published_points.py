"""Published scaling efficiencies of ResNet-50 on ImageNet, and what they were measured on.

NVIDIA's page on the last one has them all in a table:
https://developer.nvidia.com/blog/sony-breaks-resnet-50-training-record-with-nvidia-v100-tensor-core-gpus/
"""

import dataclasses
from collections.abc import Callable

from benchmarks import rates
from benchmarks.rates import Rates
from benchmarks.scaling.backward_timeline import timeline
from benchmarks.scaling.cluster import Cluster, Training, one_ring, ring_of_rails, torus
from benchmarks.scaling.collectives import NVLINK, PCIE
from mixprec.distributed.buckets import MOST

_P100, _V100 = rates.from_numbers(732, 9.3), rates.from_numbers(900, 125)  # data sheets
_IMAGES = 1281167  # of ImageNet


@dataclasses.dataclass(frozen=True)
class Point:
    """A published efficiency.

    Attributes:
        name: authors and year.
        source: where it is from.
        gpu: name of the GPU.
        gpus: number of them.
        base: number of GPUs whose rate is 100 %.
        efficiency: the rate of a GPU as a share of that.
        rate: images a second of a GPU alone.
        rate_from: where the rate is from.
        batch: images of a GPU in a step.
        rates: of the GPU.
        dtype: that it computed in.
        level: one of :data:`benchmarks.roofline.levels.LEVELS`.
        cluster: the nodes.
        route: of the sums.
        itemsizes: dict from the dtypes of parameters to the bytes of an element of their sum.
        bucket: bytes of a bucket; ``None`` without overlap.
        assumed: what the model takes for it besides.
    """

    name: str
    source: str
    gpu: str
    gpus: int
    base: int
    efficiency: float
    rate: float
    rate_from: str
    batch: int
    rates: Rates
    dtype: str
    level: str
    cluster: Cluster
    route: Callable
    itemsizes: dict[str, int]
    bucket: int | None
    assumed: str

    def training(self, network):
        """Returns the :class:`~benchmarks.scaling.cluster.Training` of a network, with the rate of the point."""
        step = timeline(network, self.dtype, self.batch, self.rates, self.level).lasting(self.batch / self.rate)
        return Training(step, self.cluster, self.route, self.itemsizes, self.bucket)


POINTS = (
    Point(
        "Akiba et al. 2017",
        "arXiv:1711.04325; tech.preferred.jp/en/blog/mn-1-a-gpu-cluster-behind-15-min-imagenet",
        *("P100", 1024, 1, 0.80),
        *(90 * _IMAGES / (15 * 60) / 1024 / 0.80, "90 epochs in 15 minutes at 80 %"),
        *(32, _P100, "float32", "nchw"),
        Cluster(8, PCIE, 15.75e9, 2 * 6.82e9),  # PCIe 3.0, two links of FDR InfiniBand
        *(one_ring, {"float32": 2}, None),
        "one ring of all GPUs, FP16 sums, no overlap",
    ),
    Point(
        "Mikami et al. 2018",
        "arXiv:1811.05233",
        *("V100", 1088, 1, 0.9162),
        *(700.0, "assumed"),
        *(32, _V100, "float16", "nchw"),
        Cluster(4, NVLINK, 150e9, 2 * 12.5e9),  # six links of NVLink 2, two links of EDR InfiniBand
        *(torus(32), {"float16": 2, "float32": 2}, None),
        "2D torus of 32 x 34 GPUs, FP16 sums; no overlap, 100 % is one GPU: assumed",
    ),
    Point(
        "Goyal et al. 2017",
        "arXiv:1706.02677",
        *("P100", 256, 8, 0.90),
        *(90 * _IMAGES / (29 * 3600) / 8, "90 epochs in 29 hours on 8 GPUs"),
        *(32, _P100, "float32", "nchw"),
        Cluster(8, NVLINK, 80e9, 6.25e9),  # four links of NVLink, one of 50 Gbit/s Ethernet
        *(ring_of_rails, {"float32": 4}, MOST),
        "FP32 sums during the backward pass; rings in place of halving and doubling",
    ),
)
