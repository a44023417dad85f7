"""The files of a PyTorch checkpoint: safetensors, and one JSON index that says where each part of each tensor is.

    rank-00000.safetensors    what rank 0 wrote: any reader of safetensors opens it
    index.json                {"format": 1, "tensors": {name: {"dtype", "shape", "chunks": [{"offsets", "shape", "file", "start"}]}}}

A chunk is a box of the tensor, `shape` large, whose first corner is at `offsets`. Its bytes begin at byte `start` of `file`, in row-
major order and little-endian. All of it is data, whatever wrote it: the names of types come from a table, and every number is checked
against the size of its file.

The safetensors library neither writes nor reads them here. It needs all tensors in the memory of the host at once. It maps files into
memory, where a disk that fails ends the process with SIGBUS, or else reads a whole tensor for each slice of it.
"""

from __future__ import annotations

import errno
import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from muster_trainer.checkpoint import documents, files

INDEX = "index.json"
FORMAT = 1
LARGEST_INDEX = 512 << 20
LONGEST_READ = 16 << 20
"""Bytes that are read at once of what cannot be read to its place."""

_CODES = {
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
"""What safetensors calls a type. It has no name for the others, which its header lists as bytes."""
_BYTES_ONLY = ("complex32", "complex64", "complex128", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in (*_CODES, *_BYTES_ONLY) if hasattr(torch, name)}
"""What a checkpoint can hold, by name; an older PyTorch has fewer."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 8
_MOST_DIMENSIONS = 64


@dataclass(frozen=True)
class Chunk:
    """A part of a tensor. `file` is below the checkpoint; `start` counts bytes."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start: int


@dataclass(frozen=True)
class Stored:
    """A tensor of the checkpoint; its `chunks` cover it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


def name_of(dtype: torch.dtype, layout: torch.layout = torch.strided) -> str:
    """Raises ValueError for what a checkpoint cannot hold."""
    if layout is not torch.strided or dtype not in _NAMES:
        raise ValueError(f"a tensor of {layout} and {dtype} cannot be stored; a checkpoint holds dense tensors of {', '.join(DTYPES)}")
    return _NAMES[dtype]


# files


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Writes a safetensors file, one tensor after the other; gives the byte at which each begins. Raises OSError.

    The widest types come first, as the library orders them, so that each tensor is aligned.
    """
    ordered = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, end = {}, 0
    starts = {}
    for name in ordered:
        one = tensors[name]
        code = _CODES.get(name_of(one.dtype, one.layout))
        begin, end = end, end + one.numel() * one.element_size()
        header[name] = {"dtype": code or "U8", "shape": list(one.shape) if code else [end - begin], "data_offsets": [begin, end]}
        starts[name] = begin
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with files.create(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in ordered:
            file.write(_bytes(tensors[name].detach().to("cpu").resolve_conj().resolve_neg().contiguous()))
    return {name: 8 + len(text) + begin for name, begin in starts.items()}


def read(file: BinaryIO, dtype: torch.dtype, chunk: Chunk, *, offsets: Sequence[int], target: torch.Tensor) -> None:
    """Fills `target` with the box of its shape at `offsets` of the chunk. Raises OSError, also where the file ends too early.

    Whole rows are read, at most `LONGEST_READ` bytes of them at once, or straight to `target` where it has them as they lie in the file.
    """
    if target.numel() == 0:
        return
    shape, lengths, offsets = chunk.shape or (1,), tuple(target.shape) or (1,), tuple(offsets) or (0,)
    target = target.reshape(lengths) if not target.dim() else target
    row = math.prod(shape[1:])
    begin = chunk.start + offsets[0] * row * dtype.itemsize
    if lengths[1:] == shape[1:] and target.is_contiguous() and target.dtype == dtype and target.device.type == "cpu":
        _fill(file, chunk, begin, target)
        return
    height = max(1, LONGEST_READ // (row * dtype.itemsize))
    buffer = torch.empty((min(height, lengths[0]), *shape[1:]), dtype=dtype)
    for first in range(0, lengths[0], height):
        rows = buffer[: lengths[0] - first]
        _fill(file, chunk, begin + first * row * dtype.itemsize, rows)
        for dimension, (offset, length) in enumerate(zip(offsets[1:], lengths[1:], strict=True), start=1):
            rows = rows.narrow(dimension, offset, length)
        target[first : first + height].copy_(rows)


def _fill(file: BinaryIO, chunk: Chunk, begin: int, target: torch.Tensor) -> None:
    space = _bytes(target)
    while space:
        count = os.preadv(file.fileno(), [space], begin)
        if count == 0:
            raise OSError(errno.EIO, f"{chunk.file} ends too early")
        space, begin = space[count:], begin + count


def _bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else memoryview(b"")


# the index


def index_of(tensors: Mapping[str, Stored]) -> bytes:
    return json.dumps({"format": FORMAT, "tensors": {name: _told(one) for name, one in sorted(tensors.items())}}).encode() + b"\n"


def _told(stored: Stored) -> dict[str, Any]:
    return {"dtype": name_of(stored.dtype), "shape": stored.shape, "chunks": [vars(chunk) for chunk in stored.chunks]}


def parse_index(content: bytes, sizes: Mapping[str, int]) -> dict[str, Stored]:
    """The tensors of a checkpoint whose files have these `sizes` in bytes. Raises ValueError where the index is not a whole one."""
    document = documents.parse(content)
    if document.get("format") != FORMAT:
        raise ValueError(f"the format of {INDEX} is {documents.shown(document.get('format'))}, this version reads {FORMAT}")
    return {name: _stored(name, documents.mapping(one), sizes) for name, one in documents.mapping(document.get("tensors")).items()}


def _stored(name: str, document: Mapping[str, Any], sizes: Mapping[str, int]) -> Stored:
    dtype = documents.text(document.get("dtype"))
    if dtype not in DTYPES:
        raise ValueError(f"the type {documents.shown(dtype)} of {documents.shown(name)} is none that PyTorch {torch.__version__} has here")
    shape = _numbers(document.get("shape"))
    chunks = tuple(_chunk(name, documents.mapping(one), len(shape)) for one in documents.listing(document.get("chunks")))
    for chunk in chunks:
        inside = all(offset + length <= whole for offset, length, whole in zip(chunk.offsets, chunk.shape, shape, strict=True))
        end = chunk.start + math.prod(chunk.shape) * DTYPES[dtype].itemsize
        if not inside or end > sizes.get(chunk.file, -1):
            raise ValueError(f"a chunk of {documents.shown(name)} lies outside of it or of its file")
    if len({chunk.offsets for chunk in chunks}) != len(chunks) or sum(math.prod(chunk.shape) for chunk in chunks) != math.prod(shape):
        raise ValueError(f"the chunks of {documents.shown(name)} do not make it whole")
    return Stored(DTYPES[dtype], shape, chunks)


def _chunk(name: str, document: Mapping[str, Any], dimensions: int) -> Chunk:
    offsets, shape = _numbers(document.get("offsets")), _numbers(document.get("shape"))
    if not len(offsets) == len(shape) == dimensions:
        raise ValueError(f"a chunk of {documents.shown(name)} has another number of dimensions")
    return Chunk(offsets, shape, documents.text(document.get("file"), most=1024), documents.whole(document.get("start")))


def _numbers(value: object) -> tuple[int, ...]:
    numbers = documents.listing(value)
    if len(numbers) > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor of {len(numbers)} dimensions is none of PyTorch's")
    return tuple(map(documents.whole, numbers))
