"""CRC-32C (Castagnoli), the checksum of TFRecord files: the native library computes it, or else NumPy.

NumPy looks up whole blocks at once in a table.
"""

import functools

import numpy as np

from mixprec.native.native_library import library

_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41 with its bits reversed: the least significant bit comes first
_BLOCK = 1024
_SHORT = 16  # so few bytes are done one by one
_PLACES = np.arange(0, 256 * _BLOCK, 256, dtype=np.intp)  # the type that NumPy indexes with: others are slower


def crc32c(data):
    """Returns the CRC-32C of ``data`` (bytes) as an int: RFC 3720, appendix B.4."""
    return by_numpy(data) if library() is None else library().crc32c(data)


def by_numpy(data):
    """The same without the native library, at a twentieth of the speed.

    A CRC is linear over GF(2): the CRC of a block is the XOR of the contributions of its bytes, each computed with all
    other bytes 0. The contributions of 256 values at 1,024 positions are a table of 1 MiB.
    """
    if len(data) < _SHORT:
        crc = 0xFFFFFFFF
        for byte in data:
            crc = crc >> 8 ^ _bytewise()[1][(crc ^ byte) & 255]
        return crc ^ 0xFFFFFFFF
    blocks = -(-len(data) // _BLOCK)
    padded = np.zeros(blocks * _BLOCK, np.uint8)  # zeros in front contribute nothing
    start = len(padded) - len(data)
    padded[start:] = np.frombuffer(data, np.uint8)
    padded[start : start + 4] ^= 255  # the same as to begin with a CRC of 0xFFFFFFFF
    contributions, (first, second, third, fourth) = _blockwise()
    crc = 0
    for own in np.bitwise_xor.reduce(contributions[_PLACES + padded.reshape(blocks, _BLOCK)], axis=1).tolist():
        crc = own ^ first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24]
    return crc ^ 0xFFFFFFFF


@functools.cache
def _bytewise():
    """The usual table of 256 entries, as an array and as a list."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return table, table.tolist()


@functools.cache
def _blockwise():
    """Contributions (1024 * 256,) of each value at each position of a block; lists for the first four positions.

    The four bytes of the CRC so far act like the first four bytes of the block.
    """
    bytewise, _ = _bytewise()
    contributions = np.empty((_BLOCK, 256), np.uint32)
    contributions[-1] = bytewise
    for place in range(_BLOCK - 2, -1, -1):
        later = contributions[place + 1]
        contributions[place] = (later >> 8) ^ bytewise[later & 255]
    return contributions.ravel(), contributions[:4].tolist()
