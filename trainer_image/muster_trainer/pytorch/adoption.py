"""Ranks without the newest state get it from a rank that has kept it: model and optimizer, as one table of tensors (`state`)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from muster_trainer.pytorch import state
from muster_trainer.pytorch.parallel import ParallelModel, broadcast_together
from muster_trainer.pytorch.state import Groups
from muster_trainer.pytorch.world import detect_peer_loss
from muster_trainer.training.survivor import SurvivorSteps


def adopt(survivor_steps: SurvivorSteps, parallel: ParallelModel, initial_numbers: Groups, *, device: torch.device) -> None:
    """Sends the state to the ranks that need it, or receives it. Every rank calls it. Each rank holds the whole model. `device` is that
    of messages.

    A receiver needs no memory besides that of its model and optimizer. It drops its own state first."""
    rank, receivers = dist.get_rank(), survivor_steps.receivers
    if not receivers:
        return
    module, optimizer = parallel.module, parallel.stored_optimizer
    table = state.local_table(module, optimizer, initial_numbers) if rank == survivor_steps.source else {}
    listed: list[Any] = [list(table)]
    with detect_peer_loss():
        dist.broadcast_object_list(listed, src=survivor_steps.source, device=device)
    if rank in receivers:
        if optimizer:
            optimizer.zero_grad(set_to_none=True)
            optimizer.state.clear()
        tensors, complete = state.room(module, optimizer, listed[0])
        table = {box: tensors[box] for box in listed[0]}  # in the order of the messages
    with detect_peer_loss():
        _exchange(survivor_steps, [tensor for tensor in table.values() if tensor.numel()], device)
        broadcast_together(module.buffers(), source=survivor_steps.source)  # also those that are in no checkpoint
    if rank in receivers:
        complete()


@torch.no_grad()
def _exchange(survivor_steps: SurvivorSteps, tensors: list[torch.Tensor], device: torch.device) -> None:
    """All messages are under way at once. Those of a tensor that is elsewhere, or not contiguous, have their own memory."""
    rank = dist.get_rank()
    numbers: list[torch.Tensor] = []
    messages: list[dist.P2POp] = []
    if rank == survivor_steps.source:
        numbers = [tensor.to(device).contiguous() for tensor in tensors]
        messages = [dist.P2POp(dist.isend, one, receiver) for receiver in survivor_steps.receivers for one in numbers]
    elif rank in survivor_steps.receivers:
        numbers = [one if _is_plain(one, device) else torch.empty(one.shape, dtype=one.dtype, device=device) for one in tensors]
        messages = [dist.P2POp(dist.irecv, one, survivor_steps.source) for one in numbers]
    for message in dist.batch_isend_irecv(messages) if messages else ():
        message.wait()
    if rank in survivor_steps.receivers:
        for tensor, received in zip(tensors, numbers, strict=True):
            if received is not tensor:
                tensor.copy_(received)


def _is_plain(tensor: torch.Tensor, device: torch.device) -> bool:
    return tensor.is_contiguous() and tensor.device.type == device.type
