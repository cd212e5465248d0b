"""How much memory a run will take, estimated before anything is trained, and how much there is."""

import dataclasses

import chainer
import numpy as np
from chainer import backend

from mixprec.training.model import EXAMPLE

# So many arrays of the size of the largest activation are there for a time: its gradient and the one that follows from
# it, the one of the other branch of a residual block, and one more. On NumPy they are FP32.
_ON_THE_WAY = 4
_COLUMNS = 24 << 20  # what a convolution on NumPy unfolds at a time, and what it computes from that
_COPIES_COMPARED = 3  # of weights, masters and states, while a graph is compared with an eager step: docs/capture.md


@dataclasses.dataclass(frozen=True)
class Memory:
    """What a run needs, and what there is.

    Attributes:
        parts: pairs of a name and a number of bytes.
        available: number of bytes that are free, and could be taken.
        where: whose memory it is.
    """

    parts: tuple
    available: int
    where: str

    @property
    def needed(self):
        """Number of bytes that the parts are together."""
        return sum(size for _, size in self.parts)

    def __str__(self):
        lines = [f"memory of {self.where}, estimated"]
        lines += [f"  {name:42}{in_words(size):>10}" for name, size in self.parts]
        return "\n".join([*lines, f"  needs about {in_words(self.needed)} of {in_words(self.available)} that are free"])


def memory(config, trainer, report, images):
    """Estimates the memory of a training run.

    It counts arrays; what the pool of a GPU loses between them, CUDA's own memory, and that of DALI's decoder are not
    in it. Evaluation keeps nothing for a backward pass, and is taken to need no more.

    Args:
        config: :class:`mixprec.config.Config`.
        trainer: from :func:`mixprec.training.trainer.build_trainer`.
        report: of the conversion, from an example of :data:`~mixprec.training.model.EXAMPLE` images.
        images: number of training images.

    Returns:
        Memory
    """
    device, optimizer = trainer.updater.device, trainer.updater.get_optimizer("main")
    params = [param for param in optimizer.target.params() if param.array is not None]
    elements = sum(param.size for param in params)
    rounded = [param for param in params if param.dtype != np.float32]  # copies of FP32 masters
    weights, masters = report.parameter_bytes[1], 4 * sum(param.size for param in rounded)
    states = 4 * elements * _states(optimizer)
    activations = report.activation_bytes[1] * config.training.batch_size // EXAMPLE
    largest = report.largest_activation_bytes * config.training.batch_size // EXAMPLE
    on_the_way = _ON_THE_WAY * largest
    if not isinstance(device, backend.GpuDevice) and config.precision.compute != "float32":
        on_the_way *= 2
    parts = {
        "weights and statistics": weights,
        "FP32 masters": masters,
        "optimizer state": states,
        "gradients": sum(param.array.nbytes for param in params),
        "activations kept for the backward pass": activations,
        "gradients of activations, temporary arrays": on_the_way,
        f"batches, {config.data.prefetch} of them made ahead": _batches(config),
    }
    if config.training.ema_decay is not None:
        parts["moving average of the weights"] = average(trainer)
    if isinstance(device, backend.GpuDevice):
        parts["workspace of cuDNN"] = config.cudnn.workspace_mib << 20
        if config.capture.mode != "off":
            parts["graphs"] = _graphs(config, images, activations + on_the_way, weights + masters + states)
    else:
        parts["copies of weights, unfolded images"] = sum(param.array.nbytes for param in rounded) + _COLUMNS
    return Memory(tuple((name, size) for name, size in parts.items() if size), *_available(device))


def average(trainer):
    """Returns the number of bytes of a moving average of the weights, which is FP32."""
    params = trainer.updater.get_optimizer("main").target.params()
    return 4 * sum(param.size for param in params if param.array is not None)


def in_words(size):
    """Returns a number of bytes as text."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def _states(optimizer):
    """How many arrays of its size the rule keeps for a parameter: 1 with momentum, 2 of Adam."""
    rule = optimizer.create_update_rule()
    param = chainer.Parameter(np.zeros(1, np.float32))
    rule._init_states(param)  # as the first update does
    return sum(np.size(state) for state in (rule.state or {}).values() if isinstance(state, np.ndarray))


def _batches(config):
    channels, itemsize = 4 if config.data.pad_channels else 3, 2 if config.precision.compute == "float16" else 4
    image = channels * itemsize * config.data.size**2
    return (config.data.prefetch + config.training.accumulate) * config.training.batch_size * image


def _graphs(config, images, activations, state):
    """The copies to compare with, and the graph of the last, smaller batch of an epoch, whose memory is its own."""
    size, rest = _COPIES_COMPARED * state, images % config.training.batch_size
    if rest and config.data.last_batch == "partial" and config.capture.other_shapes == "capture":
        size += activations * rest // config.training.batch_size
    return size


def _available(device):
    if isinstance(device, backend.GpuDevice):
        import cupy

        free, total = device.device.mem_info
        with device.device:
            held = cupy.get_default_memory_pool().total_bytes()
        return free + held, f"GPU {device.device.id} ({in_words(total)} in all)"
    with open("/proc/meminfo") as lines:
        sizes = {name: int(value.split()[0]) << 10 for name, value in (line.split(":") for line in lines)}
    return sizes["MemAvailable"], f"this machine ({in_words(sizes['MemTotal'])} in all)"
