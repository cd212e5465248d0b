"""When each gradient of a network is there during the backward pass, by the roofline of its layers."""

import dataclasses
import math

from benchmarks.roofline.levels import kernels
from benchmarks.roofline.limit import seconds_of

LEVEL = "nhwc-fused"  # what mixprec computes, see benchmarks/roofline/levels.py
_GRADIENTS = ("convolution_wgrad", "linear_wgrad", "linear_bias", "convolution_bias", "batch_normalization_backward")


@dataclasses.dataclass(frozen=True)
class Gradient:
    """Gradients that one kernel has made.

    Attributes:
        ready: seconds after the beginning of the backward pass.
        size: number of them.
        dtype: name of the dtype of their parameters.
    """

    ready: float
    size: int
    dtype: str


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A training step of one GPU.

    Attributes:
        forward: seconds of the forward pass.
        backward: seconds of the backward pass.
        update: seconds of the update.
        gradients: tuple of :class:`Gradient`, in the order in which they are ready.
    """

    forward: float
    backward: float
    update: float
    gradients: tuple[Gradient, ...]

    @property
    def seconds(self):
        """Of the whole step."""
        return self.forward + self.backward + self.update

    def lasting(self, seconds):
        """Returns the same step with all times in proportion, so that it takes so many seconds."""
        factor = seconds / self.seconds
        gradients = tuple(dataclasses.replace(each, ready=each.ready * factor) for each in self.gradients)
        return Timeline(self.forward * factor, self.backward * factor, self.update * factor, gradients)


def timeline(network, dtype, batch, rates, level=LEVEL):
    """Returns the :class:`Timeline` of a training step, each kernel at its roofline.

    Args:
        network: :class:`~benchmarks.roofline.network_layers.Network`.
        dtype: name of the dtype of activations and weights, ``"float32"`` or ``"float16"``.
        batch: images in a batch.
        rates: :class:`~benchmarks.rates.Rates` of the GPU.
        level: one of :data:`benchmarks.roofline.levels.LEVELS`.
    """
    seconds, part, gradients = {"forward": 0.0, "backward": 0.0, "update": 0.0}, "forward", []
    for kernel in kernels(network, level, dtype, batch):
        if kernel.kind == "loss_backward":
            part = "backward"
        elif kernel.kind == "update":
            part = "update"
        seconds[part] += seconds_of(kernel, dtype, rates, share=0.7, gap=1e-6)
        if kernel.kind in _GRADIENTS:
            layer = network.layers[kernel.layer]
            gradients.append(Gradient(seconds["backward"], *_parameters(layer, kernel.kind, dtype)))
    return Timeline(*seconds.values(), tuple(gradients))


def _parameters(layer, kind, dtype):
    """Number and dtype of the parameters whose gradients a kernel makes."""
    if kind.endswith("_wgrad"):
        return math.prod(layer.filters), dtype
    channels = layer.outputs[0][0]
    return channels if kind.endswith("_bias") else 2 * channels, "float32"
