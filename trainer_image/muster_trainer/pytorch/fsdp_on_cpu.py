"""FSDP of torch 2.6 on the CPU, which lacks three things that later versions have.

The CPU's streams, which do nothing, lack what FSDP calls. Gloo cannot average: reduce-scatter adds up in place of it, and
all-reduce refuses. Gathering a layer again for the backward pass counts as a change of the parameters that were used.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

NEEDED = not hasattr(torch.cpu.Stream, "record_event")


def mend() -> None:
    """Makes gradients be added up and then divided, and gives the streams what they lack. Layers must stay gathered
    between the passes besides (`reshard_after_forward=False`)."""
    torch.cpu.Stream.record_event = lambda stream: torch.cpu.Event()
    torch.cpu.Stream.wait_event = lambda stream, event: None
    collectives._get_gradient_divide_factors = _factors


def _factors(shards: dist.ProcessGroup, copies: dist.ProcessGroup | None, _: torch.dtype) -> tuple[float, float]:
    """What gradients are divided by before and after they are added up over both groups."""
    return 1.0, float(shards.size() * (copies.size() if copies else 1))
