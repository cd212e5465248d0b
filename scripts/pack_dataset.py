#!/usr/bin/env python
"""Packs images into TFRecord or WebDataset shards, shuffled once; or verifies what was packed."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

from mixprec.app.commands.command_line import Parser, one_line, path
from mixprec.base.messages import OneLineError
from mixprec.data.sources.opening import open_images
from mixprec.data.sources.pack import SKIPPED, pack, verify


def main(argv=None):
    """Runs the script.

    Args:
        argv: its arguments; ``None`` for those of the process.

    Raises:
        SystemExit: it has not ended well; the reason is on standard error.
    """
    parser = Parser(description=__doc__)
    parser.add_argument(
        "--source", type=path("a folder or a list"), help="folder of class folders, list of files, or folder of shards"
    )
    parser.add_argument(
        "--out", type=path("a folder"), help="folder to make; the same call goes on where one that was killed stopped"
    )
    parser.add_argument("--format", choices=("webdataset", "tfrecord"), help="of the shards that are written")
    parser.add_argument(
        "--source-format",
        choices=("auto", "folders", "list", "tfrecord", "webdataset"),
        default="auto",
        help="of what is read; auto looks (default: %(default)s)",
    )
    parser.add_argument(
        "--root",
        type=path("a folder"),
        help="folder that the paths in a list are relative to (default: that of the list)",
    )
    parser.add_argument("--shard-mib", type=float, default=256.0, help="about so many MiB a shard (default: 256)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the images (default: %(default)s)")
    parser.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help=f"what to do with a bad image: name it and stop, or leave it out and list it in {SKIPPED} "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--verify",
        type=path("a folder"),
        metavar="DIR",
        help="compare every shard with the manifest; decode every image",
    )
    args = parser.parse_args(argv)
    if args.verify is None:
        missing = [f"--{name}" for name in ("source", "out", "format") if getattr(args, name) is None]
        if missing:
            parser.error(f"{', '.join(missing)} must be given, or --verify")
    elif args.source or args.out or args.format:
        parser.error("--verify goes with nothing else")
    try:
        if args.verify is not None:
            images, shards = verify(args.verify)
            print(f"{one_line(args.verify)}: {images} images in {shards} shards are as they were packed")
        else:
            _pack(args)
    except OneLineError as error:
        print(f"pack_dataset: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("pack_dataset: interrupted; the same call goes on from what is finished", file=sys.stderr)
        sys.exit(130)


def _pack(args):
    source = open_images(args.source, args.source_format, args.root, args.on_error)
    manifest, made = pack(source, args.out, form=args.format, shard_mib=args.shard_mib, seed=args.seed)
    shards, out = manifest["shards"].values(), one_line(args.out)
    print(
        f"{out}: {manifest['images']} images of {len(manifest['classes'])} classes in {len(shards)} shards, "
        f"{sum(shard['bytes'] for shard in shards) / 2**20:.0f} MiB{'' if made else ', already there'}"
    )
    if source.skipped:
        print(f"{out}: {len(source.skipped)} bad images were left out: {SKIPPED}")


if __name__ == "__main__":
    sys.exit(command_process.run(main))
