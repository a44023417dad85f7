"""Sums gradients over data-parallel ranks, and clips them by their norm over the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import prod

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard


def all_reduce(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Sums the gradients over the ranks of `group`, with one all-reduce for each dtype."""
    together((local(parameter.grad) for parameter in parameters if parameter.grad is not None), partial(dist.all_reduce, group=group))


def together(tensors: Iterable[torch.Tensor], collective: Callable[[torch.Tensor], object]) -> None:
    """Calls the collective once for all tensors of each dtype, and copies the results into the tensors."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for one in tensors:
        by_dtype.setdefault(one.dtype, []).append(one)
    for pieces in by_dtype.values():
        flat = torch.cat([piece.reshape(-1) for piece in pieces])
        collective(flat)
        for piece, result in zip(pieces, flat.split([piece.numel() for piece in pieces]), strict=True):
            piece.copy_(result.view_as(piece))


def clip(parameters: Iterable[nn.Parameter], most: float, *, copies: int | None) -> float:
    """Scales all gradients so that their norm over the whole model is at most `most`. Returns the norm before the scaling.

    The ranks sum the squares of their gradients. Each square is divided by the number of ranks with the same gradient: `copies`, or for a
    DTensor the number that follows from its placements. If `copies` is None, every rank has all gradients, and no communication is needed.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    parts = (local(one).double().square().sum() / (1 if copies is None else _copies(one, copies)) for one in gradients)
    square = sum(parts, torch.zeros((), dtype=torch.float64))
    if gradients:
        square = square.to(gradients[0].device)
    if copies is not None:
        dist.all_reduce(square)
    norm = square.sqrt().item()
    if norm > most:
        for one in gradients:
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
