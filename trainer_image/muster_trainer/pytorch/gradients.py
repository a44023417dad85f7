"""Gradients of a whole world: summed over data-parallel ranks, and clipped by their global norm."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard


def all_reduce(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Sums the gradients over the ranks of `group`, in one message per type of number."""
    for pieces in by_type(local(parameter.grad) for parameter in parameters if parameter.grad is not None):
        flat = torch.cat([piece.reshape(-1) for piece in pieces])
        dist.all_reduce(flat, group=group)
        for piece, summed in zip(pieces, flat.split([piece.numel() for piece in pieces]), strict=True):
            piece.copy_(summed.view_as(piece))


def by_type(tensors: Iterable[torch.Tensor]) -> Iterable[list[torch.Tensor]]:
    """The tensors of each type of number, in their order."""
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for one in tensors:
        found.setdefault(one.dtype, []).append(one)
    return found.values()


def clip(parameters: Iterable[nn.Parameter], most: float, *, copies: int | None) -> float:
    """Scales all gradients so that their norm over the whole model is at most `most`. Returns the norm before that.

    Each rank adds the squares of its gradients, divided by the number of ranks with the same ones: `copies`, or for a DTensor the number
    that follows from its placements. `copies` None: every rank has all gradients, and needs nothing from the others.
    """
    held = [parameter.grad for parameter in parameters if parameter.grad is not None]
    parts = (local(one).double().square().sum() / (1 if copies is None else _copies(one, copies)) for one in held)
    square = sum(parts, torch.zeros((), dtype=torch.float64))
    if held:
        square = square.to(held[0].device)
    if copies is not None:
        dist.all_reduce(square)
    norm = square.sqrt().item()
    if norm > most:
        for one in held:
            local(one).mul_(most / norm)
    return norm


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of `tensor` that this rank holds, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _copies(tensor: torch.Tensor, plain: int) -> float:
    if not isinstance(tensor, DTensor):
        return plain
    shards = prod(tensor.device_mesh.size(side) for side, placement in enumerate(tensor.placements) if isinstance(placement, Shard))
    return dist.get_world_size() / shards
