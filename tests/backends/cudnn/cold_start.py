"""The operations for which the first steps of a training run want an engine of cuDNN, counted without a GPU.

A ResNet-50 asks for them, in the default arithmetic, on the stand-in that takes notes.
"""

import contextlib
import dataclasses

from benchmarks.recording_device import null_device
from benchmarks.step import counts
from mixprec.app.run import synthetic_run
from models import MODELS

IMAGES = 2  # of a batch; where a shape begins with it, it is the batch size


def asked(autotune, capability=90, batch=256, size=224):
    """Returns the operations for which the first steps want an engine, each once, in the order in which they ask."""
    found = {}

    class Context(null_device.CudnnContext):
        def supports(self, operation):
            is_there = super().supports(operation)
            if is_there:
                found.setdefault(operation)
            return is_there

        def plan(self, operation):
            found.setdefault(operation)
            return super().plan(operation)

        def measures(self):
            return autotune == "measure"

        def choose(self, key, candidates):
            return candidates[0][0]

    config = synthetic_run.load("nhwc_fused_batched.yaml", arch="resnet50", batch=IMAGES, size=size, overrides=[])
    config = dataclasses.replace(config, cudnn=dataclasses.replace(config.cudnn, autotune=autotune))
    Context.capability = capability
    with _installed(Context):
        counts.count(config, MODELS["resnet50"])
    return [_of_batch(operation, batch) for operation in found]


@contextlib.contextmanager
def _installed(context):
    before, null_device.CudnnContext = null_device.CudnnContext, context
    try:
        yield
    finally:
        null_device.CudnnContext = before


def _of_batch(operation, batch):
    def tensors(each):
        return tuple(
            tensor._replace(shape=(batch, *tensor.shape[1:])) if tensor.shape[0] == IMAGES else tensor
            for tensor in each
        )

    return dataclasses.replace(operation, inputs=tensors(operation.inputs), outputs=tensors(operation.outputs))
