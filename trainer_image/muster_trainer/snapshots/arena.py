"""The memory for the snapshots of a training process. The supervisor holds it, so that it outlives the process.

It has a table of contents, and then slots of one size. A slot has a header and a payload. The content is not trusted. A slot without an
intact header of this job counts as empty, and the checksum of a payload is verified before the payload is used.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from muster_contract.environment import MEMORY_FD
from muster_contract.wire import LARGEST_INT, decode, document, encode, wire_field

PAGE = 4096
HEADER_BYTES = 2 * PAGE
MOST_SLOTS = 1024
_MAGIC = b"MusterS2"
_CHECKED = struct.Struct("<8sI32s")
"""The magic bytes, the length of the JSON text after this, and the SHA-256 of the text."""


@document
class Header:
    """The header of a slot."""

    job: str = wire_field(max_length=253)
    """The uid of the job."""
    attempt: int = wire_field(minimum=0)
    step: int = wire_field(minimum=0)
    shard: str = wire_field(max_length=64)
    """A digest of the names and corners of the tensors. Ranks with the same shard have the same numbers."""
    identity: str = wire_field(max_length=64)
    """A digest of settings that must be the same in an attempt that restores the snapshot, such as the world size."""
    size: int = wire_field(minimum=0, maximum=LARGEST_INT)
    """Bytes of the payload."""
    checksum: int = wire_field(minimum=0)
    """The result of the function `checksum` (`muster_trainer.snapshots.checksum`) for the payload."""
    event: str | None = wire_field(default=None, max_length=2048)
    """The event of the step, as JSON."""
    cut: tuple[int, ...] = wire_field(default=(), minimum=1, max_items=512)
    """The number of layers of each stage of a pipeline."""


@document
class _Contents:
    """The table of contents."""

    stride: int = wire_field(minimum=HEADER_BYTES)
    slots: int = wire_field(minimum=1, maximum=MOST_SLOTS)


@dataclass(frozen=True)
class FilledSlot:
    """A slot with an intact header."""

    slot: int
    header: Header


class Arena:
    """The memory behind a descriptor. `size` is its size in bytes. Pages that were never written take no memory."""

    def __init__(self, descriptor: int) -> None:
        """Raises OSError and ValueError if it cannot be mapped."""
        self.size = os.fstat(descriptor).st_size
        self._memory = mmap.mmap(descriptor, self.size)
        contents = self._read(0, _Contents)
        fits = isinstance(contents, _Contents) and PAGE + contents.stride * contents.slots <= self.size
        self._contents = contents if isinstance(contents, _Contents) and fits else None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Arena | None:
        """The memory of this process. None if its supervisor has none for it."""
        try:
            return cls(int(environ.get(MEMORY_FD, "")))
        except (OSError, ValueError):
            return None

    @property
    def room(self) -> int:
        """The size of the largest possible payload in bytes."""
        assert self._contents is not None
        return self._contents.stride - HEADER_BYTES

    def format(self, *, slots: int, stride: int) -> None:
        """Sets the number of the slots, and the size of each (`stride`, in bytes). Snapshots stay if the layout is the same already."""
        contents = _Contents(stride, slots)
        if self._contents != contents:
            for slot in range(self._contents.slots if self._contents else 0):
                self.clear(slot)
            self._contents = contents
            self._write(0, contents)

    def filled_slots(self) -> Iterator[FilledSlot]:
        """All slots with intact headers."""
        for slot in range(self._contents.slots if self._contents else 0):
            if (header := self.header(slot)) is not None:
                yield FilledSlot(slot, header)

    def header(self, slot: int) -> Header | None:
        """The header of a slot; None if it is not intact."""
        header = self._read(self.start(slot), Header)
        return header if isinstance(header, Header) and header.size <= self.room else None

    def payload(self, slot: int, size: int) -> memoryview:
        """The payload of a slot, for reading and writing."""
        begin = self.start(slot) + HEADER_BYTES
        return memoryview(self._memory)[begin : begin + size]

    def clear(self, slot: int) -> None:
        """Makes the slot empty. Call it before the payload changes."""
        start = self.start(slot)
        self._memory[start : start + _CHECKED.size] = bytes(_CHECKED.size)

    def complete(self, slot: int, header: Header) -> None:
        """Writes the header. Call it when the payload is complete."""
        self._write(self.start(slot), header)

    def start(self, slot: int) -> int:
        """The position of the first byte of a slot, which is the first byte of its header."""
        assert self._contents is not None
        return PAGE + slot * self._contents.stride

    def _write(self, start: int, value: object) -> None:
        block = pack(value)
        self._memory[start : start + len(block)] = block

    def _read(self, start: int, kind: type) -> object | None:
        return unpack(self._memory[start : start + HEADER_BYTES], kind)


def layout(size: int, *, slots: int) -> int:
    """The size of a slot in bytes, if `slots` of them share a memory of `size` bytes."""
    return max(0, (size - PAGE) // slots // PAGE * PAGE)


def pack(value: object) -> bytes:
    """Encodes a document with its SHA-256, in at most HEADER_BYTES. Raises ValueError if it is too long."""
    text = json.dumps(encode(value)).encode()
    if len(text) + _CHECKED.size > HEADER_BYTES:
        raise ValueError(f"a header of {len(text)} bytes is too long")
    return _CHECKED.pack(_MAGIC, len(text), hashlib.sha256(text).digest()) + text


def unpack(block: bytes, kind: type) -> object | None:
    """Decodes a document of the class `kind`. None if it is damaged, or of another class."""
    if len(block) < _CHECKED.size:
        return None
    magic, length, digest = _CHECKED.unpack_from(block)
    text = block[_CHECKED.size : _CHECKED.size + length]
    if magic != _MAGIC or len(text) != length or hashlib.sha256(text).digest() != digest:
        return None
    try:
        value: object = decode(kind, json.loads(text))
    except (ValueError, RecursionError):
        return None
    return value
