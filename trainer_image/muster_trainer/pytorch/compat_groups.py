"""The private parts of PyTorch's process groups. They are apart from `compat`, which imports much of PyTorch: a program of the user that
has lost a peer must not wait for that."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

_OLD_GROUPS: list[Any] = []


def leave_groups(*others: object) -> None:
    """Removes all process groups from PyTorch, so that another world can be joined. `others` may refer to them.

    The groups stay in memory, because their destructor joins the threads of Gloo. PyTorch 2.6 holds the GIL meanwhile, which these threads
    may wait for.
    """
    _OLD_GROUPS.extend((list(dist.distributed_c10d._world.pg_map), others))
    if dist.is_initialized():
        dist.destroy_process_group()
    world: Any = dist.distributed_c10d._world
    world.group_count = 0  # a failed join has counted its group. The names of groups must be the same as in new processes
