"""Writes or reads one checkpoint, in whatever Python and PyTorch this runs: `one_side.py write|read FOLDER MEETING RANK WORLD`.

The ranks meet by the file MEETING, which is not there before.

Its numbers follow from the names of the tensors, so that the reader knows every bit that the writer wrote. It needs torch, numpy and the
trainer, and no test tools.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from muster_contract.events import CommitReason
from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.checkpoint import Fence, Manifest, Store, select
from muster_trainer.pytorch import state

FENCE = Fence(datetime(2026, 11, 21, 11, 16, 14, tzinfo=UTC), 0)
DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64"),
    *("complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)
SHAPES = {"scalar": (), "empty": (0, 3), "matrix": (3, 5)}


def bits(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor whose bytes follow from `name`; NaN and infinities are among them."""
    count = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
    stream = b"".join(hashlib.sha256(f"{name} {block}".encode()).digest() for block in range(count // 32 + 1))[:count]
    if dtype is torch.bool:
        stream = bytes(byte & 1 for byte in stream)
    flat = torch.frombuffer(bytearray(stream), dtype=torch.uint8) if count else torch.empty(0, dtype=torch.uint8)
    return flat.view(dtype).reshape(shape)


class Model(nn.Module):
    """Parameters that are cut up over the ranks, a weight that two names share, and a buffer of each type and shape."""

    def __init__(self, world: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(4, 6)
        self.second.weight = self.first.weight
        for dtype in DTYPES:
            for shape, size in SHAPES.items():
                self.register_buffer(f"{dtype}_{shape}", torch.zeros(size).to(getattr(torch, dtype)))
        if world > 1:
            mesh = init_device_mesh("cpu", (world,))
            cut = {name: nn.Parameter(distribute_tensor(one.data, mesh, [Shard(0)])) for name, one in self.named_parameters()}
            self.first.weight = self.second.weight = cut["first.weight"]
            self.first.bias, self.second.bias = cut["first.bias"], cut["second.bias"]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(one.shape) for name, one in self.state_dict().items()}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _same(name: str, found: torch.Tensor) -> bool:
    expected = bits(_alias(name), found.dtype, tuple(found.shape))
    return torch.equal(found.contiguous().reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))


def _alias(name: str) -> str:
    return name.replace("second.weight", "first.weight")


def _fill(name: str, tensor: torch.Tensor) -> None:
    """Gives `tensor`, or this rank's part of it, its bits."""
    expected = bits(_alias(name), tensor.dtype, tuple(tensor.shape))
    if isinstance(tensor, DTensor):
        tensor.to_local().copy_(distribute_tensor(expected, tensor.device_mesh, tensor.placements).to_local())
    else:
        tensor.copy_(expected)


def _made(world: int) -> tuple[Model, torch.optim.Optimizer]:
    model = Model(world)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


@torch.no_grad()
def write(directory: Path, rank: int, world: int) -> None:
    model, optimizer = _made(world)
    for name, tensor in model.state_dict().items():
        _fill(name, tensor)
    for name, parameter in model.named_parameters():
        slots = {"step": torch.tensor(7.0), "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
        for slot in ("exp_avg", "exp_avg_sq"):
            _fill(f"{name}.{slot}", slots[slot])
        optimizer.state[parameter] = slots
    store = Store(directory, FENCE, keep=2)
    if rank == 0:
        store.register(select(CheckpointSpec(str(directory)), FENCE))
    path = store.directory / f"step-00000007-{FENCE}"
    if rank == 0:
        assert store.begin(7) == path
    dist.barrier()
    part = state.part_to_save(path, model, optimizer, room=0)
    names, told = part.write()
    parts: list[Any] = [None] * world
    dist.all_gather_object(parts, (store.flush(path, names, path), json.dumps(told)))
    if rank == 0:
        listing = store.flush(path, part.finish([json.loads(told) for _, told in parts]), path)
        for written, _ in parts:
            listing |= written
        versions = {"python": sys.version.split()[0], "torch": torch.__version__}
        store.commit(path, Manifest(7, 0, 0, 7, world, "DDP", 0, versions, {}, CommitReason.FINAL, "2026-11-21T11:16:14+00:00", listing))
    dist.barrier()


@torch.no_grad()
def read(directory: Path, rank: int, world: int) -> None:
    """Raises AssertionError, with the names, where a bit differs."""
    selection = select(CheckpointSpec(str(directory), resume="Auto"), Fence(FENCE.created, 1))
    assert selection.commit is not None, selection
    assert not selection.skipped, selection.skipped
    model, optimizer = _made(world)
    state.load(selection.commit.path, model, optimizer, model.shapes())
    found = {name: whole(tensor) for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        slots = optimizer.state[parameter]
        found |= {f"{name}.{slot}": whole(slots[slot]) for slot in ("exp_avg", "exp_avg_sq")}
        assert slots["step"].item() == 7.0
    differing = [name for name, tensor in found.items() if not _same(name, tensor)]
    assert not differing, differing
    assert len(found) == 4 + len(DTYPES) * len(SHAPES) + 6


def main(what: str, directory: str, meeting: str, rank: str, world: str) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(world))
    {"write": write, "read": read}[what](Path(directory), int(rank), int(world))
    print(f"{what} by rank {rank} of {world}: Python {sys.version.split()[0]}, torch {torch.__version__}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
