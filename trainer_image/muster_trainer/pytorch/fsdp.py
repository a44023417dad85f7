"""PyTorch FSDP2: parameters, gradients and optimizer state are cut up over the ranks, and gathered layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from muster_trainer.contract import BadConfiguration
from muster_trainer.pytorch import fsdp_on_cpu, precision
from muster_trainer.pytorch.engine import TorchEngine
from muster_trainer.pytorch.mesh import mesh_of
from muster_trainer.pytorch.tensor_parallel import cut_matrices, separate_groups


class Fsdp(TorchEngine):
    """One rank of a fully sharded world.

    `options.mesh.tensor` ranks cut the matrices of each layer between them as well. With `options.mesh.shard` only so
    many neighbouring ranks share one set of shards, and all of `data` / `shard` sets hold the same (hybrid sharding).
    """

    averages_gradients = True

    def _lay_out(self, model: nn.Module) -> nn.Module:
        mesh = mesh_of(self.spec, self.device, world=self.world, sides=("data", "tensor"), whole="data")
        self.ways, self.position = mesh["data"].size(), mesh["data"].get_local_rank()
        self.counts = mesh["tensor"].get_local_rank() == 0
        if mesh["tensor"].size() > 1:
            cut_matrices(model, self.task, mesh["tensor"])
        sharding = self._sharding(mesh)
        mended = fsdp_on_cpu.NEEDED and self.device.type == "cpu"
        if mended:
            fsdp_on_cpu.mend()
        policy = MixedPrecisionPolicy()
        if precision.computes_in_bfloat16(self.task.config.precision, self.device):
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in layers(model):
            fully_shard(layer, mesh=sharding, mp_policy=policy, reshard_after_forward=not mended)
        return fully_shard(model, mesh=sharding, mp_policy=policy, reshard_after_forward=False)

    def _sharding(self, mesh: DeviceMesh) -> DeviceMesh:
        shard = int((self.spec.options.get("mesh") or {}).get("shard") or self.ways)
        if self.ways % shard:
            raise BadConfiguration(f"spec.options.mesh.shard: {shard} does not divide the {self.ways} data-parallel processes")
        if shard == self.ways:
            return mesh["data"]
        if mesh["tensor"].size() > 1:
            raise BadConfiguration("spec.options.mesh: shard and tensor cannot be combined; leave one of them out")
        return init_device_mesh(self.device.type, (self.ways // shard, shard), mesh_dim_names=("replicate", "shard"))

    def _optimizer(self) -> Any:
        return separate_groups(super()._optimizer())

    def _reducing(self, last: bool) -> AbstractContextManager[Any]:
        return self._synchronised(last)

    @contextmanager
    def _synchronised(self, last: bool) -> Iterator[None]:
        self.model.set_requires_gradient_sync(last)  # type: ignore[operator]
        yield


def layers(model: nn.Module) -> Iterator[nn.Module]:
    """What is gathered and freed as one: the entries of the model, if it is a Sequential, and of all its ModuleLists."""
    lists = [
        module for module in model.modules() if isinstance(module, nn.ModuleList) or (module is model and isinstance(module, nn.Sequential))
    ]
    for module in reversed(lists):  # inner ones first, as fully_shard needs it
        yield from (layer for layer in module if any(True for _ in layer.parameters()))
