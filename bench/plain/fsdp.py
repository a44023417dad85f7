"""Fully sharded data parallel, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.distributed.fsdp import fully_shard

from muster_trainer.tasks.module import Task
from plain import ddp


def train(task: Task, batch: int) -> Iterator[float]:
    """Does a step of `batch` samples at each `next`, and yields its loss on this rank."""
    return ddp.train(task, batch, lay_out=_sharded)


def _sharded(model: nn.Module) -> nn.Module:
    for layer in model.children():
        fully_shard(layer)
    return fully_shard(model)
