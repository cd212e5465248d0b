"""Damaged copies of a file, and of the members of an archive: always the same ones for a seed."""

import io
import random
import struct
import warnings
import zipfile

import numpy as np

HEADERS = (
    "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (), }",
    "{'descr': '<U3', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 1), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (0, -1), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000000000000,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2.5,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }",  # with one more number behind them
    "{'descr': '<f4', 'fortran_order': 7, 'shape': (3,), }",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }",
    "{'descr': 'nothing', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<f4', 'shape': (3,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3L,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1if 1else 3,), }",
    "__import__('os').abort()",
    "(" * 500,
    "",
)
_COMPRESSIONS = (0, 1, 6, 8, 9, 12, 14, 93, 95, 98, 99, 65535)  # 8 deflate, 9 deflate64, 12 bzip2, 14 LZMA, 93 zstd


def damaged(content, seed, count):
    """Yields copies with flipped, missing, added and repeated bytes."""
    draw = random.Random(seed)
    for _ in range(count):
        data = bytearray(content)
        kind = draw.randrange(5)
        at = draw.randrange(len(data))
        if kind == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            del data[at : at + draw.randrange(1, 60)]
        elif kind == 3:
            data[at:at] = draw.randbytes(draw.randrange(1, 60))
        else:
            length = draw.randrange(1, 40)
            data[at : at + length] = draw.randbytes(length)
        yield bytes(data)


def damaged_fields(content):
    """Yields copies of a zip archive each of which has a field of all its headers changed."""
    for signature, fields in (
        (b"PK\x01\x02", ((8, "H", (1, 0x41, 0x20, 8)), (10, "H", _COMPRESSIONS), (16, "I", (0,)))),
        (b"PK\x01\x02", ((20, "I", (0, 1, 2**32 - 1)), (24, "I", (0, 1, 2**32 - 1)), (28, "H", (0, 1, 65535)))),
        (b"PK\x01\x02", ((30, "H", (1, 65535)), (34, "H", (9,)), (42, "I", (1, 2**31, 2**32 - 1)))),
        (b"PK\x03\x04", ((8, "H", _COMPRESSIONS), (6, "H", (1,)), (26, "H", (0, 1, 65535)), (28, "H", (1, 65535)))),
        (b"PK\x05\x06", ((8, "H", (0, 1, 65535)), (12, "I", (0, 2**32 - 1)), (16, "I", (0, 2**32 - 1)))),
        (b"PK\x05\x06", ((20, "H", (7, 65535)),)),
    ):
        for offset, form, values in fields:
            for value in values:
                data, at = bytearray(content), content.find(signature)
                while at >= 0:
                    struct.pack_into(f"<{form}", data, at + offset, value)
                    at = content.find(signature, at + 1)
                yield bytes(data)


def odd_archives(name, array):
    """Yields .npz files that are whole as archives, with an odd member, and some with extra fields or comments."""
    good = io.BytesIO()
    np.lib.format.write_array(good, array)
    for version in (1, 2, 3):
        for header in HEADERS:
            text = header.encode() + b"\n"
            length = struct.pack("<H" if version == 1 else "<I", len(text))
            yield _archive((f"{name}.npy", b"\x93NUMPY" + bytes([version, 0]) + length + text + b"\0" * 12))
    for member in (b"", b"\x93NUMPY", b"hello", good.getvalue()[:-1], good.getvalue() + b"\0"):
        yield _archive((f"{name}.npy", member))
    yield _archive((f"{name}.npy", good.getvalue()), (f"{name}.npy", b"other"))
    yield _archive((name, good.getvalue()), (f"{name}.npy", good.getvalue()))
    yield _archive(("../../up.npy", good.getvalue()), ("a\nb.npy", good.getvalue()), (".npy", good.getvalue()))
    yield _archive(("folder/", b""))
    yield _archive((f"{name}.npy", good.getvalue()), extra=struct.pack("<HHQQ", 1, 16, 2**60, 2**60))
    yield _archive((f"{name}.npy", good.getvalue()), extra=struct.pack("<HH", 1, 60))
    yield _archive((f"{name}.npy", good.getvalue()), comment=b"PK\x05\x06" * 20)
    yield _archive()


def _archive(*members, extra=b"", comment=b""):
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as archive:
        warnings.simplefilter("ignore")  # of two members with one name
        for name, data in members:
            info = zipfile.ZipInfo(name)
            info.extra = extra
            archive.writestr(info, data)
        archive.comment = comment
    return file.getvalue()


def compressed(arrays, kind):
    """Returns the bytes of an .npz file whose members are compressed in a way that NumPy does not write."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array)
    return file.getvalue()
