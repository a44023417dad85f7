"""This rank's part of model and optimizer as one run of bytes, for the same rank of another attempt.

It begins with a list of its tensors, as JSON. The numbers of each tensor follow, aligned.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from muster_contract.errors import BadConfiguration
from muster_trainer.checkpoint.tensor_files import ITEM_BYTES
from muster_trainer.pytorch import state
from muster_trainer.pytorch.tensor_files import DTYPES
from muster_trainer.training.tensor_table import Box

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 64


@dataclass(frozen=True)
class Packed:
    """Tensors to be written. `size` is the bytes that they take."""

    tensors: dict[Box, torch.Tensor]
    index: bytes
    size: int

    @classmethod
    def of(cls, module: nn.Module, optimizer: torch.optim.Optimizer, initial_numbers: state.Groups) -> Packed:
        """Raises BadConfiguration if something cannot be stored."""
        tensors = state.held(module, optimizer, initial_numbers)
        index = json.dumps([[box.name, box.dtype, box.shape, box.offsets, box.sizes] for box in tensors]).encode()
        *_, end = _starts(len(index), list(tensors))
        return cls(tensors, index, end)

    def write(self, content: memoryview) -> None:
        """Copies the numbers."""
        content[: _LENGTH.size] = _LENGTH.pack(len(self.index))
        content[_LENGTH.size : _LENGTH.size + len(self.index)] = self.index
        for (box, tensor), start in zip(self.tensors.items(), _starts(len(self.index), list(self.tensors)), strict=False):
            _part(content, box, start).copy_(tensor)


def unpack(content: memoryview, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restores what `Packed.write` has written. Raises BadConfiguration if it does not fit the model or optimizer."""
    try:
        (length,) = _LENGTH.unpack_from(content)
        boxes = [_box(entry) for entry in json.loads(bytes(content[_LENGTH.size : _LENGTH.size + length]))]
        *starts, end = _starts(length, boxes)
        if end != len(content):
            raise ValueError(f"it has {len(content)} bytes, and its tensors need {end}")
        state.restore(module, optimizer, {box: _part(content, box, start) for box, start in zip(boxes, starts, strict=True)})
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise BadConfiguration(f"a snapshot in memory does not fit the model or optimizer of this job: {error}") from error


def shard_of(module: nn.Module) -> str:
    """A digest of which parts of which tensors this rank has of the model."""
    boxes = [[box.name, box.dtype, box.shape, box.offsets, box.sizes] for box in state.held(module, None, ())]
    return hashlib.sha256(json.dumps(boxes).encode()).hexdigest()


def _box(entry: Any) -> Box:
    name, dtype, shape, offsets, sizes = entry
    return Box(name, dtype, tuple(shape), tuple(offsets), tuple(sizes))


def _starts(index: int, boxes: list[Box]) -> list[int]:
    """The first byte of each box, and the end."""
    starts, end = [], _aligned(_LENGTH.size + index)
    for box in boxes:
        starts.append(end)
        end = _aligned(end + box.nbytes)
    return [*starts, end]


def _aligned(number: int) -> int:
    return -(-number // _ALIGNMENT) * _ALIGNMENT


def _part(content: memoryview, box: Box, start: int) -> torch.Tensor:
    dtype = DTYPES[box.dtype]
    count = box.nbytes // ITEM_BYTES[box.dtype]
    if not count:
        return torch.empty(box.sizes, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype, count=count, offset=start).view(box.sizes)
