"""PyTorch tensor parallelism: the matrices of each layer are cut up over ranks that compute every sample together."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from muster_trainer.contract import BadConfiguration
from muster_trainer.pytorch.engine import TorchEngine
from muster_trainer.pytorch.mesh import mesh_of
from muster_trainer.tasks.module import Task

STYLES: Mapping[str, Any] = {
    "Colwise": ColwiseParallel,  # the outputs of the layer are cut up
    "Rowwise": RowwiseParallel,  # its inputs are; the sum over ranks comes out whole
    "ColwiseGathered": lambda: ColwiseParallel(output_layouts=Replicate()),  # cut up, then put together again
}


class TensorParallel(TorchEngine):
    """One rank of a mesh of `data` x `tensor`; ranks of one tensor group compute the same samples."""

    def _lay_out(self, model: nn.Module) -> nn.Module:
        mesh = mesh_of(self.spec, self.device, world=self.world, sides=("data", "tensor"), whole="tensor")
        self.ways, self.position = mesh["data"].size(), mesh["data"].get_local_rank()
        self.counts = mesh["tensor"].get_local_rank() == 0
        self.data_group = mesh.get_group("data")
        cut_matrices(model, self.task, mesh["tensor"])
        self._lower(model)
        return model

    def _optimizer(self) -> torch.optim.Optimizer:
        return separate_groups(super()._optimizer())


def cut_matrices(model: nn.Module, task: Task, mesh: DeviceMesh) -> None:
    """Lays the layers that the task's plan names out over `mesh`. Raises BadConfiguration where there is no plan or it does not fit."""
    if task.tensor_parallel_plan is None:
        raise BadConfiguration(
            f"{task.title}: tensor parallelism needs the function tensor_parallel_plan(model), which gives "
            "{'blocks.*.up': 'Colwise', 'blocks.*.down': 'Rowwise'}, say: which layers are cut up, and how; define it, or use FSDP"
        )
    plan = task.tensor_parallel_plan(model)
    names = [name for name, _ in model.named_modules()]
    styles: dict[str, ParallelStyle] = {}
    for pattern, style in plan.items():
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise BadConfiguration(f"{task.title}: tensor_parallel_plan names {pattern!r}, which is no layer of the model")
        for name in found:
            styles[name] = _style(style, pattern, task)
            _check_sizes(model.get_submodule(name), name, styles[name], mesh.size())
    parallelize_module(model, mesh, styles)


def _style(style: Any, pattern: str, task: Task) -> ParallelStyle:
    if isinstance(style, ParallelStyle):
        return style
    if style not in STYLES:
        raise BadConfiguration(
            f"{task.title}: tensor_parallel_plan gives {style!r} for {pattern!r}; write {', '.join(STYLES)} or a ParallelStyle"
        )
    made: ParallelStyle = STYLES[style]()
    return made


def _check_sizes(layer: nn.Module, name: str, style: ParallelStyle, ranks: int) -> None:
    """Layers between two cut ones compute on the pieces, which must be alike."""
    weight = getattr(layer, "weight", None)
    side = 0 if isinstance(style, ColwiseParallel) else 1
    if isinstance(weight, torch.Tensor) and isinstance(style, ColwiseParallel | RowwiseParallel) and weight.shape[side] % ranks:
        raise BadConfiguration(
            f"layer {name} of the model has {weight.shape[side]} {'rows' if side == 0 else 'columns'}, which {ranks} tensor-parallel "
            "processes cannot share evenly; change its width or the number of processes"
        )


def separate_groups(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """DTensors and plain tensors in parameter groups of their own: an optimizer that takes a group at once cannot mix them."""
    groups = []
    for group in optimizer.param_groups:
        cut = [parameter for parameter in group["params"] if isinstance(parameter, DTensor)]
        plain = [parameter for parameter in group["params"] if not isinstance(parameter, DTensor)]
        groups += [{**group, "params": parameters} for parameters in (cut, plain) if parameters]
    optimizer.param_groups[:] = groups
    return optimizer
