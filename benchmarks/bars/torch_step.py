"""Training steps of PyTorch, on the CPU and on a GPU: eager, compiled, and as one CUDA graph.

The recipe is that of ``configs/resnet50/90ep.yaml``: momentum, weight decay of weights only, label smoothing. What a
script does beside it is left out: no loss is read, no accuracy is computed, no batch is copied into the buffers of a
graph, and the learning rate is a constant. Images are in the dtype of autocast, also in bfloat16, where those of the
script are float32. All of that is in PyTorch's favour.
"""

import gc

import numpy as np
import torch
from torch import nn

from benchmarks.bars import torch_resnet
from benchmarks.bars.timed_step import LR, Step, memory_of_process
from mixprec.base.process_limits import number_of_threads

CLASSES = 1000
MOMENTUM, WEIGHT_DECAY, SMOOTHING = 0.875, 1 / 32768, 0.1
_INIT_SCALE = 2.0**16
_STEPS = 3  # the first one compiles and makes what is made once
_GPU_STEPS = 5  # engines of cuDNN in the first one; "reduce-overhead" records in the second one and replays from then


def make(way, arch, specifier, batch, size):
    """Makes the step of a way to train on one batch of noise, and sets what PyTorch has for the whole process.

    On a CPU these are the threads: all that the process may have. On a GPU it is the device, cuDNN's search for the
    fastest engine (``cudnn.benchmark``, among all engines: PyTorch's default are the ten first), and TF32.

    Args:
        way: :class:`benchmarks.bars.pytorch_rows.PyTorchSettings`.
        arch: one of :data:`benchmarks.bars.pytorch_rows.ARCHS`.
        specifier: of the device, Chainer's: ``"@numpy"`` or ``"@cupy:0"``.
        batch: images in a batch.
        size: height and width of an image in pixels.

    Returns:
        :class:`CpuStep` or :class:`GpuStep`
    """
    device, kind = device_of(way, specifier), CpuStep if specifier == "@numpy" else GpuStep
    noise = torch.from_numpy(np.random.RandomState(0).normal(size=(batch, 3, size, size)))
    labels = torch.arange(batch, device=device) % CLASSES
    return kind(way, torch_resnet.network(arch, CLASSES).to(device), noise.to(device), labels)


def device_of(way, specifier):
    """Returns the device of a row, and sets all that :func:`make` says, and the seed."""
    torch.manual_seed(0)
    if specifier == "@numpy":
        torch.set_num_threads(number_of_threads())
        return torch.device("cpu")
    device = torch.device("cuda", int(specifier.rpartition(":")[2]))
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 0  # 0: no limit
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = way.tf32
    return device


class CpuStep(Step):
    """A step: forward under autocast, cross entropy, scaled backward, momentum SGD.

    Args:
        way: :class:`benchmarks.bars.pytorch_rows.PyTorchSettings`.
        network: module from images to logits, on the device; it is converted to the layout.
        images: tensor (N, 3, H, W) on the device; it is converted to precision and layout, as a loader would do it.
        labels: int64 tensor (N,) on the device.

    Attributes:
        network: what is trained.
        images: in the dtype and the layout in which the first convolution takes them.
        labels: of them.
        optimizer: ``torch.optim.SGD``.
        scaler: ``torch.amp.GradScaler``, which is active only for float16.
        loss: of the last step, float32 () on the device, or ``None``.
    """

    def __init__(self, way, network, images, labels):
        layout = torch.channels_last if way.channels_last else torch.contiguous_format
        network = network.to(memory_format=layout)
        self.images, self.labels = images.to(dtype=getattr(torch, way.precision), memory_format=layout), labels
        optimizer = _optimizer(network, way.fused)
        self._set(way, network, images.device.type, optimizer, lambda: self._model(self.images, self.labels))
        self._compile()

    @classmethod
    def of(cls, *arguments):
        """Returns a step on something else than images.

        Args:
            *arguments: settings, network, type of the device, optimizer, and a callable that returns the loss.
        """
        step = cls.__new__(cls)
        step._set(*arguments)
        return step

    def _set(self, way, network, device_type, optimizer, forward):
        self._way, self._device_type, self._is_warm, self._forward = way, device_type, False, forward
        self.network, self.optimizer, self.loss = network.train(), optimizer, None
        enabled = way.precision == "float16"
        self.scaler = torch.amp.GradScaler(device_type, init_scale=_INIT_SCALE, enabled=enabled)

    def __call__(self):
        self._train()

    def warm_up(self):
        """Runs steps the first time only: nothing is given back in between."""
        if not self._is_warm:
            self._run(_STEPS)
        self._is_warm = True

    def peak(self):
        return memory_of_process()

    def _compile(self):
        self._model = _WithLoss(self.network)
        if self._way.compile is not None:
            self._model = torch.compile(self._model, mode=self._way.compile, fullgraph=True, dynamic=False)

    def _run(self, steps):
        for _ in range(steps):
            self._train()

    def _train(self):
        half = self._way.precision != "float32"
        dtype = getattr(torch, self._way.precision) if half else None
        with torch.autocast(self._device_type, dtype=dtype, enabled=half):
            loss = self._forward()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = loss.detach()


