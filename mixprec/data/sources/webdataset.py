"""WebDataset shards: tar archives in which the files of a sample follow each other and share their name up to a dot.

A sample is an image (``000000012.jpg``) and its label in decimal digits (``000000012.cls``); other files are ignored.
See https://github.com/webdataset/webdataset.
"""

import itertools
import operator
import os
import re
import tarfile

from mixprec.base.archives import Damaged, reading
from mixprec.base.files import open_regular
from mixprec.base.messages import counted
from mixprec.data.data_error import DataError, printable
from mixprec.data.sources.classes import label_problem
from mixprec.data.sources.shard_index import ShardIndex

SUFFIX = ".tar"
END = bytes(2 * tarfile.BLOCKSIZE)

# Extensions of the formats that image_problem reads.
_IMAGES = frozenset(("bmp", "jp2", "jpeg", "jpg", "pbm", "pgm", "png", "pnm", "ppm", "tif", "tiff", "webp"))
_EXTENSIONS = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG", "png"),
    (b"BM", "bmp"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"RIFF", "webp"),
    (b"\0\0\0\x0cjP", "jp2"),
    (b"\xff\x4f\xff\x51", "jp2"),
    (b"P", "ppm"),
)

_LONGEST_LABEL = 32  # bytes


def encode(number, image, label, name):
    """Returns the bytes of one sample, and a function from its offset in the shard to its line in DALI's index.

    Its key is ``<number>-<stem of name>``: it is unique and shows the image's origin. The headers hold no times or
    owners.

    Args:
        number (int): Number of the sample in the whole set.
        image (bytes): The encoded image; the content determines its extension.
        label (int): >= 0.
        name (str): Name of the image's file.
    """
    stem = re.sub(r"[^A-Za-z0-9_-]", "_", os.path.splitext(name)[0])[:60]
    key = f"{number:09}-{stem}"
    extension = next((suffix for start, suffix in _EXTENSIONS if image.startswith(start)), "jpg")
    parts, fields, offset = [], [], 0
    for suffix, content in ((extension, image), ("cls", str(label).encode())):
        header = tarfile.TarInfo(f"{key}.{suffix}")
        header.size = len(content)
        parts += [header.tobuf(tarfile.USTAR_FORMAT), content, bytes(-len(content) % tarfile.BLOCKSIZE)]
        fields.append((suffix, offset + tarfile.BLOCKSIZE, len(content), header.name))
        offset = sum(map(len, parts))
    return b"".join(parts), lambda start: " ".join(
        f"{suffix} {start + offset} {size} {name}" for suffix, offset, size, name in fields
    )


def index_text(lines):
    """Returns the content of DALI's index file: the ``v1.2`` format of its ``wds2idx``."""
    return "".join((f"v1.2 {len(lines)}\n", *(f"{line}\n" for line in lines)))


def read_index(path):
    """Returns the :class:`ShardIndex` of a shard, without reading its images.

    In the lines for DALI every image has the extension ``jpg``, whatever it is: DALI looks at the content.

    Raises:
        DataError: It is not a tar archive, or truncated, or empty.
        OSError: It cannot be read.
    """
    samples = []
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise DataError(f"{printable(path)}: the file is empty")
        members = ((*_split(member.name), member) for member in _members(path, file, size))
        visible = (each for each in members if each[0] and not each[0].endswith("/"))
        for key, group in itertools.groupby(visible, key=operator.itemgetter(0)):
            samples.append(_sample(file, key, [(extension, member) for _, extension, member in group]))
    return ShardIndex.of(samples)


def damage(path, line):
    """Returns None: a tar archive has no checksums of its contents; decoding the image is the only check."""
    del path, line


def _members(path, file, size):
    """The regular files of an archive. Unlike :mod:`tarfile` it does not mistake damage for the end."""
    try:
        with reading(), tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if member.offset_data + member.size > size:
                    raise DataError(f"{printable(path)}: truncated: {printable(member.name)} is incomplete")
                if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
                    yield member
            end = archive.offset
    except Damaged as error:
        raise DataError(f"{printable(path)}: not an intact, uncompressed tar archive ({error})") from error
    file.seek(end)
    block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise DataError(f"{printable(path)}: truncated: the blocks that end an archive are missing")
    if any(block):
        raise DataError(f"{printable(path)}: damaged at byte {end}: not the header of a file")


def _split(name):
    """Key and extension, divided by the first dot in the file's name."""
    dot = name.find(".", name.rfind("/") + 1)
    return (name, "") if dot < 0 else (name[:dot], name[dot + 1 :].lower())


def _sample(file, key, components):
    """A tuple for :meth:`ShardIndex.of`."""
    images = [member for extension, member in components if extension in _IMAGES]
    labels = [member for extension, member in components if extension == "cls"]
    if len(images) != 1 or len(labels) != 1:
        counts = f"{counted(len(images), 'image')} and {counted(len(labels), 'label')} (.cls)"
        return key, None, components[0][1].offset_data, 0, "", f"a sample of {counts}; must be one of each"
    image, cls = images[0], labels[0]
    file.seek(cls.offset_data)
    text = file.read(min(cls.size, _LONGEST_LABEL))
    is_number = re.fullmatch(rb"\s*[+-]?[0-9]+\s*", text) and cls.size <= _LONGEST_LABEL
    label = int(text) if is_number else None
    said = text.decode("utf-8", "replace")
    problem = label_problem(label) if is_number else f"its label (.cls) is {said!r}; must be a number"
    # DALI splits lines at spaces, and its messages are split at colons; the names are for messages only.
    line = " ".join(
        f"{extension} {member.offset_data} {member.size} {re.sub(r'[^!-9;-~]', '_', member.name)}"
        for extension, member in (("jpg", image), ("cls", cls))
    )
    return image.name, label, image.offset_data, image.size, line, problem
