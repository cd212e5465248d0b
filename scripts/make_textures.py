#!/usr/bin/env python
"""Writes pictures of textured shapes among clutter as JPEG files in ImageNet's folder layout and size."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

from mixprec.app.commands.command_line import Parser, one_line, path
from mixprec.base.messages import OneLineError
from mixprec.data.textures import make_textures


def main(argv=None):
    """Runs the script.

    Args:
        argv: its arguments; ``None`` for those of the process.

    Raises:
        SystemExit: it has not ended well; the reason is on standard error.
    """
    parser = Parser(description=__doc__)
    parser.add_argument(
        "--out", type=path("a folder"), default="data/textures", help="folder to make (default: %(default)s)"
    )
    parser.add_argument(
        "--images", type=int, default=10000, help="number of pictures, 100 to 10000000 (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="another one gives other pictures (default: %(default)s)")
    parser.add_argument("--side", type=int, help="pixels of the shorter side, 16 to 320 (default: 330 to 420)")
    parser.add_argument("--force", action="store_true", help="replace a damaged set, or one of other parameters")
    args = parser.parse_args(argv)
    try:
        train, val, made = make_textures(args.out, images=args.images, seed=args.seed, side=args.side, force=args.force)
    except OneLineError as error:
        print(f"make_textures: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("make_textures: interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    print(f"{one_line(args.out)}: {train} training and {val} validation images{'' if made else ', already there'}")


if __name__ == "__main__":
    sys.exit(command_process.run(main))
