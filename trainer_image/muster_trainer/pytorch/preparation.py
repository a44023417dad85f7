"""Prepares a process for its first step, before it has a task and a world.

Much of what a process does for the first time takes longer: PyTorch starts threads, fills caches and touches its code. A small model on the
CPU does that as well. No device is used, and the state of the random numbers stays the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from muster_trainer.pytorch.compat import leave_groups

WIDTH = 8


def train_once(parallelize: Callable[[nn.Sequential, DeviceMesh], nn.Module]) -> None:
    """Trains a small model for one step, in a world with only this process. Does nothing where processes train on a GPU."""
    if torch.cuda.is_available():
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # otherwise Gloo looks up the name of this host. A request has its own variables
    store = dist.HashStore()
    try:
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        with torch.random.fork_rng(devices=[]):
            mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("prepared",))  # no other mesh is equal to it in caches of PyTorch
            gathered = [""]
            dist.all_gather_object(gathered, "")
            model = parallelize(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)), mesh)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            outputs = model(torch.zeros(WIDTH, WIDTH))
            nn.functional.cross_entropy(outputs, torch.zeros(WIDTH, dtype=torch.long)).backward()
            optimizer.step()
    finally:
        leave_groups(store)  # also if it was not joined: the names of later groups must be the same as those of peers
