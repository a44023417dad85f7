"""CRC-32C (Castagnoli), which TFRecord files carry; with numpy, since Python has none.

A CRC is linear: that of a block is the exclusive or of what each of its bytes contributes at its place, which a table
tells; blocks are put together by what a whole block does to each of the four bytes of the CRC before it.
"""

from __future__ import annotations

import numpy as np

POLYNOMIAL = 0x82F63B78  # RFC 3720, bits reversed
BLOCK = 256
_MASK = 0xA282EAD8  # of TFRecord: a CRC of data that hold CRCs would be a bad one


def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(POLYNOMIAL), table >> 1)
    return table


def _place_tables() -> np.ndarray:
    """[place in a block, byte]: its contribution, shape (BLOCK, 256)."""
    tables = [_TABLE]
    while len(tables) < BLOCK:
        tables.append(_TABLE[tables[-1] & 0xFF] ^ (tables[-1] >> 8))
    return np.stack(tables[::-1])


_TABLE = _byte_table()
_BYTES = _TABLE.tolist()
_IN_BLOCK = _place_tables()
_OVER_BLOCK = _IN_BLOCK[:4].tolist()  # a state acts as if it were added to the first bytes of the next block
_FLAT, _ROWS = _IN_BLOCK.ravel(), np.arange(BLOCK) * 256


def crc32c(data: bytes) -> int:
    """The CRC of `data`, 0 of nothing."""
    if len(data) < 64:
        state = 0xFFFFFFFF
        for byte in data:
            state = _BYTES[(state ^ byte) & 0xFF] ^ (state >> 8)
        return state ^ 0xFFFFFFFF
    padded = np.zeros(-(-len(data) // BLOCK) * BLOCK, dtype=np.uint8)  # zeros before the data change nothing
    padded[-len(data) :] = np.frombuffer(data, dtype=np.uint8)
    padded[-len(data) :][:4] ^= 0xFF  # the state to begin with
    blocks = np.bitwise_xor.reduce(_FLAT.take(padded.reshape(-1, BLOCK) + _ROWS), axis=1)
    first, second, third, fourth = _OVER_BLOCK
    state = 0
    for block in blocks.tolist():
        state = first[state & 0xFF] ^ second[state >> 8 & 0xFF] ^ third[state >> 16 & 0xFF] ^ fourth[state >> 24] ^ block
    return state ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """The CRC as TFRecord stores it (tensorflow/core/lib/hash/crc32c.h)."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
