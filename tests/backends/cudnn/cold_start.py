"""What the first steps of a training run build and measure, counted without a GPU.

    PYTHONPATH=. python tests/backends/cudnn/cold_start.py

The operations are those of a ResNet-50 in the default arithmetic on the stand-in that takes notes. Their engines are
built for an H200 that is described by a file, where `make test-plans` has installed cuDNN. That says how long building
takes on this machine's processor. What measuring takes only a GPU can say.
"""

import contextlib
import dataclasses
import pathlib
import sys
import tempfile
import time

from benchmarks import configured
from benchmarks.recording_device import null_device
from benchmarks.step import counts
from mixprec.backends.cudnn.engines import Engines
from mixprec.backends.cudnn.search import built
from mixprec.backends.cudnn.settings import Settings
from models import MODELS
from tests.stand_ins import deviceless_cudnn

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

    config = configured.load("nhwc_fused_batched.yaml", arch="resnet50", batch=IMAGES, size=size, overrides=[])
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


def main():
    with tempfile.TemporaryDirectory() as folder:
        cudnn = deviceless_cudnn.load(deviceless_cudnn.compile_driver(pathlib.Path(folder)))
    print(f"cuDNN {cudnn.backend_version_string()}, a ResNet-50 at batch 256 in float16 on an H200")
    for autotune in ("off", "heuristic", "measure"):
        operations, engines, compiled, seconds = asked(autotune), 0, 0, time.monotonic()
        for operation in operations:
            of_operation = Engines(
                cudnn, operation, Settings(autotune), **deviceless_cudnn.arguments_for(cudnn, "H200")
            )
            names = list(built(of_operation, 0.0)) if autotune == "measure" else [next(of_operation.usable())]
            engines += len(names)
            compiled += sum(map(of_operation.is_compiled, names))
        seconds = time.monotonic() - seconds
        kinds = sorted({operation.kind for operation in operations})
        print(
            f"{autotune}: {len(operations)} operations ({', '.join(kinds)}); {engines} engines are built in "
            f"{seconds:.1f} s, {compiled} of them compiled; {engines if autotune == 'measure' else 0} are timed"
        )


if __name__ == "__main__":
    sys.exit(main())
