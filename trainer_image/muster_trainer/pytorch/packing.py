"""Packs this rank's part of model and optimizer into a block of bytes, for the same rank of another attempt."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from muster_contract.errors import BadConfiguration
from muster_trainer.checkpoint.tensor_files import ITEM_BYTES
from muster_trainer.pytorch import state
from muster_trainer.pytorch.tensor_files import DTYPES
from muster_trainer.snapshots.payload import pack_list, starts_of, unpack_list
from muster_trainer.training.tensor_table import Box


@dataclass(frozen=True)
class Packed:
    """Tensors to be written, in their order. `size` is their size in bytes, with the list of tensors."""

    tensors: dict[Box, torch.Tensor]
    listed: bytes
    starts: list[int]
    size: int

    @classmethod
    def of(cls, module: nn.Module, optimizer: torch.optim.Optimizer | None, initial_numbers: state.Groups) -> Packed:
        """The tensors of `module` and `optimizer` on this rank. Raises BadConfiguration if one cannot be stored."""
        tensors = state.local_table(module, optimizer, initial_numbers)
        listed = pack_list([_entry(box) for box in tensors])
        *starts, end = starts_of((box.nbytes for box in tensors), after=len(listed))
        return cls(tensors, listed, starts, end)

    def write(self, content: memoryview) -> None:
        """Writes the list and all tensors to `content`."""
        self.begin(content, now=()).finish()

    def begin(self, content: memoryview, *, now: Collection[str]) -> Copying:
        """Writes the list, and copies the tensors with the names `now`. Returns an object that copies the other tensors."""
        content[: len(self.listed)] = self.listed
        later = []
        for (box, tensor), start in zip(self.tensors.items(), self.starts, strict=True):
            if box.name in now:
                _part(content, box, start).copy_(tensor)
            else:
                later.append((box, tensor, start))
        return Copying(content, later)


class Copying:
    """Tensors that several threads copy. Each thread copies the next tensor until none is left."""

    def __init__(self, content: memoryview, pieces: list[tuple[Box, torch.Tensor, int]]) -> None:
        self._content, self._pieces = content, pieces
        self._lock = threading.Lock()
        self._remaining = len(pieces)
        self._is_done = threading.Event()
        self._failure: Exception | None = None
        if not pieces:
            self._is_done.set()

    def finish(self) -> None:
        """Copies the tensors that no thread has begun, and waits for the other threads."""
        while (piece := self._next_piece()) is not None:
            box, tensor, start = piece
            try:
                _part(self._content, box, start).copy_(tensor)
            except Exception as error:  # noqa: BLE001 (every thread that waits raises the error)
                self._failure = error
            with self._lock:
                self._remaining -= 1
                if not self._remaining:
                    self._is_done.set()
        self._is_done.wait()
        if self._failure is not None:
            raise self._failure

    def _next_piece(self) -> tuple[Box, torch.Tensor, int] | None:
        with self._lock:
            return self._pieces.pop() if self._pieces else None


def unpack(content: memoryview, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Restores the tensors that `Packed.write` has written. Raises BadConfiguration if they do not fit the model or optimizer."""
    try:
        entries, length = unpack_list(content)
        boxes = [_box(entry) for entry in entries]
        *starts, end = starts_of((box.nbytes for box in boxes), after=length)
        if end != len(content):
            raise ValueError(f"it has {len(content)} bytes, and its tensors need {end}")
        state.restore(module, optimizer, {box: _part(content, box, start) for box, start in zip(boxes, starts, strict=True)})
    except (KeyError, TypeError, ValueError) as error:
        raise BadConfiguration(f"a snapshot in memory does not fit the model or optimizer of this job: {error}") from error


def shard_of(module: nn.Module) -> str:
    """A digest of the names of this rank's tensors of the model, and of their parts. Ranks with the same digest have the same parts."""
    entries = [_entry(box) for box in state.local_table(module, None, ())]
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def _entry(box: Box) -> list[Any]:
    return [box.name, box.dtype, box.shape, box.offsets, box.sizes]


def _box(entry: Any) -> Box:
    name, dtype, shape, offsets, sizes = entry
    if not isinstance(name, str) or not all(type(number) is int and number >= 0 for number in (*shape, *offsets, *sizes)):
        raise ValueError(f"{name!r:.100} with the shape {sizes!r:.100} is not a part of a tensor")
    return Box(name, dtype, tuple(shape), tuple(offsets), tuple(sizes))


def _part(content: memoryview, box: Box, start: int) -> torch.Tensor:
    dtype = DTYPES[box.dtype]
    count = box.nbytes // ITEM_BYTES[box.dtype]
    if not count:
        return torch.empty(box.sizes, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype, count=count, offset=start).view(box.sizes)
