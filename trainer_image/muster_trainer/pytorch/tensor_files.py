"""Reads and writes tensors of PyTorch in the files of `muster_trainer.checkpoint.tensor_files`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import torch

from muster_trainer.checkpoint import tensor_files
from muster_trainer.checkpoint.tensor_files import ITEM_BYTES, Chunk, Stored, fill

FRAMEWORK = f"PyTorch {torch.__version__}"
LONGEST_READ = 16 << 20
"""The most bytes that are read at once if a chunk cannot be read straight into its target."""
DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)}
"""The types that a checkpoint can hold, by name. An older PyTorch has fewer types."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def name_of(dtype: torch.dtype, layout: torch.layout = torch.strided) -> str:
    """The name of a type. Raises ValueError if a checkpoint cannot hold tensors of this type and layout."""
    if layout is not torch.strided or dtype not in _NAMES:
        raise ValueError(f"a tensor of {layout} and {dtype} cannot be stored; a checkpoint holds dense tensors of {', '.join(DTYPES)}")
    return _NAMES[dtype]


def read_index(directory: Path) -> dict[str, Stored]:
    """The tensors of a checkpoint by name. Raises BadConfiguration and StorageUnavailable."""
    return tensor_files.read_index(directory, dtypes=DTYPES, framework=FRAMEWORK)


def read(file: BinaryIO, dtype_name: str, chunk: Chunk, offsets: Sequence[int], target: torch.Tensor) -> None:
    """Fills `target` with a part of a chunk, which has the shape of `target` and begins at `offsets` of the chunk.

    It reads straight into `target` if its rows are laid out as in the file. Otherwise it reads whole rows of the chunk, at most
    `LONGEST_READ` bytes at once. Raises OSError if the file cannot be read or ends too early.
    """
    if target.numel() == 0:
        return
    dtype = DTYPES[dtype_name]
    shape, lengths, offsets = chunk.shape or (1,), tuple(target.shape) or (1,), tuple(offsets) or (0,)
    target = target.reshape(lengths) if not target.dim() else target
    row = math.prod(shape[1:])
    begin = chunk.start + offsets[0] * row * dtype.itemsize
    if lengths[1:] == shape[1:] and target.is_contiguous() and target.dtype == dtype and target.device.type == "cpu":
        fill(file, chunk, begin, _bytes(target))
        return
    height = max(1, LONGEST_READ // (row * dtype.itemsize))
    buffer = torch.empty((min(height, lengths[0]), *shape[1:]), dtype=dtype)
    for first in range(0, lengths[0], height):
        rows = buffer[: lengths[0] - first]
        fill(file, chunk, begin + first * row * dtype.itemsize, _bytes(rows))
        for dimension, (offset, length) in enumerate(zip(offsets[1:], lengths[1:], strict=True), start=1):
            rows = rows.narrow(dimension, offset, length)
        target[first : first + height].copy_(rows)


def bytes_on_host(tensor: torch.Tensor) -> memoryview:
    """The numbers of a tensor in row-major order, in the memory of the host."""
    return _bytes(tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous())


def _bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")
