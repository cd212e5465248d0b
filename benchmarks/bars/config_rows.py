"""The rows of mixprec: the training script with the configs after NVIDIA's 2018 talk, in other precisions, and changed.

Only the learning rate is another one, see :data:`benchmarks.bars.timed_step.LR`.
"""

import dataclasses
import functools

import chainer

from benchmarks.bars.chainer_step import step_of
from benchmarks.bars.row_worker import BenchmarkRow
from benchmarks.bars.timed_step import LR
from mixprec.app.run import synthetic_run

TALK = ("fp32.yaml", "fp16.yaml", "dali.yaml", "nhwc_fused_batched.yaml", "static_graph.yaml")
ALL = "static_graph.yaml"  # everything on
_TINY_STEPS = [f"optimizer.lr={LR}", "optimizer.base_batch_size=null"]
_PRECISIONS = {
    "bfloat16": ["precision.compute=bfloat16", "loss_scale.mode=none"],
    "float32": ["precision.compute=float32", "loss_scale.mode=none"],
    "TF32": ["precision.compute=float32", "loss_scale.mode=none", "cudnn.allow_tf32=true"],
}
_WITHOUT = {
    "layout nchw, no fusion": ["model.memory_format=nchw", "model.fuse=false"],
    "no fusion": ["model.fuse=false"],
    "no batched update, no graph": ["update.fused=false", "capture.mode=off"],  # which alone can be captured
    "no graph": ["capture.mode=off"],
    "no autotuning": ["cudnn.autotune=heuristic"],  # engines by rule
    "no autotuning, no graph": ["cudnn.autotune=heuristic", "capture.mode=off"],
    "no loss scale": ["loss_scale.mode=none"],
}

_WITH = {
    "second stream": ["capture.second_stream=true"],
    "no autotuning, second stream": ["cudnn.autotune=heuristic", "capture.second_stream=true"],
    "30 s of search": ["cudnn.search_seconds=30"],
}
# Everything is on, and only engines or streams are chosen in another way
WHOLE = (ALL, *(f"{ALL}, {name}" for name in ("no autotuning", *_WITH)))

# (name, group, file, overrides) of each row
WAYS = (
    *((file, "config", file, []) for file in TALK),
    *((f"{ALL}, {name}", "precision", ALL, keys) for name, keys in _PRECISIONS.items()),
    *((f"{ALL}, {name}", "ablation", ALL, keys) for name, keys in (_WITHOUT | _WITH).items()),
)


def bars(specifier, *, arch, batch, size):
    """Returns the list of :class:`~benchmarks.bars.row_worker.BenchmarkRow`: five whole configs, then one key changed.

    Args:
        specifier: of the device.
        arch: name of the network.
        batch: images in a batch.
        size: height and width of an image in pixels.
    """

    def bar(name, group, file, overrides):
        config = synthetic_run.load(file, arch=arch, batch=batch, size=size, overrides=[*_TINY_STEPS, *overrides])
        make = functools.partial(_step, file, tuple(overrides))
        return BenchmarkRow(name, make, group=group, key=_same(config, specifier))

    return [bar(*way) for way in WAYS]


def _same(config, specifier):
    """Returns what makes a step on synthetic data: two configs with equal results do the same on the device."""
    parts = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    parts["data"] = config.data.size, config.data.pad_channels
    if specifier == "@numpy":
        parts |= {"capture": None, "cudnn": None}  # there is no graph, and no cuDNN
    return str(parts)


def _step(file, overrides, task):
    """Makes the step of the training script for a config."""
    own = [*_TINY_STEPS, *overrides]
    config = synthetic_run.load(file, arch=task.arch, batch=task.batch, size=task.size, overrides=own)
    updater = synthetic_run.updater_of(config, task.network, task.specifier)
    captured = None if config.capture.mode == "off" else updater.step
    model = updater.get_optimizer("main").target

    def forget():  # Chainer's classifier holds them, and all activations with them, until the next step
        model.y = model.loss = model.accuracy = None

    return step_of(chainer.get_device(task.specifier), updater.update, captured, forget)
