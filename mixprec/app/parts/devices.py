"""The device of a run: of several ranks each has a GPU for itself, or all of them compute on CPUs.

The training command asks :func:`choose` when it knows the config, before anything is built.
"""

from pathlib import Path

from chainer import backend

from mixprec.app.config import ConfigError
from mixprec.app.parts import gpus

_BOOT = Path("/proc/sys/kernel/random/boot_id")  # one for a machine, whatever its name is, and its containers


def choose(path, config, ranks):
    """Finds the device of this rank.

    Args:
        path: of the config file, for messages.
        config: :class:`mixprec.app.config.Config`.
        ranks: of :mod:`mixprec.distributed.processes`.

    Returns:
        ``(device, reason)`` of :func:`mixprec.app.parts.gpus.resolve_device`.

    Raises:
        mixprec.base.messages.OneLineError: there is no such device, some ranks have a GPU and others have none, or two
            have the same; on all ranks :class:`mixprec.distributed.processes.Refused`, if there are several.
    """
    with ranks.together():
        device, reason = _resolved(path, config, ranks.local_rank)
        place = None if device == "@numpy" else (gpus.address_of(device), _BOOT.read_text())
    ranks.compare({"the device": device.partition(":")[0]})
    places = ranks.gather(place)
    with ranks.together():
        if device != "@numpy":
            _check_different(path, config.training.device, places)
    return device, reason


def on_gpu(device):
    """Whether a device of Chainer's is a GPU."""
    return isinstance(device, backend.GpuDevice)


def _resolved(path, config, local_rank):
    try:
        device, reason = gpus.resolve_device(config.training.device, local_rank)
    except ValueError as error:
        raise ConfigError(path, f"training.{error}") from error
    if config.capture.mode == "required" and device == "@numpy":
        raise ConfigError(path, f"'capture.mode' is 'required', which needs a GPU; the device is {reason}")
    return device, reason


def _check_different(path, wanted, places):
    """Makes sure that no two ranks have one GPU, on which NCCL does not work; a place is an address and a machine."""
    for rank, place in enumerate(places):
        first = places.index(place)
        if first != rank:
            raise ConfigError(
                path,
                f"'training.device' is '{wanted}': ranks {first} and {rank} have the same GPU, {place[0]}; start as "
                "many ranks on a machine as it has GPUs, with 'auto' or 'gpu'",
            )
