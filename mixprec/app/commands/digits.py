"""``mixprec digits`` writes the handwritten digits that come with mixprec as JPEG files: a small real data set."""

from mixprec.app.commands.command_line import failed, one_line, parser_of
from mixprec.base.messages import OneLineError
from mixprec.data import digit_images


def main(argv):
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        int: exit code: 0; 2 for bad input (one line on standard error, and the folder is as it was).
    """
    parser = parser_of(
        "digits",
        "Writes 1,797 handwritten digits as JPEG files in ImageNet's folder layout, FOLDER/train/DIGIT and "
        "FOLDER/val/DIGIT: a small real data set, which comes with mixprec.",
    )
    default = digit_images.FOLDER
    parser.add_path("folder", "FOLDER", f"folder to make (default: {default})", nargs="?")
    parser.add_path("--out", "FOLDER", "the same as FOLDER")
    parser.add_argument("--size", type=int, default=40, help="pixels per side, 32 to 4096 (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="replace a damaged set, or one of another size")
    arguments = parser.parse_args(argv)
    if arguments.folder is not None and arguments.out is not None:
        parser.error("argument --out: the folder is given already")
    out = arguments.folder or arguments.out or default
    try:
        train, val, made = digit_images.make_digits(out, size=arguments.size, force=arguments.force)
    except OneLineError as error:
        return failed(error)
    print(f"{one_line(out)}: {train} training and {val} validation images{'' if made else ', already there'}")
    return 0
