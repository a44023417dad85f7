"""A table of tensors that all ranks write to a checkpoint together, and read back. It is the format of checkpoints of PyTorch and JAX.

Each rank holds boxes, which are whole tensors or shards of them. If several ranks hold a box, one of them writes it. Readers may have other
boxes than the writers, so another strategy or another world can load the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from muster_contract.errors import BadConfiguration, StorageUnavailable
from muster_contract.text import printable
from muster_trainer.checkpoint import files, tensor_files
from muster_trainer.checkpoint.tensor_files import INDEX, ITEM_BYTES, Block, Chunk, Numbers, Stored, index_of
from muster_trainer.training.engine import Part

Value = TypeVar("Value")


@dataclass(frozen=True)
class Box:
    """A part of the tensor `name`. `sizes` is the shape of the part, and `offsets` is its first corner. `shape` is the shape of the whole
    tensor, and `dtype` is a key of `ITEM_BYTES`."""

    name: str
    dtype: str
    shape: Numbers
    offsets: Numbers
    sizes: Numbers

    @classmethod
    def whole(cls, name: str, dtype: str, shape: Numbers) -> Box:
        return cls(name, dtype, shape, (0,) * len(shape), shape)

    @property
    def key(self) -> str:
        """The name of this box in its file. It is the name of the tensor if the box is the whole tensor."""
        return self.name if self.sizes == self.shape else f"{self.name}@{','.join(map(str, self.offsets))}"

    @property
    def nbytes(self) -> int:
        return prod(self.sizes) * ITEM_BYTES[self.dtype]


def file_of(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def share_out(boxes_by_rank: Sequence[Collection[Box]]) -> list[list[Box]]:
    """The boxes that each rank writes. `boxes_by_rank` has the boxes in the memory of each rank. Each box, the largest first, goes to the
    rank with the least to write so far."""
    holders: dict[Box, list[int]] = {}
    for rank, boxes in enumerate(boxes_by_rank):
        for box in boxes:
            holders.setdefault(box, []).append(rank)
    shares: list[list[Box]] = [[] for _ in boxes_by_rank]
    sizes = [0] * len(boxes_by_rank)
    for box in sorted(holders, key=lambda box: (-box.nbytes, box.key)):
        rank = min(holders[box], key=sizes.__getitem__)
        shares[rank].append(box)
        sizes[rank] += box.nbytes
    return shares


def part(directory: Path, file: str, own: dict[Box, Value], bytes_of: Callable[[Value], memoryview], *, copied: bool) -> Part:
    """A rank's part of a checkpoint: one file with its `own` boxes. `write` removes values from `own` when they are written, to free
    memory."""
    return Part(copied=copied, write=partial(_write, directory, file, own, bytes_of), finish=partial(_finish, directory))


def _write(directory: Path, file: str, own: dict[Box, Value], bytes_of: Callable[[Value], memoryview]) -> tuple[list[str], list[Any]]:
    """Writes the file. Returns its name, and its chunks as JSON. Raises StorageUnavailable."""
    if not own:
        return [], []
    blocks = {box.key: Block(box.dtype, box.sizes, partial(bytes_of, value)) for box, value in own.items()}
    with files.storage(directory):
        starts = tensor_files.write(directory / file, blocks)
    chunks = [[box.name, box.dtype, box.shape, box.offsets, box.sizes, file, starts[box.key]] for box in own]
    own.clear()
    return [file], chunks


def _finish(directory: Path, chunks: list[Any]) -> list[str]:
    """Writes the index, with the chunks of all ranks. In a rescue, several ranks may have written a chunk; the first of them counts. Raises
    OSError."""
    tensors: dict[str, Stored] = {}
    listed: set[tuple[str, Numbers]] = set()
    for name, dtype, shape, offsets, sizes, file, start in (chunk for own in chunks for chunk in own):
        chunk = Chunk(tuple(offsets), tuple(sizes), file, start)
        if (name, chunk.offsets) in listed:
            continue
        listed.add((name, chunk.offsets))
        before = tensors[name].chunks if name in tensors else ()
        tensors[name] = Stored(dtype, tuple(shape), (*before, chunk))
    files.write_file(directory / INDEX, index_of(tensors))
    return [INDEX]


def check_names_and_shapes(stored: Mapping[str, Stored], shapes: Mapping[str, Numbers]) -> None:
    """Raises ValueError if the checkpoint has other tensors than the job."""
    for name in sorted(stored.keys() | shapes.keys()):
        if name not in shapes:
            raise ValueError(f"it has {printable(name)}, which the job does not have")
        if name not in stored:
            raise ValueError(f"it has no {name}, which the job has")
        if stored[name].shape != shapes[name]:
            raise ValueError(f"its {name} has the shape {stored[name].shape}, the job's {shapes[name]}")


def misfit_error(directory: Path, reason: str) -> BadConfiguration:
    """The error for a checkpoint that does not fit the model."""
    return BadConfiguration(
        f"checkpoint {directory} does not fit the model or optimizer of this job: {reason}. "
        "Put them back as they were, or write `resume: Never` or another checkpoint.name to start over"
    )


def read(
    directory: Path, targets: Iterable[tuple[Stored, Numbers, Any]], fill: Callable[[BinaryIO, str, Chunk, Numbers, Any], object]
) -> None:
    """Fills boxes of tensors. For each box, `targets` has its stored tensor, its first corner, and an array for its values.

    `fill(file, dtype, chunk, offsets, target)` fills an array with the part of a chunk that begins at `offsets` of the chunk. One file is
    open at a time. Raises StorageUnavailable.
    """
    overlaps = [
        (chunk, stored.dtype, begin, target[(..., *place)])
        for stored, offsets, target in targets
        for chunk in stored.chunks
        for begin, place in _overlap(chunk, offsets, tuple(target.shape))
    ]
    overlaps.sort(key=lambda one: (one[0].file, one[0].start))
    with files.storage(directory):
        for name, in_file in groupby(overlaps, key=lambda one: one[0].file):
            with _opened(directory, name) as file:
                for chunk, dtype, begin, target in in_file:
                    fill(file, dtype, chunk, begin, target)


def _overlap(chunk: Chunk, offsets: Numbers, sizes: Numbers) -> Iterator[tuple[Numbers, tuple[slice, ...]]]:
    """The overlap of a chunk and a box: its first corner in the chunk, and its slices of the box. Nothing if they do not overlap."""
    firsts = [max(pair) for pair in zip(chunk.offsets, offsets, strict=True)]
    chunk_ends = map(sum, zip(chunk.offsets, chunk.shape, strict=True))
    box_ends = map(sum, zip(offsets, sizes, strict=True))
    ends = [min(pair) for pair in zip(chunk_ends, box_ends, strict=True)]
    if all(first < end for first, end in zip(firsts, ends, strict=True)):
        begin = tuple(first - offset for first, offset in zip(firsts, chunk.offsets, strict=True))
        yield begin, tuple(slice(first - offset, end - offset) for first, end, offset in zip(firsts, ends, offsets, strict=True))


def _opened(directory: Path, name: str) -> BinaryIO:
    try:
        return files.open_regular(directory / name)
    except ValueError as error:
        raise StorageUnavailable(f"checkpoint {directory} is not as it was verified: {error}") from None
