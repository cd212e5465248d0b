"""``mixprec info``: versions, what this machine offers, and what is missing."""

import dataclasses
import json
import platform

from mixprec.app.commands.command_line import failed, parser_of
from mixprec.app.parts import environment, gpus


def main(argv):
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        int: exit code: 0; 1 if the list of replacements was asked for and Chainer, which it is about, cannot be
        imported; one line on standard error says why.
    """
    parser = parser_of("info", "Shows versions, what this machine offers, and what is missing.")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--patches", action="store_true", help="list everything that mixprec replaces in Chainer")
    group.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    if arguments.patches:
        return _patches()
    print(_json() if arguments.json else environment.report())
    return 0


def _json():
    machine = {"host": platform.node(), "system": platform.platform(), "CPU": environment.cpu()}
    components = [dataclasses.asdict(row) for row in environment.components()]
    return json.dumps({"machine": machine, "components": components}, indent=2)


def _patches():
    try:
        from mixprec import patches
    except Exception as error:
        return failed(f"the list needs Chainer: {gpus.short(error)}", 1)
    print(patches.report())
    return 0
