"""The device of a run: several ranks have one GPU each, or all of them compute on CPUs.

The training command calls :func:`choose` when it knows the config, before anything is built.
"""

import contextlib
from pathlib import Path

from chainer import backend

from mixprec.app.config import ConfigError
from mixprec.app.parts import gpus

_BOOT = Path("/proc/sys/kernel/random/boot_id")  # unique for a machine, and shared by its containers


def choose(config, ranks, placed=contextlib.nullcontext):
    """Finds the device of this rank.

    Args:
        config: :class:`mixprec.app.config.Config`.
        ranks: from :mod:`mixprec.distributed.processes`.
        placed: returns the context that puts the location before the key in errors.

    Returns:
        ``(device, reason)`` of :func:`mixprec.app.parts.gpus.resolve_device`.

    Raises:
        mixprec.base.messages.OneLineError: there is no such device, only some ranks have a GPU, or two ranks have the
            same; with several ranks all get :class:`mixprec.distributed.processes.Refused`.
    """
    with ranks.together(), placed():
        device, reason = _resolved(config, ranks.local_rank)
        address = None if device == "@numpy" else (gpus.address_of(device), _BOOT.read_text())
    ranks.compare({"the device": device.partition(":")[0]})
    addresses = ranks.gather(address)
    with ranks.together(), placed():
        if device != "@numpy":
            _check_different(config.training.device, addresses)
    return device, reason


def on_gpu(device):
    """Whether a device of Chainer's is a GPU."""
    return isinstance(device, backend.GpuDevice)


def _resolved(config, local_rank):
    try:
        device, reason = gpus.resolve_device(config.training.device, local_rank)
    except ValueError as error:
        raise ConfigError(f"'training.device' is {str(error).removeprefix('device: found ')}") from error
    if config.capture.mode == "required" and device == "@numpy":
        raise ConfigError(f"'capture.mode' is 'required', which needs a GPU; the device is {reason}")
    return device, reason


def _check_different(wanted, addresses):
    """Raises an error if two ranks share a GPU, which NCCL does not support: two equal pairs (address, machine)."""
    for rank, address in enumerate(addresses):
        first = addresses.index(address)
        if first != rank:
            raise ConfigError(
                f"'training.device' is '{wanted}': ranks {first} and {rank} have the same GPU, {address[0]}; start as "
                "many ranks on a machine as it has GPUs, with 'auto' or 'gpu'"
            )
