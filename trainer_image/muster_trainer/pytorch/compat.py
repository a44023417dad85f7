"""Private and version-dependent parts of PyTorch. No other module of this package uses a private name.

Muster is tested with PyTorch 2.6 and 2.15. Each part has a canary in tests/unit/trainer/test_compat_torch.py, which fails with a
sentence that names the part when a release changes it.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc
from torch.distributed.checkpoint.planner_helpers import _create_chunk_from_dtensor
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.distributed.pipelining import ScheduleGPipe, schedules
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel, distributed
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

__all__ = ["tree_leaves", "tree_map", "tree_map_only"]


def wait_for_collectives(outputs: Any) -> Any:
    """Returns `outputs` once the collectives that compute them have ended.

    Collectives of DTensor run asynchronously. A lost peer must show here, and not in the user's loss function.
    """
    for tensor in tree_leaves(outputs):
        if hasattr(tensor, "wait"):
            tensor.wait()
    return outputs


def ddp(model: nn.Module, *, send_state: bool = True) -> DistributedDataParallel:
    """DDP that never sends buffers by itself. PyTorch 2.6 has another name for that. `send_state`: rank 0 first sends its parameters.
    PyTorch 2.6 has no option for that, so the function that sends them is replaced meanwhile."""
    parameters = inspect.signature(DistributedDataParallel).parameters
    options: Any = {"forward_sync_buffers": False} if "forward_sync_buffers" in parameters else {"broadcast_buffers": False}
    if "init_sync" in parameters:
        options["init_sync"] = send_state
    if send_state or "init_sync" in parameters:
        return DistributedDataParallel(model, **options)
    patched: Any = distributed
    send, patched._sync_module_states = patched._sync_module_states, lambda *_, **__: None
    try:
        return DistributedDataParallel(model, **options)
    finally:
        patched._sync_module_states = send


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


def abort_nccl() -> None:
    """Aborts the communicators of all groups: their kernels end, with undefined results. PyTorch's own function also removes the groups,
    which another thread may use at this moment."""
    backends = []
    for group in list(dist.distributed_c10d._world.pg_map):
        with suppress(RuntimeError):  # a group without a backend for this device
            backend: Any = group._get_backend(torch.device("cuda"))
            if backend.name() == "nccl":
                backends.append(backend)
    if not backends:
        return
    backends[0]._group_start()  # otherwise the end of one communicator may wait for another one
    for backend in reversed(backends):
        backend.abort()
    backends[0]._group_end()


def release_ddp(module: DistributedDataParallel) -> None:
    """Removes the hooks of DDP from the parameters, so that the model can be given to another DDP."""
    released: Any = module
    released.reducer = released.logger = None  # the hooks end with the reducer, which the logger refers to


def local_box(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first corner and the shape of the part of `tensor` that this rank holds."""
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.dim(), tuple(tensor.shape)
    chunk = _create_chunk_from_dtensor(tensor)
    return tuple(chunk.offsets), tuple(chunk.sizes)


def rpc_options(*, threads: int, timeout: float) -> rpc.TensorPipeRpcBackendOptions:
    """Options for RPC over TCP only. The other transports of TensorPipe need shared memory or capabilities that a pod lacks."""
    return rpc.TensorPipeRpcBackendOptions(num_worker_threads=threads, rpc_timeout=timeout, _transports=["uv"], _channels=["basic"])


# FSDP of PyTorch 2.6 on the CPU

FSDP_NEEDS_FIX_ON_CPU = not hasattr(torch.cpu.Stream, "record_event")


def fix_fsdp_on_cpu() -> None:
    """Adds what FSDP of PyTorch 2.6 lacks on the CPU.

    Streams of the CPU lack two methods. Gloo cannot average, so that gradients are summed and then divided. Layers must also stay
    gathered between the passes (`reshard_after_forward=False`): gathering them again counts as a change of parameters in use.
    """
    stream: Any = torch.cpu.Stream
    stream.record_event = lambda stream: torch.cpu.Event()
    stream.wait_event = lambda stream, event: None
    collectives: Any = _fsdp_collectives
    collectives._get_gradient_divide_factors = _divide_after_sum


def _divide_after_sum(shards: dist.ProcessGroup, copies: dist.ProcessGroup | None, _: torch.dtype) -> tuple[float, float]:
    """The divisors of gradients before and after the sum over both groups."""
    return 1.0, float(shards.size() * (copies.size() if copies else 1))


# pipeline schedules of PyTorch 2.6

SCHEDULES_NEED_FIX = "scale_grads" not in inspect.signature(ScheduleGPipe.__init__).parameters
UNSCALED: dict[str, Any] = {} if SCHEDULES_NEED_FIX else {"scale_grads": False}
"""Options of a schedule that leaves gradients as they are. PyTorch 2.6 never divides them by the number of micro-batches."""


def fix_schedules(last_stage: nn.Module | None) -> None:
    """Mends two defects of schedules in PyTorch 2.6. `last_stage` is the last stage of the pipeline, if this rank has it.

    A schedule keeps only the last of the messages that it begins together, and Gloo drops messages without a reference. The output of
    the last stage is detached in place, which fails for a view (as the output of a dense layer for sequences is).
    """
    patched: Any = schedules
    patched._batch_p2p = _begin_together
    if last_stage is not None:
        last_stage.register_forward_hook(lambda part, inputs, outputs: outputs.clone() if outputs._is_view() else outputs)


class _Messages(list[dist.Work]):
    """Messages under way, with the `wait` of a single one."""

    def wait(self) -> None:
        for work in self:
            work.wait()


def _begin_together(messages: list[dist.P2POp], desc: str | None = None) -> _Messages:
    return _Messages(dist.batch_isend_irecv(messages) if messages else ())
