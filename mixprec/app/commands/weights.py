"""``mixprec weights`` converts a file of weights from Chainer to PyTorch, or back."""

import chainer

from mixprec.app.commands.command_line import failed, one_line, parser_of
from mixprec.base import importing
from mixprec.base.declaration import IMPORT_PATH
from mixprec.base.messages import hint, nearest
from mixprec.export import weight_files
from mixprec.export.export_error import WeightsError
from mixprec.recipes.models import MODELS

_CLASSES = 1000  # a network is made with as many first; the file says how many there are


def main(argv, networks=MODELS):
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.
        networks: the networks that ``--arch`` may name, beside import paths, and that are tried without ``--arch``:
            a dict from name to a callable that takes the number of classes and returns a Chainer link.

    Returns:
        int: exit code: 0, or 2 for bad input (one line on standard error, nothing written).
    """
    arguments = _parse(argv, networks)
    try:
        print(one_line(_convert(arguments.source, arguments.out, arguments.arch, networks)))
    except WeightsError as error:
        return failed(error)
    return 0


def _parse(argv, networks):
    parser = parser_of(
        "weights",
        "Converts weights from Chainer to PyTorch, or back. The networks that come with mixprec have torchvision's "
        "names there.",
    )
    kinds = ".npz is Chainer's; .safetensors, .pt and .pth are PyTorch's"
    parser.add_path("source", "IN", f"file of weights; {kinds}", "a file")
    parser.add_path("out", "OUT", "file to write, of the other kind", "a file")
    parser.add_argument(
        "--arch",
        help=f"the network: {', '.join(networks)}, or an import path, package.module:function, which is called with "
        "the number of classes; default: the one of these that the file fits",
    )
    return parser.parse_args(argv)


def _convert(source, out, arch, networks):
    """Converts a file; returns a line for the user."""
    if weight_files.is_torchs(source) == weight_files.is_torchs(out):
        raise WeightsError(f"{source} and {out}: both are of the same kind; one of them must be .npz, Chainer's format")
    candidates = networks if arch is None else {arch: _find(arch, networks)}
    weights = weight_files.WeightFile(source)
    problems = []
    for name, make in candidates.items():
        try:
            network, loaded = _fill(weights, name, make)
        except WeightsError as error:
            problems.append(error)
            continue
        weight_files.write(out, network)
        return f"{out}: {loaded.tensors} tensors of {name} from {source}"
    if arch is not None:
        raise problems[0]
    raise WeightsError(
        f"{source}: its names and shapes match none of {', '.join(networks)}; give --arch "
        "package.module:function, which makes the network, or one of these to see what differs"
    )


def _fill(weights, name, make):
    """Makes a network with as many classes as the weights have, and loads them; returns both."""
    network = _make(name, make, _CLASSES)
    loaded = weights.load_into(network, _CLASSES)
    if loaded.head:
        network = _make(name, make, loaded.classes)
        loaded = weights.load_into(network)
    return network, loaded


def _find(arch, networks):
    if arch in networks:
        return networks[arch]
    module, colon, attribute = arch.partition(":")
    if not colon or not all(map(str.isidentifier, [*module.split("."), *attribute.split(".")])):
        allowed = f"allowed: {', '.join(networks)}, or an import path, package.module:function"
        raise WeightsError(f"--arch is {arch!r}; {allowed}{hint(IMPORT_PATH.near(arch) or nearest(arch, networks))}")
    try:
        return importing.load(module, attribute)
    except importing.ImportPathError as error:
        raise WeightsError(f"--arch is {arch!r}: {error}") from error


def _make(name, make, classes):
    called = f"--arch is {name!r}: called with the number of classes"
    try:
        network = make(classes)
    except (Exception, SystemExit) as error:
        raise WeightsError(f"{called} it raises {importing.described(error)}") from error
    if not isinstance(network, chainer.Link):
        raise WeightsError(f"{called} it returns {type(network).__name__}; wanted: a chainer.Link")
    return network
