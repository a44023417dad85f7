"""PyTorch pipeline parallelism: the layers are cut into stages on different ranks, and micro-batches flow through them.

GPipe (Huang et al., 2019): all forward passes of a step, then all backward passes, then one update; so a step computes
what one device computes, in smaller portions.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils import _pytree as pytree

from muster_trainer.contract import BadConfiguration, TrainerSpec, UserError
from muster_trainer.data import portions
from muster_trainer.pytorch.engine import TorchEngine
from muster_trainer.pytorch.input import read_in_line
from muster_trainer.pytorch.mesh import mesh_of
from muster_trainer.pytorch.world import peers
from muster_trainer.tasks.module import describe

# Before torch 2.7 gradients were never divided by the number of micro-batches; since then it must be said.
_UNSCALED = {"scale_grads": False} if "scale_grads" in inspect.signature(ScheduleGPipe.__init__).parameters else {}


class Pipeline(TorchEngine):
    """One stage, in a mesh of `data` x `pipeline`.

    Messages between stages have one size: `rows` samples go through the pipeline at once, and a shorter batch, at the end
    of an epoch, is filled up with samples that do not count.
    """

    def _lay_out(self, model: nn.Module) -> nn.Module:
        mesh = mesh_of(self.spec, self.device, world=self.world, sides=("data", "pipeline"), whole="pipeline")
        self.ways, self.position = mesh["data"].size(), mesh["data"].get_local_rank()
        self.stage, self.stages = mesh["pipeline"].get_local_rank(), mesh["pipeline"].size()
        self.counts = self.stage == self.stages - 1
        self.data_group, self.stage_group = mesh.get_group("data"), mesh.get_group("pipeline")
        self.micro_batches = micro_batches(self.spec, ways=self.ways, stages=self.stages)
        self.rows = self.spec.batch.global_size // (self.ways * self.accumulation)
        parts = cut(model, self.stages, title=self.task.title)
        for part in parts:
            self._lower(part)
        part = parts[self.stage]
        if self.counts:
            part.register_forward_hook(_of_its_own)
        shapes = self._shapes_between(parts)
        self.schedule = self._schedule(part, shapes, loss=True)
        self.forward_only = self._schedule(part, shapes, loss=False)
        return part

    def _shapes_between(self, parts: list[nn.Sequential]) -> list[torch.Tensor]:
        """What goes into each stage, and out of the last, for one micro-batch: tensors without numbers.

        Found by one pass through the whole model on each rank, so that a model that does not run ends all of them alike.
        """
        indices = np.zeros(self.rows // self.micro_batches, dtype=np.int64)
        values = self._on_device(next(read_in_line(self.task, self.task.train, [(0, indices)], position=self.position)))[0]
        shapes = []
        with torch.no_grad():
            for number, part in enumerate(parts):
                if not isinstance(values, torch.Tensor):
                    kind = type(values).__name__
                    message = f"Pipeline passes one tensor from layer to layer; stage {number} would get a {kind}"
                    raise BadConfiguration(f"{self.task.title}: {message}")
                shapes.append(values.to("meta"))
                try:
                    values = part.eval()(values)
                except Exception as error:
                    raise UserError(f"{self.task.title}: the model failed on {len(indices)} samples: {describe(error)}") from error
        return [*shapes, values.to("meta")]

    def _schedule(self, part: nn.Module, shapes: list[torch.Tensor], *, loss: bool) -> ScheduleGPipe:
        stage = PipelineStage(
            part,
            self.stage,
            self.stages,
            self.device,
            input_args=shapes[self.stage].clone().requires_grad_(loss and self.stage > 0),
            output_args=shapes[self.stage + 1].clone().requires_grad_(loss),
            group=self.stage_group,
        )
        return ScheduleGPipe(stage, self.micro_batches, loss_fn=self._loss if loss else None, **_UNSCALED)

    def _share(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each portion filled up to `rows` samples."""
        samples, weights = [], []
        for piece in portions(portions(indices, self.ways)[self.position], self._count(indices)):
            first = piece[:1] if len(piece) else indices[:1]
            samples += [piece, np.repeat(first, self.rows - len(piece))]
            weights.append(np.arange(self.rows) < len(piece))
        return np.concatenate(samples), np.concatenate(weights).astype(np.float32)

    def _differentiate(self, indices: np.ndarray, samples: Any) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch, weights in self._pieces(indices, samples):
            losses: list[torch.Tensor] = []
            self._flow(self.schedule, batch, weights, losses=losses)
            total += sum((loss.detach().double() for loss in losses), torch.zeros_like(total))
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= len(indices)
        return total

    def _flow(self, schedule: ScheduleGPipe, batch: Any, weights: np.ndarray, *, losses: list[torch.Tensor] | None) -> Any:
        """Sends a portion through the stages; gives the outputs in the last stage."""
        self.batch, self.real = batch, int(weights.sum())
        arguments = (self.batch[0],) if self.stage == 0 else ()
        target = torch.arange(self.rows, device=self.device) if self.counts and losses is not None else None
        with peers(self.rank):
            if losses is None:
                return schedule.step(*arguments)
            return schedule.step(*arguments, target=target, losses=losses)

    def _loss(self, outputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The sum of losses of a micro-batch; `rows` are its places in the batch."""
        count = int((rows < self.real).sum())
        if not count:
            return outputs.sum() * 0.0
        batch = pytree.tree_map(lambda one: one[rows[:count]], self.batch)
        return self._sum(self._losses(outputs[:count], batch), np.ones(count, dtype=np.float32), "loss")

    def _evaluate_batch(self, indices: np.ndarray, samples: Any) -> dict[str, float]:
        sums: dict[str, float] = {}
        for batch, weights in self._pieces(indices, samples):
            outputs = self._flow(self.forward_only, batch, weights, losses=None)
            if self.counts and self.real:
                counted = pytree.tree_map(lambda one: one[: self.real], batch)
                for name, value in self._measure(outputs[: self.real], counted, weights[: self.real]).items():
                    sums[name] = sums.get(name, 0.0) + value
        return sums

    def _copies(self) -> int:
        return self.ways

    def _share_buffers(self) -> None:
        for buffer in self.model.buffers():
            dist.broadcast(buffer, src=dist.get_global_rank(self.data_group, 0), group=self.data_group)


def _of_its_own(part: nn.Module, inputs: Any, outputs: torch.Tensor) -> torch.Tensor:
    """Torch 2.6 detaches what the last stage gives in place, which a view of something else (a dense layer's output for
    sequences, say) does not allow."""
    return outputs.clone() if outputs._is_view() else outputs


def micro_batches(spec: TrainerSpec, *, ways: int, stages: int) -> int:
    """The number of micro-batches. Raises BadConfiguration where it does not divide what goes through the pipeline."""
    options = spec.options.get("pipeline") or {}
    if options.get("schedule", "GPipe") != "GPipe":
        raise BadConfiguration(f"spec.options.pipeline.schedule: the bundled trainer runs GPipe, not {options['schedule']}; write GPipe")
    if (options.get("stages") or stages) != stages:
        raise BadConfiguration(f"spec.options.pipeline.stages: {options['stages']} stages for {stages} processes in a row; write {stages}")
    count = int(options.get("microBatches") or stages)
    size, parts = spec.batch.global_size, ways * spec.batch.accumulation_steps
    if size % (parts * count):
        near = max(round(size / (parts * count)), 1) * parts * count
        shared = f"{size} samples" + (f" in {parts} parts (data-parallel ways x accumulation steps)" if parts > 1 else "")
        raise BadConfiguration(
            f"spec.options.pipeline.microBatches: {count} micro-batches do not divide a batch of {shared}; write a number that does, "
            f"or batch.globalSize: {near}"
        )
    return count


def cut(model: nn.Module, stages: int, *, title: str) -> list[nn.Sequential]:
    """The layers of a Sequential in `stages` runs with the same number of layers that have parameters, or one more in the
    first ones. Layers keep their names, and one without parameters stays with the one before it.

    Raises BadConfiguration where the model is no Sequential or has too few layers.
    """
    if not isinstance(model, nn.Sequential):
        raise BadConfiguration(
            f"{title}: Pipeline cuts a list of layers, and build_model gave a {type(model).__name__}; give a torch.nn.Sequential of "
            "its layers"
        )
    groups: list[list[tuple[str, nn.Module]]] = []
    for name, layer in model.named_children():
        if not groups or (any(True for _ in layer.parameters()) and _trains(groups[-1])):
            groups.append([])
        groups[-1].append((name, layer))
    if len(groups) < stages:
        raise BadConfiguration(
            f"{title}: {stages} stages, but the model has {len(groups)} layer(s) with parameters; write {len(groups)} stages at most, "
            "or a deeper model"
        )
    runs = portions(np.arange(len(groups)), stages)
    return [nn.Sequential(OrderedDict(entry for place in run for entry in groups[place])) for run in runs]


def _trains(group: list[tuple[str, nn.Module]]) -> bool:
    return any(True for _, layer in group for _ in layer.parameters())
