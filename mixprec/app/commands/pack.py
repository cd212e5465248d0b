"""``mixprec pack`` packs images into TFRecord or WebDataset shards, shuffled once, or verifies shards."""

import sys

from mixprec.app.commands.command_line import failed, one_line, parser_of
from mixprec.base import interruption
from mixprec.base.messages import OneLineError, counted
from mixprec.data.sources.opening import FORMATS, open_images
from mixprec.data.sources.packing import SKIPPED, pack, verify
from mixprec.data.sources.shards import FORMATS as WRITTEN


def main(argv):
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        int: exit code: 0; 2 for bad input or a disk that cannot be written, with one line on standard error; 130:
        Ctrl-C. Finished shards are kept, and the same call continues from there.
    """
    arguments = _parse(argv)
    try:
        if arguments.verify is not None:
            images, shards = verify(arguments.verify)
            found = f"{counted(images, 'image')} in {counted(shards, 'shard')}"
            print(f"{one_line(arguments.verify)}: {found} are as they were packed")
        else:
            _pack(arguments)
    except OneLineError as error:
        return failed(error)
    except KeyboardInterrupt:
        print("interrupted; the same call continues after the finished shards", file=sys.stderr)
        return interruption.INTERRUPTED
    return 0


def _parse(argv):
    description = "Packs images into TFRecord or WebDataset shards, shuffled once; or verifies shards."
    usage = "%(prog)s (--source PATH --out DIR --format FORMAT [OPTION ...] | --verify DIR)"
    parser = parser_of("pack", description, usage)
    parser.add_path("--source", "PATH", "folder of class folders, list, or folder of shards", "a folder or a list")
    parser.add_path("--out", "DIR", "folder to make; after a kill, the same call continues")
    parser.add_argument("--format", choices=sorted(WRITTEN), metavar="FORMAT", help=" or ".join(sorted(WRITTEN)))
    formats, help = ("auto", *FORMATS), f"%(default)s (default), {', '.join(FORMATS)}"
    parser.add_argument("--source-format", choices=formats, metavar="FORMAT", default="auto", help=help)
    parser.add_path("--root", "DIR", "of the paths in a list (default: the list's folder)")
    parser.add_argument(
        "--shard-mib", metavar="MIB", type=float, default=256.0, help="approximate size of a shard (default: 256)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of the images (default: %(default)s)")
    help = f"bad images: stop (default), or skip and list them in {SKIPPED}"
    parser.add_argument("--on-error", choices=("stop", "skip"), default="stop", help=help)
    parser.add_path("--verify", "DIR", "check every shard, and decode every image")
    arguments = parser.parse_args(argv)
    if arguments.verify is None:
        missing = [f"--{name}" for name in ("source", "out", "format") if getattr(arguments, name) is None]
        if missing:
            parser.error(f"{', '.join(missing)} must be given, or --verify")
    elif arguments.source or arguments.out or arguments.format:
        parser.error("--verify goes with nothing else")
    return arguments


def _pack(arguments):
    source = open_images(arguments.source, arguments.source_format, arguments.root, arguments.on_error)
    manifest, made = pack(
        source, arguments.out, form=arguments.format, shard_mib=arguments.shard_mib, seed=arguments.seed
    )
    shards, out = manifest["shards"].values(), one_line(arguments.out)
    print(
        f"{out}: {counted(manifest['images'], 'image')} of {counted(len(manifest['classes']), 'class', 'classes')} in "
        f"{counted(len(shards), 'shard')}, "
        f"{sum(shard['bytes'] for shard in shards) / 2**20:.0f} MiB{'' if made else ', already there'}"
    )
    if source.skipped:
        print(f"{out}: left out {counted(len(source.skipped), 'bad image')}: {SKIPPED}")
