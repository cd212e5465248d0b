"""``mixprec convert-report`` converts any model that can be imported, and prints the report."""

import ast
from typing import NamedTuple

import chainer
import numpy as np

from mixprec.app.commands.command_line import add_choice, failed, parser_of
from mixprec.base import files, importing
from mixprec.base.declaration import IMPORT_PATH
from mixprec.base.messages import OneLineError, hint, nearest, reworded
from mixprec.base.name_patterns import UnknownName
from mixprec.base.vocabulary import DTYPE_SYNONYMS, DTYPES, LAYOUT_SYNONYMS, LAYOUTS, meant
from mixprec.precision.policy import Policy
from mixprec.recipes.models import MODELS
from mixprec.rewrite.convert import convert
from mixprec.rewrite.example import describe

_DTYPES = ("float32", "float16", "float64", "int32", "int64", "int8", "uint8", "bool")
_INPUT = "2x3x224x224"  # two images: batch normalization of a single row has nothing to normalize


class CommandError(OneLineError):
    """Bad input, in one line."""


class Target(NamedTuple):
    """What a user wrote as MODEL.

    Attributes:
        module: dotted name of a module.
        attribute: dotted name in it.
        arguments: positional arguments of the call, ``None`` if there are no parentheses.
        keywords: keyword arguments of the call.
    """

    module: str
    attribute: str
    arguments: tuple | None
    keywords: dict


def main(argv, networks=MODELS):
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.
        networks: the named networks, beside import paths: a dict from name to a callable that returns a Chainer
            link.

    Returns:
        int: exit code: 0; 1 if something stayed as it was with ``--strict``; 2 for bad input (one line on standard
        error).
    """
    arguments = _parse(argv)
    try:
        report = _report(arguments, networks)
        print(report)
        if arguments.json:
            _write(arguments.json, report.to_json() + "\n")
    except OneLineError as error:
        return failed(error)
    if arguments.strict and report.unconverted:
        return failed(f"--strict: not converted: {'; '.join(report.unconverted)}", 1)
    return 0


def parse_model(text, known=()):
    """Reads ``module:callable``, ``module:callable(arguments)`` or ``module:link``.

    Args:
        text: arguments are Python literals, as in ``chainer.links:VGG16Layers(pretrained_model=None)``.
        known: names of networks, of which the message suggests the nearest.

    Returns:
        Target

    Raises:
        CommandError: it reads otherwise.
    """
    module, colon, expression = text.partition(":")
    try:
        node = ast.parse(expression.strip(), mode="eval").body
        arguments, keywords = None, {}
        if isinstance(node, ast.Call):
            arguments = tuple(map(ast.literal_eval, node.args))
            keywords = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
            node = node.func
        attribute = ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
    except (SyntaxError, ValueError):
        attribute = ""
    names = [*module.split("."), *attribute.split(".")]
    if not (colon and all(map(str.isidentifier, names))) or None in keywords:
        near = IMPORT_PATH.near(text) or nearest(text, known)
        raise CommandError(
            "MODEL must be module:callable or module:callable(arguments), with Python literals for arguments, or the "
            f"name of a network that comes with mixprec, such as resnet50; found {text!r}{hint(near)}"
        )
    return Target(module, attribute, arguments, keywords)


def parse_input(text):
    """Reads ``SHAPE[:DTYPE]``, such as ``2x3x224x224`` or ``4x20:int32``, and makes an array of it.

    Args:
        text: sizes of at least 1 with ``x`` between them, and the name of a dtype, without one ``float32``.

    Returns:
        numpy.ndarray: numbers of a normal distribution, always the same, in a floating dtype; otherwise zeros.

    Raises:
        CommandError: it reads otherwise.
    """
    sizes, colon, dtype = text.partition(":")
    shape = [int(size) if size.isdecimal() else 0 for size in sizes.split("x")]
    dtype = dtype if colon else "float32"
    dtype = meant(dtype, _DTYPES, DTYPE_SYNONYMS)
    if min(shape) < 1 or dtype not in _DTYPES:
        raise CommandError(
            f"--input must be SHAPE[:DTYPE], such as 2x3x224x224 or 4x20:int32, with one of {', '.join(_DTYPES)}; "
            f"found {text!r}"
        )
    if np.dtype(dtype).kind == "f":
        return np.random.RandomState(0).normal(size=shape).astype(dtype)
    return np.zeros(shape, dtype)


def load_model(target):
    """Imports and builds the model.

    Args:
        target: :class:`Target`.

    Returns:
        chainer.Link

    Raises:
        OneLineError: there is none, or what belongs to the user raised.
    """
    found = importing.load(target.module, target.attribute)
    written = f"{target.module}:{target.attribute}"
    if target.arguments is not None or not isinstance(found, chainer.Link):
        if not callable(found):
            raise CommandError(f"{written} must be a chainer.Link or make one; found {type(found).__name__}")
        try:
            found = found(*target.arguments or (), **target.keywords)
        except (Exception, SystemExit) as error:
            raise CommandError(f"{written} cannot be called: {importing.described(error)}") from error
        if not isinstance(found, chainer.Link):
            raise CommandError(f"{written} must return a chainer.Link; found {type(found).__name__}")
    return found


def _parse(argv):
    description = "Prints what mixprec.convert does to a model."
    parser = parser_of("convert-report", description, "%(prog)s [OPTION ...] MODEL")
    help = "a network that comes with mixprec, such as resnet50, or module:callable, or with arguments: "
    parser.add_argument("model", metavar="MODEL", help=f"{help}'chainer.links:VGG16Layers(pretrained_model=None)'")
    help = f"of the model's input, such as 4x20:int32; default {_INPUT}; one for each argument"
    parser.add_repeated("--input", "SHAPE[:DTYPE]", help)
    help = "float16 (default), bfloat16 or float32"
    add_choice(parser, "--compute", DTYPES, DTYPE_SYNONYMS, default="float16", metavar="DTYPE", help=help)
    help = "default: nhwc; nchw fuses nothing"
    add_choice(parser, "--layout", LAYOUTS, LAYOUT_SYNONYMS, default="nhwc", help=help)
    parser.add_argument(
        "--no-fuse", dest="fuse", action="store_const", const=False, help="do not fuse batch normalizations"
    )
    parser.add_repeated("--keep-float32", "PATTERN", "links that stay in float32, such as /fc or '/head/*'")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if anything is not converted")
    parser.add_path("--json", "FILE", "also write the report to this file")
    return parser.parse_args(argv)


def _report(arguments, networks):
    try:
        Policy(arguments.compute, arguments.layout, arguments.fuse)
    except ValueError as error:
        raise CommandError(str(error)) from error
    example = tuple(map(parse_input, arguments.input or [_INPUT]))
    name = arguments.model
    model = networks[name]() if name in networks else load_model(parse_model(name, networks))
    try:
        return convert(
            model,
            example[0] if len(example) == 1 else example,
            compute=arguments.compute,
            layout=arguments.layout,
            fuse=arguments.fuse,
            keep_float32=arguments.keep_float32,
        )
    except UnknownName as error:
        raise CommandError(str(error)) from error
    except Exception as error:
        called = f"{type(model).__name__} called on {describe(example)}"
        raise CommandError(f"{called}: {importing.described(error)}") from error


def _write(path, text):
    with reworded(lambda reason: CommandError(f"cannot write {path}: {reason}")):
        files.write_text(path, text)
