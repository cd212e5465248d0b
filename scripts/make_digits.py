#!/usr/bin/env python
"""Writes scikit-learn's handwritten digits as JPEG files in ImageNet's folder layout: a small real data set."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

from mixprec.app.commands.command_line import Parser, one_line, path
from mixprec.base.messages import OneLineError
from mixprec.data.digits import make_digits


def main(argv=None):
    """Runs the script.

    Args:
        argv: its arguments; ``None`` for those of the process.

    Raises:
        SystemExit: it has not ended well; the reason is on standard error.
    """
    parser = Parser(description=__doc__)
    parser.add_argument(
        "--out", type=path("a folder"), default="data/digits", help="folder to make (default: %(default)s)"
    )
    parser.add_argument("--size", type=int, default=40, help="pixels a side, 32 to 4096 (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="replace a damaged set, or one of another size")
    args = parser.parse_args(argv)
    try:
        train, val, made = make_digits(args.out, size=args.size, force=args.force)
    except OneLineError as error:
        print(f"make_digits: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{one_line(args.out)}: {train} training and {val} validation images{'' if made else ', already there'}")


if __name__ == "__main__":
    sys.exit(command_process.run(main))