class GpuStep(CpuStep):
    """The same on a GPU, where it may be one CUDA graph, loss scaling included.

    With fused SGD the whole step of float16 can be captured. PyTorch's notes on CUDA graphs leave the optimizer eager
    under a ``GradScaler``, because ``step`` reads on the host whether there was an overflow. It does not for an
    optimizer with ``_step_supports_amp_scaling``, as fused SGD is: the kernel gets the flag as a tensor, ``update``
    changes the scale in place, and nothing waits for the device (torch/amp/grad_scaler.py and torch/optim/sgd.py of
    2.13). Scale and momenta have to be there before a capture, or each replay would begin anew.

    Arguments and attributes are those of :class:`CpuStep`.
    """

    def _set(self, way, *others):
        super()._set(way, *others)
        self._graph = None
        self._stream = torch.cuda.Stream() if way.graph else None

    def __call__(self):
        if self._graph is None:
            self._train()
        else:
            self._graph.replay()

    def warm_up(self):
        """Runs steps until engines are chosen, code is compiled and memory is held; captures the graph."""
        if self._stream is None:
            self._run(_GPU_STEPS)
        elif self._graph is None:
            self._capture()
            self()

    def synchronize(self):
        torch.cuda.synchronize()

    def release(self):
        """Drops graphs, too: they have memory of their own."""
        self.synchronize()
        self.loss = None
        if self._graph is not None:
            self._graph.reset()
            self._graph = None
        if self._way.compile == "reduce-overhead":
            # Its graphs hold memory as long as the compiled code, and no public function drops them alone. What was
            # generated stays on disk; the rest of compiling, which warm_up does again, takes some ten seconds.
            torch.compiler.reset()
            self._compile()
            gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def peak(self):
        return torch.cuda.max_memory_reserved()

    def _capture(self):
        """As in PyTorch's notes on CUDA graphs: first steps on a stream that is not the default one, then a capture."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._run(_GPU_STEPS)
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):  # the stream that cuBLAS has its workspace for by now
            self._train()
        self._graph = graph

    def _train(self):
        if self._way.compile == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()  # what the last step has returned may be overwritten
        super()._train()


class _WithLoss(nn.Module):
    """The loss is compiled with the network."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images, labels):
        return nn.functional.cross_entropy(self.network(images), labels, label_smoothing=SMOOTHING)


def _optimizer(network, fused):
    """Returns SGD with weight decay on weights, none on biases and batch normalization, and momenta that are 0.

    Where the first step overflows, fused SGD would skip it, and leave momenta behind that were never written.
    """
    params = list(network.parameters())
    groups = [
        {"params": [param for param in params if param.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [param for param in params if param.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=LR, momentum=MOMENTUM, fused=fused or None)  # None: PyTorch's own choice
    for param in params:
        optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param)
    return optimizer
