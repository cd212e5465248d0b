"""The user's settings of cuDNN, for all devices and threads of the process."""

import dataclasses
import os
import threading

import chainer

from mixprec.base import files
from mixprec.base.bounds import DAY, MIB

AUTOTUNE = ("off", "heuristic", "measure")


def default_cache():
    """Returns the cache folder."""
    return str(files.cache_folder())


def folder(name):
    """Returns a subfolder of the current settings' cache folder, or ``None`` if nothing is to be stored."""
    cache = current().cache
    return None if cache is None else os.path.join(cache, name)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of cuDNN. A plan is built for one of these, so that they are a part of its key.

    Attributes:
        autotune: choice among engines that build and fit. ``"off"``: the first of cuDNN's fast heuristic A;
            ``"heuristic"``: the first of the slower heuristic B; ``"measure"``: the fastest of the engines of A, B and
            the fallbacks, timed on the device. If a heuristic has none, the first of the fallbacks.
        workspace: limit of the temporary memory of an engine, in bytes.
        deterministic: whether to use only engines that give the same bits each time.
        tf32: whether convolutions of float32 may round their inputs to TF32, 10 bits instead of 23.
        tensor_cores: whether engines may use Tensor cores.
        cache: folder for measured choices and compiled engines, or ``None`` to keep them in the process only.
        compile_seconds: limit of the time that a search spends on engines of an operation that are compiled when they
            are built, beyond the first. Engines of batch normalizations are, each in about a second; with 0 own kernels
            are used for these. A choice that was made in less time is made again.
        search_seconds: limit of the time of all searches of the process together, ``None`` for no limit. After that,
            unknown choices are made as with ``"heuristic"``.
    """

    autotune: str = "heuristic"
    workspace: int = 512 * 2**20
    deterministic: bool = False
    tf32: bool = False
    tensor_cores: bool = True
    cache: str | None = dataclasses.field(default_factory=default_cache)
    compile_seconds: float = 0.0
    search_seconds: float | None = None

    def __post_init__(self):
        if self.autotune not in AUTOTUNE:
            raise ValueError(f"autotune: found {self.autotune!r}, expected one of {', '.join(map(repr, AUTOTUNE))}")
        if type(self.workspace) is not int or not 0 <= self.workspace <= MIB << 20:
            raise ValueError(
                f"workspace: found {self.workspace!r}, expected a number of bytes, an int >= 0 and <= {MIB << 20}"
            )
        for name, or_none in (("compile_seconds", ""), ("search_seconds", ", or None")):
            value = getattr(self, name)
            if or_none and value is None:
                continue
            if type(value) not in (int, float) or not 0 <= value <= DAY:
                raise ValueError(f"{name}: found {value!r}, expected a number from 0 to {DAY}{or_none}")
        for name in ("deterministic", "tf32", "tensor_cores"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name}: found {getattr(self, name)!r}, expected True or False")
        if self.cache is not None:
            if not isinstance(self.cache, str | os.PathLike) or not os.fspath(self.cache):
                raise ValueError(f"cache: found {self.cache!r}, expected the path of a folder, or None")
            object.__setattr__(self, "cache", os.fspath(self.cache))

    @property
    def restrictions(self):
        """The settings that, beside the operation, determine the available engines, as text."""
        cores = "" if self.tensor_cores else ", tensor_cores=False"
        return f"deterministic={self.deterministic}, tf32={self.tf32}, workspace={self.workspace}{cores}"


_of_thread = chainer.config._local
_lock = threading.Lock()
_variants = {}  # by Chainer's (autotune, cudnn_deterministic, use_cudnn_tensor_core)
_CORES = {"never": {"tensor_cores": False}, "auto": {}, "always": {"tf32": True}}


def configure(**changes):
    """Changes settings from now on; plans for other settings stay, and serve these.

    Args:
        **changes: attributes of :class:`Settings`; ``cache`` may be any path.

    Raises:
        TypeError: a name is not a setting.
        ValueError: a value is not allowed; nothing has changed.
    """
    global _variants
    with _lock:
        base = dataclasses.replace(_variants[False, False, "auto"], **changes) if _variants else Settings(**changes)
        # Replaced as a whole, so that readers need no lock.
        _variants = {
            (measure, deterministic, cores): dataclasses.replace(
                base,
                autotune="measure" if measure else base.autotune,
                deterministic=deterministic or base.deterministic,
                **of_cores,
            )
            for measure in (False, True)
            for deterministic in (False, True)
            for cores, of_cores in _CORES.items()
        }


def current():
    """Returns the :class:`Settings` that hold now, in this thread.

    Chainer's own switches count too: ``chainer.config.autotune`` means ``autotune="measure"``, and
    ``chainer.config.cudnn_deterministic`` means ``deterministic=True``; ``chainer.config.use_cudnn_tensor_core`` means
    ``tensor_cores=False`` if it is ``"never"``, and ``tf32=True`` if it is ``"always"``, as in Chainer's own cuDNN.

    Raises:
        ValueError: ``chainer.config.use_cudnn_tensor_core`` is none of these and not ``"auto"``.
    """
    # The same as chainer.config.autotune, in a tenth of the time: every primitive of a step comes through here.
    everywhere, here = vars(chainer.global_config), vars(_of_thread)
    cores = here.get("use_cudnn_tensor_core", everywhere["use_cudnn_tensor_core"])
    try:
        return _variants[
            bool(here.get("autotune", everywhere["autotune"])),
            bool(here.get("cudnn_deterministic", everywhere["cudnn_deterministic"])),
            cores,
        ]
    except KeyError:
        expected = "expected 'always', 'auto' or 'never'"
        raise ValueError(f"chainer.config.use_cudnn_tensor_core: found {cores!r}, {expected}") from None


configure()
