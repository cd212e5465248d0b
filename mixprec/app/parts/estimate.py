"""A first guess of the memory of a step, before one is tried, and the memory of the machine.

:mod:`mixprec.app.run.needs` uses it in a dry run, which then measures real steps. It also decides about recomputed
blocks with ``memory.recompute: auto``.
"""

import dataclasses

import chainer
import numpy as np

from mixprec.app.parts.devices import on_gpu
from mixprec.app.parts.networks import EXAMPLE
from mixprec.app.parts.stages import largest_stage
from mixprec.base.process_limits import resident_memory

# Number of arrays as large as the largest activation that exist at a time: its gradient and the next one, the gradient
# of the other branch of a residual block, and one more. On NumPy they are FP32.
_ON_THE_WAY = 4
MODEL, OPTIMIZER, BATCH = "model.arch", "optimizer.name", "training.batch_size"


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory that a step needs, and the memory of the machine.

    Attributes:
        parts: dict from keys of the config to the numbers of bytes that grow with them.
        available: number of bytes that are free.
        where: name of the memory.
        sharing: number of processes that share this memory; each needs this much.
    """

    parts: dict
    available: int
    where: str
    sharing: int = 1

    @property
    def needed(self):
        """Sum of the parts in bytes."""
        return sum(self.parts.values())

    @property
    def fits(self):
        """Whether the memory is enough for all processes."""
        return self.needed * self.sharing <= self.available

    def __str__(self):
        each = f" for each of {self.sharing} ranks" if self.sharing > 1 else ""
        return f"a step takes about {in_words(self.needed)}{each}, and {self.where} has {in_words(self.available)} free"


def first_guess(config, optimizer, report, kept, ranks):
    """Returns the :class:`Memory` of weights, optimizer state and a batch; the rest is found by trying.

    Args:
        config: :class:`mixprec.app.config.Config`.
        optimizer: from :func:`mixprec.app.parts.optimizers.build_optimizer`; its model is converted.
        report: report of the conversion, from an example of :data:`~mixprec.app.parts.networks.EXAMPLE` images.
        kept: bytes that layers keep for that example.
        ranks: from :mod:`mixprec.distributed.processes`.
    """
    stage, device = largest_stage(config), optimizer.target.device
    params = [param for param in optimizer.target.params() if param.array is not None]
    masters = 4 * sum(param.size for param in params if param.dtype != np.float32)
    gradients = sum(param.array.nbytes for param in params if param.requires_grad)
    model = report.parameter_bytes[1] + masters + gradients
    wide = 1 if on_gpu(device) or config.precision.compute == "float32" else 2
    example = kept + _ON_THE_WAY * wide * report.largest_activation_bytes
    scale = stage.batch_size / EXAMPLE * (stage.size / config.data.size) ** 2
    parts = {MODEL: model, OPTIMIZER: state(optimizer), BATCH: int(example * scale)}
    return Memory(parts, *available(device), 1 if on_gpu(device) else ranks.local_size)


def state(optimizer):
    """Returns the number of bytes of an optimizer's state, in FP32: 1 array with momentum, 2 with Adam."""
    rule = optimizer.create_update_rule()
    param = chainer.Parameter(np.zeros(1, np.float32))
    rule._init_states(param)  # as the first update does
    arrays = sum(np.shape(value) == param.shape for value in (rule.state or {}).values())
    trained = [param for param in optimizer.target.params() if param.array is not None and param.requires_grad]
    return 4 * arrays * sum(param.size for param in trained)


def in_words(size):
    """Returns a number of bytes as text."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def held(device):
    """Returns the bytes in a device's memory held by this process, which :func:`available` leaves out."""
    return 0 if on_gpu(device) else resident_memory()


def available(device):
    """Returns the number of free bytes for a run on a device, and the name of the memory."""
    if not on_gpu(device):
        return available_on_host()
    import cupy

    free, total = device.device.mem_info
    with device.device:
        pooled = cupy.get_default_memory_pool().total_bytes()
    return free + pooled, f"GPU {device.device.id} ({in_words(total)} in all)"


def available_on_host():
    """Returns the same for this machine."""
    with open("/proc/meminfo") as lines:
        sizes = {name: int(value.split()[0]) << 10 for name, value in (line.split(":") for line in lines)}
    return sizes["MemAvailable"], f"this machine ({in_words(sizes['MemTotal'])} in all)"
