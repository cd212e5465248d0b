"""TFRecord files of ``tf.train.Example`` messages with an image and its label, read and written without TensorFlow.

A record is framed by its length (uint64, little-endian), the masked CRC-32C of these 8 bytes, and, after the data, the
masked CRC-32C of the data (tensorflow/core/lib/io/record_writer.h). The data are a message in the wire format of
Protocol Buffers, defined in tensorflow/core/example/{example,feature}.proto::

    Example { Features features = 1; }      Features { map<string, Feature> feature = 1; }
    Feature { oneof { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    BytesList { repeated bytes value = 1; } Int64List { repeated int64 value = 1 [packed]; }
"""

import os
import struct

from mixprec.base.files import open_regular
from mixprec.data.data_error import DataError, printable
from mixprec.data.sources.classes import label_problem
from mixprec.data.sources.crc32c import crc32c
from mixprec.data.sources.shard_index import ShardIndex

SUFFIX = ".tfrecord"
END = b""

# The names of TensorFlow's ImageNet scripts, which DALI's examples use, too.
IMAGE, LABEL, NAME = "image/encoded", "image/class/label", "image/filename"

_VARINT, _FIXED64, _SPAN, _FIXED32 = 0, 1, 2, 5
_PAGE = 512


def encode(number, image, label, name):
    """Returns the bytes of one record, and a function from its offset in the shard to its line in DALI's index.

    Args:
        number (int): Not used; records have no keys.
        image (bytes): The encoded image.
        label (int): >= 0; counts from 0, while TensorFlow's own ImageNet files count from 1.
        name (str): Name of the image's file.
    """
    features = (
        (NAME, _field(1, _field(1, name.encode("utf-8", "replace")))),
        (LABEL, _field(3, _field(1, _varint(label)))),
        (IMAGE, _field(1, _field(1, image))),
    )
    entries = b"".join(_field(1, _field(1, key.encode()) + _field(2, feature)) for key, feature in features)
    data = _field(1, entries)
    length = struct.pack("<Q", len(data))
    record = b"".join((length, struct.pack("<I", masked_crc(length)), data, struct.pack("<I", masked_crc(data))))
    return record, lambda offset: f"{offset} {len(record)}"


def index_text(lines):
    """Returns the content of DALI's index file: the ``tfrecord2idx`` format, a line ``offset size`` for each record."""
    return "".join(f"{line}\n" for line in lines)


def read_index(path):
    """Returns the :class:`ShardIndex` of a file, without reading its images.

    Raises:
        DataError: It is not a TFRecord file, or truncated, or empty.
        OSError: It cannot be read.
    """
    samples = []
    with open_regular(path) as file:
        end = os.fstat(file.fileno()).st_size
        if end == 0:
            raise DataError(f"{printable(path)}: the file is empty")
        start = 0
        while start < end:
            header = os.pread(file.fileno(), 12, start)
            if len(header) == 12 and struct.unpack("<I", header[8:])[0] != masked_crc(header[:8]):
                raise DataError(
                    f"{printable(path)}: damaged at byte {start}: wrong checksum of a record's length"
                    if start
                    else f"{printable(path)}: not an uncompressed TFRecord file (wrong checksum of the first length)"
                )
            stop = start + 16 + struct.unpack("<Q", header[:8])[0] if len(header) == 12 else end + 1
            if stop > end:
                raise DataError(
                    f"{printable(path)}: truncated: record {len(samples)}, from byte {start}, is incomplete"
                )
            samples.append(_sample(_Pages(file.fileno()), len(samples), start, stop))
            start = stop
    return ShardIndex.of(samples)


def damage(path, line):
    """Checks the checksum of the record of an index line; returns its fault in one line, or None."""
    offset, size = map(int, line.split())
    with open_regular(path) as file:
        file.seek(offset)
        record = file.read(size)
    if len(record) < size or struct.unpack("<I", record[-4:])[0] != masked_crc(record[12:-4]):
        return "wrong checksum of the record"
    return None


