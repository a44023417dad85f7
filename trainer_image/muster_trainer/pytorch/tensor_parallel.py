"""PyTorch tensor parallelism. The matrices of each layer are divided among ranks, which compute every sample together."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from muster_contract.errors import BadConfiguration
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.pytorch.engine import TorchEngine
from muster_trainer.pytorch.mesh import mesh_of
from muster_trainer.pytorch.parallel import Context, Layout, ParallelModel
from muster_trainer.pytorch.preparation import train_once
from muster_trainer.tasks.module import Task
from muster_trainer.training.engine import Engine

STYLES: Mapping[str, Any] = {
    "Colwise": ColwiseParallel,  # splits the outputs of the layer
    "Rowwise": RowwiseParallel,  # splits the inputs of the layer, and sums its outputs over ranks
    "ColwiseGathered": lambda: ColwiseParallel(output_layouts=Replicate()),  # splits the outputs of the layer, and gathers them
}


def engine(task: Task, spec: TrainerSpec) -> Engine:
    return TorchEngine(task, spec, TensorParallelModel)


def prepare(_: TrainerSpec) -> None:
    train_once(lambda model, mesh: parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}))


class TensorParallelModel(ParallelModel):
    """One rank of a mesh of `data` x `tensor`. The ranks of a tensor group compute the same samples."""

    def __init__(self, context: Context, model: nn.Module) -> None:
        mesh = mesh_of(context.spec, context.device, world=context.world_size, sides=("data", "tensor"), whole="tensor")
        cut_matrices(model, context.task, mesh["tensor"])
        context.lower_precision(model)
        layout = Layout.of(mesh["data"], context, counts_losses=mesh["tensor"].get_local_rank() == 0)
        super().__init__(context, layout, model, reduces_over=mesh.get_group("data"))


def cut_matrices(model: nn.Module, task: Task, mesh: DeviceMesh) -> None:
    """Distributes the layers in the task's plan over `mesh`. Raises BadConfiguration if there is no plan or it does not fit the model."""
    if task.tensor_parallel_plan is None:
        raise BadConfiguration(
            f"{task.title}: tensor parallelism needs the function tensor_parallel_plan(model), which returns the cut of layers, such as "
            "{'blocks.*.up': 'Colwise', 'blocks.*.down': 'Rowwise'}; define it, or use FSDP"
        )
    plan = task.tensor_parallel_plan(model)
    names = [name for name, _ in model.named_modules()]
    styles: dict[str, ParallelStyle] = {}
    for pattern, style in plan.items():
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            raise BadConfiguration(f"{task.title}: tensor_parallel_plan names {pattern!r}, which is not a layer of the model")
        for name in matches:
            styles[name] = _style(style, pattern, task)
            _check_sizes(model.get_submodule(name), name, styles[name], mesh.size())
    parallelize_module(model, mesh, styles)


def _style(style: Any, pattern: str, task: Task) -> ParallelStyle:
    if isinstance(style, ParallelStyle):
        return style
    if style not in STYLES:
        raise BadConfiguration(
            f"{task.title}: tensor_parallel_plan returns {style!r} for {pattern!r}; write {', '.join(STYLES)} or a ParallelStyle"
        )
    made: ParallelStyle = STYLES[style]()
    return made


def _check_sizes(layer: nn.Module, name: str, style: ParallelStyle, ranks: int) -> None:
    """Raises BadConfiguration if the pieces would be unequal, because layers between two distributed ones compute with the pieces."""
    weight = getattr(layer, "weight", None)
    side = 0 if isinstance(style, ColwiseParallel) else 1
    if isinstance(weight, torch.Tensor) and isinstance(style, ColwiseParallel | RowwiseParallel) and weight.shape[side] % ranks:
        raise BadConfiguration(
            f"layer {name} of the model has {weight.shape[side]} {'rows' if side == 0 else 'columns'}, which {ranks} tensor-parallel "
            "processes cannot share evenly; change its width or the number of processes"
        )
