"""The memory that a run will take, estimated before anything is trained, and the memory of the machine.

:mod:`mixprec.training.needs` calls it, before the network is tried and in a dry run.
"""

import collections
import dataclasses
import math

import chainer
import numpy as np
from chainer import backend, links

from mixprec.activation_memory.budget import check_budget, in_bytes
from mixprec.backends.host_memory import host_memory
from mixprec.dtypes import is_half
from mixprec.native.native_library import library
from mixprec.training.model import EXAMPLE
from mixprec.training.stages import largest_stage

# So many arrays of the size of the largest activation are there for a time: its gradient and the one that follows from
# it, the one of the other branch of a residual block, and one more. On NumPy they are FP32.
_ON_THE_WAY = 4
_IN_EVALUATION = 3  # so many are there without a backward pass: a layer's input and output, and the other branch
_FEW = 4  # batches, of which a larger number is the user's wish
_COLUMNS = 24 << 20  # what a convolution on NumPy unfolds at a time, and what it computes from that
_COPIES_COMPARED = 3  # of weights, masters and states, while a graph is compared with an eager step: docs/capture.md


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the memory of a run.

    Attributes:
        name: what it is.
        size: number of bytes.
        key: key of the config that it grows with, or ``None``.
        when: ``""`` for what is always there, or ``"training"`` or ``"evaluation"``, which take turns.
        images: number of images that it is for, if it grows with them.
    """

    name: str
    size: int
    key: str | None
    when: str = ""
    images: int | None = None


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory that a run needs, and the memory of the machine.

    Attributes:
        parts: list of :class:`Part`.
        available: number of bytes that are free, and could be taken.
        where: whose memory it is.
        ranks: number of processes that train together, each of which needs so much.
        sharing: number of those that share this memory.
    """

    parts: tuple
    available: int
    where: str
    ranks: int = 1
    sharing: int = 1

    @property
    def largest(self):
        """The largest of the parts that are there when most is needed, of the key on which most of it depends."""
        sizes = collections.Counter()
        for part in self.together:
            sizes[part.key] += part.size
        del sizes[None]
        (key, _), *_ = sizes.most_common()
        return max((part for part in self.together if part.key == key), key=lambda part: part.size)

    @property
    def needed(self):
        """Number of bytes that the parts are together."""
        return sum(part.size for part in self.together)

    @property
    def together(self):
        """The parts that are there when most is needed."""
        turns = [[part for part in self.parts if part.when in ("", turn)] for turn in ("training", "evaluation")]
        return max(turns, key=lambda parts: sum(part.size for part in parts))

    def __str__(self):
        lines = [f"memory of {self.where}, estimated" + (", for each rank" if self.ranks > 1 else "")]
        for when, title in (("", ""), ("training", "  in training"), ("evaluation", "  in the evaluation")):
            parts = [part for part in self.parts if part.when == when]
            lines += [title] if title and parts else []
            lines += [f"  {'  ' * bool(title) + part.name:42}{in_words(part.size):>10}" for part in parts]
        all_of_them = f", {self.sharing} ranks {in_words(self.sharing * self.needed)}," if self.sharing > 1 else ""
        free = f"of {in_words(self.available)} that are free"
        return "\n".join([*lines, f"  needs about {in_words(self.needed)}{all_of_them} {free}"])


