"""The format of a payload: the length of a list, the list as JSON, and the parts that it describes, each aligned."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 64


def pack_list(entries: Sequence[object]) -> bytes:
    """Encodes the list, with its length before it."""
    text = json.dumps(entries).encode()
    return _LENGTH.pack(len(text)) + text


def unpack_list(content: memoryview) -> tuple[list[Any], int]:
    """Decodes the list at the beginning of a payload. Returns it and its size in bytes. Raises ValueError if there is none."""
    try:
        (length,) = _LENGTH.unpack_from(content)
    except struct.error as error:
        raise ValueError(f"it has {len(content)} bytes") from error
    end = _LENGTH.size + length
    try:
        entries = json.loads(bytes(content[_LENGTH.size : end]))
    except RecursionError:
        raise ValueError("its list is nested too deeply") from None
    if not isinstance(entries, list):
        raise ValueError("it has no list")
    return entries, end


def starts_of(sizes: Iterable[int], *, after: int) -> list[int]:
    """The position of the first byte of each part, and of the end. `after` is the size of the list in bytes."""
    starts, end = [], _aligned(after)
    for size in sizes:
        starts.append(end)
        end = _aligned(end + size)
    return [*starts, end]


def _aligned(number: int) -> int:
    return -(-number // _ALIGNMENT) * _ALIGNMENT