def masked_crc(data):
    """TensorFlow's mask (tensorflow/core/lib/hash/crc32c.h): plain CRCs of data that contain CRCs are problematic."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _sample(pages, number, start, stop):
    """A tuple for :meth:`ShardIndex.of`."""
    line = f"{start} {stop - start}"
    name = f"record {number}"
    try:
        images, labels, names = _features(pages, start + 12, stop - 4)
    except (ValueError, OverflowError):
        return name, None, start, 0, line, "not a tf.train.Example message"
    if names:
        name = pages.read(*names[0]).decode("utf-8", "replace")
    label = labels[0] if len(labels) == 1 else None
    offset, end = images[0] if images else (start, start)
    if len(images) != 1:
        problem = f"holds {len(images)} images" if images else f"no feature {IMAGE}"
    elif label is None:
        problem = f"{len(labels)} labels" if labels else f"no feature {LABEL}"
    else:
        problem = label_problem(label)
    return name, label, offset, end - offset, line, problem


def _features(pages, start, stop):
    """Spans of the images, labels (ints), and spans of the names in the message from ``start`` to ``stop``."""
    found = {IMAGE.encode(): [], LABEL.encode(): [], NAME.encode(): []}
    for entry in _spans(pages, start, stop, 1, 1):
        keys, features = _spans(pages, *entry, 1), _spans(pages, *entry, 2)
        key = pages.read(*keys[-1]) if keys and keys[-1][1] - keys[-1][0] < _PAGE else b""
        if key == LABEL.encode():
            lists = (span for feature in features for span in _spans(pages, *feature, 3))
            values = (value for span in lists for number, value in _fields(pages, *span) if number == 1)
            found[key] = [label for value in values for label in _integers(pages, value)]
        elif key in found:
            found[key] = [span for feature in features for span in _spans(pages, *feature, 1, 1)]
    return found.values()


def _spans(pages, start, stop, *numbers):
    """Spans of the submessages, strings or bytes at the end of a path of nested fields ``numbers``."""
    spans = [(start, stop)]
    for wanted in numbers:
        inner = (pair for span in spans for pair in _fields(pages, *span))
        spans = [value for number, value in inner if number == wanted and isinstance(value, tuple)]
    return spans


def _integers(pages, value):
    """int64 numbers of a repeated field: one on its own, or a span of packed ones."""
    if not isinstance(value, tuple):
        return [_signed(value)]
    numbers, (place, stop) = [], value
    while place < stop:
        number, place = read_varint(pages, place, stop)
        numbers.append(_signed(number))
    return numbers


def _signed(number):
    return number - 2**64 if number >= 2**63 else number


def _fields(pages, start, stop):
    """Pairs (number of the field, its value): an int for a varint, the span (start, stop) for a field with a length."""
    place = start
    while place < stop:
        key, place = read_varint(pages, place, stop)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = read_varint(pages, place, stop)
        elif kind == _SPAN:
            length, place = read_varint(pages, place, stop)
            value = (place, place + length)
            place += length
        elif kind in (_FIXED64, _FIXED32):
            value = None
            place += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if place > stop:
            raise ValueError("a field longer than its message")
        yield number, value


def read_varint(pages, place, stop):
    """An unsigned number in groups of 7 bits, the lowest first, and the position after it."""
    number = shift = 0
    while place < stop and shift < 70:
        byte = pages[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
        shift += 7
    raise ValueError("a number that does not end")


class _Pages:
    """Single bytes of a file, read in pages: bytes between, such as images, are not read."""

    def __init__(self, descriptor):
        self._descriptor, self._start, self._page = descriptor, 0, b""

    def __getitem__(self, place):
        if not self._start <= place < self._start + len(self._page):
            self._start, self._page = place, os.pread(self._descriptor, _PAGE, place)
            if not self._page:
                raise ValueError("the file ends here")
        return self._page[place - self._start]

    def read(self, start, stop):
        if self._start <= start and stop <= self._start + len(self._page):
            return self._page[start - self._start : stop - self._start]
        return os.pread(self._descriptor, stop - start, start)


def _field(number, content):
    """A field with a length: submessage, string, bytes or packed numbers."""
    return _varint(number << 3 | _SPAN) + _varint(len(content)) + content


def _varint(number):
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    groups.append(number)
    return bytes(groups)
