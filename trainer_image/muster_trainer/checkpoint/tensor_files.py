"""Files of tensors for every framework: safetensors files, and one JSON index with the place of each part of each tensor.

    rank-00000.safetensors    the tensors that rank 0 wrote; any reader of safetensors opens it
    index.json                {"format": 1, "tensors": {name: {"dtype", "shape", "chunks": [{"offsets", "shape", "file", "start"}]}}}

A chunk is a box of the tensor. `shape` is its size, and `offsets` is its first corner. Its bytes begin at byte `start` of `file`. They are
in row-major order and little-endian. Reading never runs code, because names of types come from a table, and every number is checked
against the size of its file.

This module does not use the safetensors library, for three reasons. The library needs all tensors in the memory of the host at once. It
maps files into memory, so a disk that fails ends the process with SIGBUS. Without the map, it reads a whole tensor for each slice.
"""

from __future__ import annotations

import errno
import json
import math
import os
import struct
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from muster_contract.errors import BadConfiguration, StorageUnavailable
from muster_contract.wire import document, encode, parse, wire_field
from muster_trainer.checkpoint import documents, files
from muster_trainer.checkpoint.manifest import read_listed, read_manifest
from muster_trainer.checkpoint.selection import refuse_other_version

INDEX = "index.json"
FORMAT = 1
LARGEST_INDEX = 512 << 20

CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
"""The names of types in safetensors. The header of a file lists tensors of other types as bytes."""
ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32", "complex32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""Every type that a checkpoint can hold, and the bytes of one number."""
_ALIGNMENT = 8
_MOST_DIMENSIONS = 64
_MOST_CUT = 4
"""The dimensions along which a tensor may be divided. Every mesh has fewer, and the time of a check doubles with each."""
Numbers = tuple[int, ...]


@document
class Chunk:
    """A part of a tensor. `file` is a path below the checkpoint, and `start` is in bytes."""

    offsets: tuple[int, ...] = wire_field(minimum=0, max_items=_MOST_DIMENSIONS)
    shape: tuple[int, ...] = wire_field(minimum=0, max_items=_MOST_DIMENSIONS)
    file: str = wire_field(max_length=1024)
    start: int = wire_field(minimum=0)


@document
class Stored:
    """A tensor of the checkpoint. Its `chunks` cover it without overlaps. `dtype` is a key of `ITEM_BYTES`."""

    dtype: str = wire_field(max_length=200)
    shape: tuple[int, ...] = wire_field(minimum=0, max_items=_MOST_DIMENSIONS)
    chunks: tuple[Chunk, ...] = wire_field(max_items=LARGEST_INDEX)


@document
class _Index:
    """The content of `INDEX`."""

    format: int
    tensors: Mapping[str, Stored] = wire_field(max_items=LARGEST_INDEX)


@dataclass(frozen=True)
class Block:
    """A tensor to write. `content` returns its bytes in row-major order. `write` calls it once, when it needs them."""

    dtype: str
    shape: tuple[int, ...]
    content: Callable[[], memoryview]


# files


def write(path: Path, blocks: Mapping[str, Block]) -> dict[str, int]:
    """Writes a safetensors file, one tensor after the other. Returns the first byte of each tensor in the file. Raises OSError.

    The widest types come first, as in files of the library, so that each tensor is aligned.
    """
    ordered = sorted(blocks, key=lambda name: (-ITEM_BYTES[blocks[name].dtype], name))
    header, end = {}, 0
    starts = {}
    for name in ordered:
        block = blocks[name]
        code = CODES.get(block.dtype)
        begin, end = end, end + math.prod(block.shape) * ITEM_BYTES[block.dtype]
        header[name] = {"dtype": code or "U8", "shape": list(block.shape) if code else [end - begin], "data_offsets": [begin, end]}
        starts[name] = begin
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with files.create(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in ordered:
            file.write(blocks[name].content())
    return {name: 8 + len(text) + begin for name, begin in starts.items()}


def fill(file: BinaryIO, chunk: Chunk, begin: int, space: memoryview) -> None:
    """Fills `space` with the bytes of the file from `begin` on. Raises OSError if it cannot be read or ends too early."""
    while space:
        count = os.preadv(file.fileno(), [space], begin)
        if count == 0:
            raise OSError(errno.EIO, f"{chunk.file} ends too early")
        space, begin = space[count:], begin + count


# the index


def index_of(tensors: Mapping[str, Stored]) -> bytes:
    return json.dumps(encode(_Index(FORMAT, dict(sorted(tensors.items()))))).encode() + b"\n"


def read_index(directory: Path, *, dtypes: Container[str], framework: str) -> dict[str, Stored]:
    """Reads the index of a checkpoint, and checks that it is the committed one. Returns the tensors by name.

    `dtypes` are the types that `framework` supports. Raises BadConfiguration if this version cannot read the checkpoint, and
    StorageUnavailable if the storage fails or the checkpoint has changed.
    """
    try:
        with files.storage(directory):
            manifest = read_manifest(directory)
            refuse_other_version(manifest, directory)
            content = read_listed(directory, manifest, INDEX, limit=LARGEST_INDEX)
    except ValueError as error:
        raise StorageUnavailable(f"checkpoint {directory} is not as it was verified: {error}") from None
    try:
        sizes = {name: entry["bytes"] for name, entry in manifest.files.items()}
        return parse_index(content, sizes, dtypes=dtypes, framework=framework)
    except ValueError as error:
        raise BadConfiguration(
            f"checkpoint {directory} cannot be read by this version of Muster and {framework}: {error}. Use those that wrote it, or write "
            "`resume: Never` or another checkpoint.name to start over"
        ) from None


def parse_index(content: bytes, sizes: Mapping[str, int], *, dtypes: Container[str], framework: str) -> dict[str, Stored]:
    """Parses the index of a checkpoint whose files have these `sizes` in bytes. Returns the tensors by name. Raises ValueError."""
    index = parse(_Index, content)
    if index.format != FORMAT:
        raise ValueError(f"the format of {INDEX} is {index.format}, this version reads {FORMAT}")
    for name, stored in index.tensors.items():
        _check_stored(documents.shown(name), stored, sizes)
        if stored.dtype not in dtypes:
            raise ValueError(f"the type {stored.dtype} of {documents.shown(name)} is not supported by {framework} here")
    return dict(index.tensors)


def _check_stored(name: str, stored: Stored, sizes: Mapping[str, int]) -> None:
    """Raises ValueError unless the chunks lie in their files and make up the tensor."""
    if stored.dtype not in ITEM_BYTES:
        raise ValueError(f"the type {documents.shown(stored.dtype)} of {name} is not a type of a checkpoint")
    for chunk in stored.chunks:
        if not len(chunk.offsets) == len(chunk.shape) == len(stored.shape):
            raise ValueError(f"a chunk of {name} has another number of dimensions")
        inside = all(offset + length <= whole for offset, length, whole in zip(chunk.offsets, chunk.shape, stored.shape, strict=True))
        end = chunk.start + math.prod(chunk.shape) * ITEM_BYTES[stored.dtype]
        if not inside or end > sizes.get(chunk.file, -1):
            raise ValueError(f"a chunk of {name} is outside of it or of its file")
    cut = [axis for axis, whole in enumerate(stored.shape) if any(chunk.shape[axis] != whole for chunk in stored.chunks)]
    if len(cut) > _MOST_CUT:
        raise ValueError(f"{name} is cut along {len(cut)} dimensions, and at most {_MOST_CUT} are possible")
    boxes = ((chunk.offsets, chunk.shape) for chunk in stored.chunks)
    if _corners(boxes, cut) != _corners([((0,) * len(stored.shape), stored.shape)], cut):
        raise ValueError(f"the chunks of {name} do not cover it exactly")


def _corners(boxes: Iterable[tuple[Numbers, Numbers]], cut: Sequence[int]) -> dict[Numbers, int]:
    """The corners of boxes, each an offset and a shape, along the axes `cut`. Each corner counts as 1 or -1, in turns along each axis, and
    those that add up to 0 are left out. So the results of two sets of boxes are equal only if both cover every number equally often."""
    counts: dict[Numbers, int] = {}
    for offsets, shape in boxes:
        if 0 in shape:
            continue
        corners: list[tuple[Numbers, int]] = [((), 1)]
        for axis in cut:
            begin = offsets[axis]
            end = begin + shape[axis]
            corners = [each for at, sign in corners for each in (((*at, begin), sign), ((*at, end), -sign))]
        for at, sign in corners:
            counts[at] = counts.get(at, 0) + sign
    return {at: count for at, count in counts.items() if count}
