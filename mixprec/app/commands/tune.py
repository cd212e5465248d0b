"""``mixprec tune`` searches for the fastest engines of cuDNN, with more time than training takes; they stay on disk.

cuDNN compiles the engines of batch normalizations when it builds them, a second each, and a training run builds none.
This command tries ten for each operation, beside own kernels. Choices are kept in ``~/.cache/mixprec`` as they are
made, and training with ``cudnn.autotune: measure`` takes them from there.
"""

import contextlib
import dataclasses
import logging

from mixprec.app.commands.command_line import amount, failed, parser_of, whole
from mixprec.app.config import ConfigError
from mixprec.app.parts import gpus, networks
from mixprec.app.run import synthetic_run
from mixprec.backends.cudnn import settings
from mixprec.backends.cudnn.errors import BrokenDevice
from mixprec.base import cudnn_library
from mixprec.recipes.models import MODELS

_STEPS = 5  # the first calls of a converted model are traced, and differ from later ones
_log = logging.getLogger("mixprec")


def main(argv):
    """Runs the command; it prints a line for each choice and a last one about all.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        int: exit code: 0 if all is measured; 1 if an engine has broken the device (a second call leaves that one out);
        2 for bad input, or without a GPU or cuDNN. With 1 and 2 one line on standard error says why.
    """
    arguments = _parse(argv)
    try:
        config = synthetic_run.load(
            arguments.config,
            arch=arguments.arch,
            batch=arguments.batch,
            size=arguments.size,
            overrides=arguments.set,
        )
        network = networks.find(config.model, MODELS)
        specifier, device = gpus.resolve_device("auto")
        if specifier == "@numpy":
            raise ValueError(f"mixprec tune needs a GPU; found {device}")
        cudnn_library.load()
        settings.Settings(compile_seconds=arguments.seconds_per_operation)
    except (ConfigError, ValueError, cudnn_library.CudnnMissing) as error:
        return failed(error)
    size = config.data.size
    print(f"{config.model.arch}, batch {config.training.batch_size}, {size} x {size}, on {device}", flush=True)
    try:
        choices = search(config, network, specifier, arguments.seconds_per_operation)
    except BrokenDevice as error:
        return failed(error, 1)
    print(_summary(choices))
    return 0


def _parse(argv):
    description = (
        "Searches for the fastest engine of cuDNN for every operation of a training step, for later runs. "
        "If it is interrupted, the same call continues."
    )
    parser = parser_of("tune", description, "%(prog)s [OPTION ...]")
    config = "resnet50/nhwc_fused_batched.yaml"
    parser.add_path("--config", "FILE", "config of the training (default: %(default)s)", default=config)
    help = "another network than the config's: a name, or an import path, package.module:function"
    parser.add_argument("--arch", metavar="NAME", help=help)
    parser.add_argument("--batch", type=whole(1), metavar="N", help="another number of images in a batch")
    parser.add_argument("--size", type=whole(1), metavar="PIXELS", help="another height and width of the images")
    help = "to compile engines of an operation (default: %(default)g)"
    parser.add_argument("--seconds-per-operation", type=amount, default=40.0, metavar="S", help=help)
    parser.add_repeated("--set", "KEY=VALUE", "overrides a key of the config")
    return parser.parse_args(argv)


@dataclasses.dataclass
class Choice:
    """The choice for an operation.

    Attributes:
        what: short name of the operation, or of a computation with several implementations.
        name: name of the engine or the implementation.
        milliseconds: its time.
        first: milliseconds of the choice without measuring.
    """

    what: str
    name: str
    milliseconds: float
    first: float

    def __str__(self):
        gain = f"{1 - self.milliseconds / self.first:.0%}" if self.first > 0 else "0%"
        return f"{self.what}: {self.name}, {self.milliseconds:.4f} ms; unmeasured {self.first:.4f} ms, gain {gain}"


def search(config, network, specifier, seconds):
    """Runs training steps, which search each operation that was not searched with this much time before.

    A line about each choice is printed as it is made.

    Args:
        config: from :func:`mixprec.app.run.synthetic_run.load`; it is run without capture, and with measuring.
        network: callable that takes the number of classes and returns a Chainer link from images to logits.
        specifier: device specifier.
        seconds: time for compiling each operation, see :class:`mixprec.backends.cudnn.settings.Settings`.

    Returns:
        list of :class:`Choice`: the new choices.
    """
    config = dataclasses.replace(
        config,
        capture=dataclasses.replace(config.capture, mode="off"),
        cudnn=dataclasses.replace(config.cudnn, autotune="measure", compile_seconds=seconds, search_seconds=None),
    )
    with _watching() as choices:
        updater = synthetic_run.updater_of(config, network, specifier)
        for _ in range(_STEPS):
            updater.update()
    return choices


@contextlib.contextmanager
def _watching():
    handler = _Handler()
    level = _log.level
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield handler.choices
    finally:
        _log.setLevel(level)
        _log.removeHandler(handler)


class _Handler(logging.Handler):
    """Collects choices from the log of mixprec's cuDNN backend."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.choices = []

    def emit(self, record):
        choice = getattr(record, "choice", None)
        if choice is not None:
            self.choices.append(Choice(*choice))
            print(self.choices[-1], flush=True)


def _summary(choices):
    if not choices:
        return "nothing to do: everything was measured before, with as much time"
    taken, first = (sum(getattr(choice, name) for choice in choices) for name in ("milliseconds", "first"))
    return (
        f"{len(choices)} choices, kept in {settings.current().cache}: {taken:.3f} ms in all, each once; "
        f"unmeasured {first:.3f} ms"
    )