def memory(config, trainer, report, images, val_images=0, ranks=None):
    """Estimates the memory of a run.

    It counts arrays; what the pool of a GPU loses between them, CUDA's own memory, and that of DALI's decoder are not
    in it.

    Args:
        config: :class:`mixprec.config.Config`.
        trainer: from :func:`mixprec.training.trainer.build_trainer`.
        report: of the conversion, from an example of :data:`~mixprec.training.model.EXAMPLE` images.
        images: number of training images.
        val_images: number of validation images; 0 if there is no evaluation.
        ranks: of :mod:`mixprec.training.processes`; ``None`` for one process.

    Returns:
        Memory
    """
    device, optimizer = trainer.updater.device, trainer.updater.get_optimizer("main")
    stage, on_gpu = largest_stage(config), isinstance(device, backend.GpuDevice)
    batch, scale = stage.batch_size, (stage.size / config.data.size) ** 2  # to that of the example
    params = [param for param in optimizer.target.params() if param.array is not None]
    rounded = [param for param in params if param.dtype != np.float32]  # copies of FP32 masters
    weights, masters = report.parameter_bytes[1], 4 * sum(param.size for param in rounded)
    states = state(optimizer)
    wide = 1 if on_gpu or config.precision.compute == "float32" else 2
    blocks = trainer.updater.blocks
    kept = int((report.activation_bytes[1] if blocks is None else blocks.kept_with) * batch * scale) // EXAMPLE
    on_the_way = int(_ON_THE_WAY * wide * report.largest_activation_bytes * batch * scale) // EXAMPLE
    arch = "model.arch"
    parts = [
        Part("weights and statistics", weights, arch),
        Part("FP32 masters", masters, arch),
        Part("optimizer state", states, "optimizer.name"),
        Part("gradients", sum(param.array.nbytes for param in params if param.requires_grad), arch),
        Part("matrices of K-FAC", 4 * 4 * curvature(optimizer), "optimizer.preconditioner"),
    ]
    size, sharing = (1, 1) if ranks is None else (ranks.size, 1 if on_gpu else ranks.local_size)
    if size > 1:
        parts.append(Part("gradients between ranks", _packed(params, config.precision.allreduce, on_gpu), arch))
    if config.training.ema_decay is not None:
        parts.append(Part("moving average of the weights", average(trainer), "training.ema_decay"))
    if on_gpu:
        parts.append(Part("workspace of cuDNN", config.cudnn.workspace_mib << 20, "cudnn.workspace_mib"))
        if config.capture.mode != "off":
            graphs = _graphs(config, images, kept + on_the_way, weights + masters + states)
            parts.append(Part("graphs", graphs, "capture.mode"))
    else:
        parts.append(Part("copies of weights", sum(param.array.nbytes for param in rounded), arch))
        if library() is None:
            parts.append(Part("unfolded images", _COLUMNS, None))
        else:
            parts.append(Part("packed filters", 4 * max(param.size for param in params), arch))
    parts += _batches(config, stage.size, batch)
    per_batch = {"key": "training.batch_size", "when": "training", "images": batch}
    if blocks is not None:
        parts.append(
            Part("the block that is computed again", int(blocks.largest * batch * scale) // EXAMPLE, **per_batch)
        )
    parts.append(Part("gradients of activations, temporary arrays", on_the_way, **per_batch))
    kept = min(kept, _left(config, device, sum(part.size for part in parts)))
    parts.append(Part("activations kept for the backward pass", kept, **per_batch))
    if val_images:
        parts += _evaluation(
            config, min(config.training.batch_size, val_images), wide * report.largest_activation_bytes, on_gpu
        )
    return Memory(tuple(part for part in parts if part.size), *available(device), size, sharing)


def _left(config, device, size):
    """Returns what ``memory.budget`` leaves for activations beside so many bytes; they wait elsewhere otherwise."""
    budget = config.memory.budget
    if budget is None:
        return math.inf
    total = device.device.mem_info[1] if isinstance(device, backend.GpuDevice) else host_memory()
    return max(0, in_bytes(check_budget(budget), total) - size)


def _packed(params, dtype_of_sum, on_gpu):
    """The places where gradients are packed, and sums in another dtype of those in 16 bits."""
    size = sum(param.array.nbytes for param in params)
    for param in params:
        if is_half(param.dtype):
            summed_in = np.dtype(dtype_of_sum or (param.dtype if on_gpu else np.float32))
            size += 0 if summed_in == param.dtype else summed_in.itemsize * param.size
    return size


def _evaluation(config, batch, largest, on_gpu):
    """The additional memory of an evaluation: nothing is kept for a backward pass."""
    size = config.data.val_size or config.data.size
    # A graph of the evaluation has its memory for itself, at any time.
    when = "" if on_gpu and config.capture.mode != "off" and config.capture.evaluation else "evaluation"
    arrays = _IN_EVALUATION * largest * batch * size**2 // (EXAMPLE * config.data.size**2)
    key = "data.val_size" if size > config.data.size else "training.batch_size"
    ahead = (config.data.prefetch + 1) * batch * _image(config, size)
    return [
        Part("activations, temporary arrays", arrays, key, when, batch),
        Part(
            "batches of validation images", ahead, "data.prefetch" if config.data.prefetch > _FEW else key, when, batch
        ),
    ]


def average(trainer):
    """Returns the number of bytes of a moving average of the weights, which is FP32."""
    params = trainer.updater.get_optimizer("main").target.params()
    return 4 * sum(param.size for param in params if param.array is not None)


def in_words(size):
    """Returns a number of bytes as text."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def state(optimizer):
    """Returns the number of bytes of an optimizer's state, which is FP32: 1 array with momentum, 2 of Adam."""
    rule = optimizer.create_update_rule()
    param = chainer.Parameter(np.zeros(1, np.float32))
    rule._init_states(param)  # as the first update does
    arrays = sum(np.shape(value) == param.shape for value in (rule.state or {}).values())
    trained = [param for param in optimizer.target.params() if param.array is not None and param.requires_grad]
    return 4 * arrays * sum(param.size for param in trained)


def curvature(optimizer):
    """Returns the number of elements of K-FAC's second moments; there are four arrays of each size, see its layers."""
    if optimizer.preconditioner is None:
        return 0
    elements = 0
    for link in optimizer.target.links():
        if isinstance(link, (links.Convolution2D, links.Linear)) and link.W.array is not None:
            groups = getattr(link, "groups", 1)
            filters, inputs = len(link.W.array), link.W.size // len(link.W.array)
            sizes = inputs + (link.b is not None), filters // groups
            if max(sizes) <= optimizer.preconditioner.largest:
                elements += groups * sum(size**2 for size in sizes)
    return elements


def _batches(config, size, batch):
    """The batches of a step, all of which are there at once, and those that are made ahead."""
    made, accumulated = config.data.prefetch, config.training.accumulation_steps
    image = _image(config, size) * batch
    mixed = image * accumulated if config.training.mixup or config.training.cutmix else 0
    return [
        Part(f"batches made ahead, {made}", made * image, _the(made > _FEW, "data.prefetch"), images=made * batch),
        Part(
            "mixed images",
            mixed,
            _the(accumulated > _FEW, "training.accumulation_steps"),
            images=accumulated * batch,
        ),
        Part(
            f"batches of a step, {accumulated}",
            accumulated * image,
            _the(accumulated > _FEW, "training.accumulation_steps"),
            images=accumulated * batch,
        ),
    ]


def _the(is_cause, key):
    return key if is_cause else "training.batch_size"


def _image(config, size):
    channels, itemsize = 4 if config.data.pad_channels else 3, 2 if config.precision.compute == "float16" else 4
    return channels * itemsize * size**2


def _graphs(config, images, activations, state):
    """The copies to compare with, and the graph of the last, smaller batch of an epoch, whose memory is its own."""
    batch_size = largest_stage(config).batch_size
    size, rest = _COPIES_COMPARED * state, images % batch_size
    if rest and config.data.last_batch == "partial" and config.capture.dynamic_shapes == "capture":
        size += activations * rest // batch_size
    return size


def available(device):
    """Returns the number of bytes that are free for a run on a device, and whose memory it is, in words."""
    if not isinstance(device, backend.GpuDevice):
        return available_on_host()
    import cupy

    free, total = device.device.mem_info
    with device.device:
        held = cupy.get_default_memory_pool().total_bytes()
    return free + held, f"GPU {device.device.id} ({in_words(total)} in all)"


def available_on_host():
    """Returns the same of this machine."""
    with open("/proc/meminfo") as lines:
        sizes = {name: int(value.split()[0]) << 10 for name, value in (line.split(":") for line in lines)}
    return sizes["MemAvailable"], f"this machine ({in_words(sizes['MemTotal'])} in all)"
