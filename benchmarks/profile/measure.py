"""Measures a profile: the steps of a config, on NumPy or on a GPU."""

import dataclasses
import statistics

import chainer

from benchmarks import compared_optimizers, gpu
from benchmarks.profile.clocks import DeviceClock, HostClock
from benchmarks.profile.profile_rows import profile_of
from benchmarks.profile.spans import Spans
from benchmarks.profile.timed_calls import watching
from mixprec.app.run import synthetic_run
from mixprec.backends import launcher_of, primitives_of

_WARM_UP = 5  # the first calls of a converted model are looked at, and engines of cuDNN chosen
_SKIPPED = 30  # steps in which a dynamic loss scale finds out how large it may be


def measure(config, network, specifier, rates, *, steps=5):
    """Profiles training steps of a config on one synthetic batch; they are eager, whatever it says of capture.

    On NumPy what the profile itself does between the calls is in the time of the step, and not in the rows. On a GPU
    each call is timed by events on a device that does not wait for the host, see
    :class:`~benchmarks.profile.clocks.DeviceClock`; a call that waits for the device itself, as Chainer's own
    update does for some loss scales, ends that lead, and is then timed with the host's gaps.

    Args:
        config: from :func:`mixprec.app.run.synthetic_run.load`.
        network: callable that takes the number of classes and returns a Chainer link from images to logits.
        specifier: of the device, ``"@numpy"`` or such as ``"@cupy:0"``.
        rates: :class:`~benchmarks.rates.Rates` of the device, for floors.
        steps: number of steps to be watched; one more is run before.

    Returns:
        Profile
    """
    config = dataclasses.replace(config, capture=dataclasses.replace(config.capture, mode="off"))
    updater = synthetic_run.updater_of(config, network, specifier)
    device = chainer.get_device(specifier)
    for _ in range(_WARM_UP):
        updater.update()
    optimizer = updater.get_optimizer("main")
    for _ in range(_SKIPPED):
        if not optimizer.last_step_skipped:
            break
        updater.update()
    eager = statistics.median(_seconds(device, updater.update) for _ in range(steps))
    array = next(optimizer.target.params()).array
    on_gpu = isinstance(device, chainer.backend.GpuDevice)
    spans = Spans(clock := DeviceClock(device.xp.cuda, launcher_of(array)) if on_gpu else HostClock())
    with watching(spans, optimizer, primitives_of(array), rates, tf32=config.cudnn.allow_tf32):
        for number in range(1 + steps):
            if number == 1:  # the first one finds out for how long a device has to be held back
                clock.late = 0
                spans.steps.clear()
            with spans.step():
                updater.update()
    return profile_of(spans.steps, eager, clock.late)


def _seconds(device, step):
    if isinstance(device, chainer.backend.GpuDevice):
        return gpu.seconds(device, step, steps=1)
    return compared_optimizers.seconds(step)
