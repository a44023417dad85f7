"""Distributed data parallel in an existing process group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from muster_trainer.tasks.module import Task


def train(task: Task, batch: int, lay_out: Callable[[nn.Module], nn.Module] = DistributedDataParallel) -> Iterator[float]:
    """Does a step of `batch` samples at each `next`, and yields its loss on this rank."""
    torch.manual_seed(task.config.seed)
    model = lay_out(task.build_model(task.config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.config.learningRate, weight_decay=0.0)
    sampler = DistributedSampler(task.train, seed=task.config.seed)
    loader = DataLoader(task.train, batch // dist.get_world_size(), sampler=sampler, drop_last=True)
    for epoch in count():
        sampler.set_epoch(epoch)
        for batched in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = task.loss(model(batched[0]), batched).mean()
            loss.backward()
            optimizer.step()
            yield loss.item()
