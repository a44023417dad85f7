"""PyTorch FSDP2. Parameters, gradients and optimizer state are sharded over the ranks. Parameters are gathered layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.pytorch import compat, precision
from muster_trainer.pytorch.engine import TorchEngine
from muster_trainer.pytorch.mesh import mesh_of
from muster_trainer.pytorch.parallel import Context, Layout, ParallelModel
from muster_trainer.pytorch.preparation import train_once
from muster_trainer.pytorch.tensor_parallel import cut_matrices
from muster_trainer.tasks.module import Task
from muster_trainer.training.engine import Engine


def engine(task: Task, spec: TrainerSpec) -> Engine:
    return TorchEngine(task, spec, FsdpModel)


def prepare(_: TrainerSpec) -> None:
    train_once(_in_shards)


def _in_shards(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    if compat.FSDP_NEEDS_FIX_ON_CPU:
        compat.fix_fsdp_on_cpu()
    for layer in (*layers(model), model):
        fully_shard(layer, mesh=mesh, reshard_after_forward=not compat.FSDP_NEEDS_FIX_ON_CPU)
    return model


class FsdpModel(ParallelModel):
    """One rank of a fully sharded world. FSDP averages gradients during the backward pass.

    With `options.mesh.tensor`, groups of that many ranks also split the matrices of each layer. With `options.mesh.shard`, groups of that
    many neighbouring ranks share one set of shards. There are then `data` / `shard` sets with the same content (hybrid sharding).
    """

    def __init__(self, context: Context, model: nn.Module) -> None:
        mesh = mesh_of(context.spec, context.device, world=context.world_size, sides=("data", "tensor"), whole="data")
        data, tensor = mesh["data"], mesh["tensor"]
        if tensor.size() > 1:
            cut_matrices(model, context.task, tensor)
        shards = _shards(context, data)
        needs_fix = compat.FSDP_NEEDS_FIX_ON_CPU and context.device.type == "cpu"
        if needs_fix:
            compat.fix_fsdp_on_cpu()
        policy = MixedPrecisionPolicy()
        if precision.computes_in_bfloat16(context.task.config.precision, context.device):
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in layers(model):
            fully_shard(layer, mesh=shards, mp_policy=policy, reshard_after_forward=not needs_fix)
        self._fsdp: FSDPModule = fully_shard(model, mesh=shards, mp_policy=policy, reshard_after_forward=False)
        layout = Layout.of(data, context, counts_losses=tensor.get_local_rank() == 0)
        super().__init__(context, layout, model, gradient_scale=data.size())

    def micro_batch(self, *, last: bool) -> AbstractContextManager[Any]:
        self._fsdp.set_requires_gradient_sync(last)
        return nullcontext()


def _shards(context: Context, data: DeviceMesh) -> DeviceMesh:
    """The mesh over which parameters are sharded: all data-parallel ranks, or `options.mesh.shard` of them."""
    size, mesh = data.size(), context.spec.options.mesh
    shard = mesh.shard if mesh else None
    if shard in (None, size):
        return data
    return init_device_mesh(context.device.type, (size // shard, shard), mesh_dim_names=("replicate", "shard"))


def layers(model: nn.Module) -> Iterator[nn.Module]:
    """The modules whose parameters are gathered and freed together. They are the entries of the model, if it is a Sequential, and those of
    its ModuleLists."""
    lists = [
        module for module in model.modules() if isinstance(module, nn.ModuleList) or (module is model and isinstance(module, nn.Sequential))
    ]
    for module in reversed(lists):  # fully_shard needs inner layers first
        yield from (layer for layer in module if any(True for _ in layer.parameters()))
