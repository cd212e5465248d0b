"""The search for cuDNN's engines with more time than a training run takes for it; its choices stay on disk."""

import contextlib
import dataclasses
import logging

from benchmarks import configured

_STEPS = 5  # the first calls of a converted model are looked at, and differ from those after them
_log = logging.getLogger("mixprec")


@dataclasses.dataclass
class Choice:
    """What was chosen for an operation.

    Attributes:
        what: the operation, or what there are several ways to, in short.
        name: of the engine or the way.
        milliseconds: that it takes.
        first: milliseconds of what would have been taken without measuring.
    """

    what: str
    name: str
    milliseconds: float
    first: float

    def __str__(self):
        gain = f"{1 - self.milliseconds / self.first:.0%}" if self.first > 0 else "0%"
        return f"{self.what}: {self.name}, {self.milliseconds:.4f} ms; unmeasured {self.first:.4f} ms, gain {gain}"


def tune(config, network, specifier, seconds, say=print):
    """Runs training steps, in which each operation is searched that has not been yet with so much time.

    Args:
        config: from :func:`benchmarks.configured.load`; it is run without capture, and with measuring.
        network: callable that takes the number of classes and returns a Chainer link from images to logits.
        specifier: of the device.
        seconds: of compiling, for each operation, see :class:`mixprec.backends.cudnn.settings.Settings`.
        say: called with a line for each :class:`Choice` as it is made.

    Returns:
        list of :class:`Choice`: those that were made now.
    """
    config = dataclasses.replace(
        config,
        capture=dataclasses.replace(config.capture, mode="off"),
        cudnn=dataclasses.replace(config.cudnn, autotune="measure", compile_seconds=seconds, search_seconds=None),
    )
    with _watching(say) as choices:
        updater = configured.updater_of(config, network, specifier)
        for _ in range(_STEPS):
            updater.update()
    return choices


@contextlib.contextmanager
def _watching(say):
    handler = _Handler(say)
    level = _log.level
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield handler.choices
    finally:
        _log.setLevel(level)
        _log.removeHandler(handler)


class _Handler(logging.Handler):
    """Takes choices from what cuDNN's part of mixprec logs."""

    def __init__(self, say):
        super().__init__(logging.INFO)
        self._say = say
        self.choices = []

    def emit(self, record):
        choice = getattr(record, "choice", None)
        if choice is not None:
            self.choices.append(Choice(*choice))
            self._say(str(self.choices[-1]))
