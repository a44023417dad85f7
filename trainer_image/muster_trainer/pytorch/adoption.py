"""Ranks without the newest state get it from a rank that has kept it: model and optimizer, as one table of tensors (`state`)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from muster_trainer.pytorch import state
from muster_trainer.pytorch.parallel import ParallelModel, broadcast_together
from muster_trainer.pytorch.state import Groups
from muster_trainer.pytorch.tensor_files import DTYPES
from muster_trainer.pytorch.world import detect_peer_loss
from muster_trainer.training.survivor import Kept


def adopt(kept: Kept, parallel: ParallelModel, initial_numbers: Groups, *, device: torch.device) -> None:
    """Sends the state to the ranks that need it, or receives it. Every rank calls it. Each rank holds the whole model. `device` is that
    of messages."""
    rank, receivers = dist.get_rank(), kept.receivers
    if not receivers:
        return
    module, optimizer = parallel.module, parallel.stored_optimizer
    table = state.held(module, optimizer, initial_numbers) if rank == kept.source else {}
    listed: list[Any] = [list(table)]
    with detect_peer_loss():
        dist.broadcast_object_list(listed, src=kept.source, device=device)
        if rank in receivers:
            table = {box: torch.empty(box.sizes, dtype=DTYPES[box.dtype], device=device) for box in listed[0]}
        _exchange(kept, [tensor.to(device).contiguous() for tensor in table.values() if tensor.numel()])
        broadcast_together(module.buffers(), source=kept.source)  # also those that are in no checkpoint
    if rank in receivers:
        state.restore(module, optimizer, table)


def _exchange(kept: Kept, tensors: list[torch.Tensor]) -> None:
    """All messages are under way at once."""
    rank = dist.get_rank()
    messages: list[dist.P2POp] = []
    if rank == kept.source:
        messages = [dist.P2POp(dist.isend, tensor, receiver) for receiver in kept.receivers for tensor in tensors]
    elif rank in kept.receivers:
        messages = [dist.P2POp(dist.irecv, tensor, kept.source) for tensor in tensors]
    for message in dist.batch_isend_irecv(messages) if messages else ():
        message.wait()
