"""The checksum of a payload. It is apart from the memory, because a supervisor has no numpy."""

from __future__ import annotations

import zlib

import numpy as np

from muster_trainer.snapshots.arena import Arena

_ROW = 16 << 10
_ROWS = 32


def is_intact(arena: Arena, slot: int) -> bool:
    """Whether the payload of a slot has the checksum that is in its header."""
    header = arena.header(slot)
    return header is not None and checksum(arena.payload(slot, header.size)) == header.checksum


def checksum(content: memoryview) -> int:
    """A checksum of the content: the CRC-32 of the sums of its rows and columns, as a table of 8-byte numbers.

    It takes a third of the time of a CRC-32 of the content. It finds damage, but not manipulation. That is enough, because only processes
    of the job can write to this memory.
    """
    whole = len(content) // _ROW * _ROW
    columns = np.zeros(_ROW // 8, dtype=np.uint64)
    total = len(content)
    for begin in range(0, whole, _ROW * _ROWS):
        table = np.frombuffer(content[begin : min(whole, begin + _ROW * _ROWS)], dtype=np.uint64).reshape(-1, _ROW // 8)
        columns += table.sum(axis=0)
        total = zlib.crc32(table.sum(axis=1).tobytes(), total)
    return zlib.crc32(content[whole:], zlib.crc32(columns.tobytes(), total))
