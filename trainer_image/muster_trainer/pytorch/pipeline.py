"""PyTorch pipeline parallelism. The layers are cut into stages on different ranks, and micro-batches pass through the stages.

GPipe (Huang et al., 2019) and 1F1B (Narayanan et al., 2019, with a flush) differ in the order of forward and backward passes. A step
has one update after all passes. So it computes the same as one device, in smaller portions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from muster_contract.options import PipelineOptions, Schedule
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.pytorch import compat
from muster_trainer.pytorch.compat import tree_map
from muster_trainer.pytorch.engine import TorchEngine
from muster_trainer.pytorch.parallel import Batch, Context
from muster_trainer.pytorch.pipedream import PipeDreamModel
from muster_trainer.pytorch.pipeline_stages import PipelineModel
from muster_trainer.pytorch.preparation import train_once
from muster_trainer.pytorch.world import detect_peer_loss
from muster_trainer.tasks.module import Task
from muster_trainer.training.engine import Engine


def engine(task: Task, spec: TrainerSpec) -> Engine:
    """The engine for the schedule of the job."""
    options = spec.options.pipeline or PipelineOptions()
    return TorchEngine(task, spec, ScheduledModel if options.schedule.is_synchronous else PipeDreamModel)


def prepare(_: TrainerSpec) -> None:
    train_once(lambda model, mesh: model)


class ScheduledModel(PipelineModel):
    """The stage of a rank, run by a synchronous schedule of PyTorch."""

    def __init__(self, context: Context, model: nn.Module) -> None:
        super().__init__(context, model)
        if compat.SCHEDULES_NEED_FIX:
            compat.fix_schedules(self.module if self.has_last_stage else None)
        rank = self.pipeline_rank
        stage = PipelineStage(
            self.module,
            rank,
            self.stages,
            context.device,
            input_args=self.shapes_between[rank].clone().requires_grad_(rank > 0),
            output_args=self.shapes_between[rank + 1].clone().requires_grad_(),
            group=self.stage_group,
        )
        options: dict[str, Any] = {"n_microbatches": self.micro_batch_count, "loss_fn": self._loss, **compat.UNSCALED}
        schedule: Any = ScheduleGPipe if self.schedule is Schedule.GPIPE else Schedule1F1B
        self._schedule = schedule(stage, **options)

    def forward_backward(self, batch: Batch) -> torch.Tensor:
        total, self._weight = torch.zeros(2, dtype=torch.float64, device=self.context.device)
        for samples, weights in self.split.micro_batches(batch):
            losses: list[torch.Tensor] = []
            self._samples, self._real, self._step_size = samples, int(weights.sum()), len(batch.indices)
            inputs = (samples[0],) if self.pipeline_rank == 0 else ()
            target = torch.arange(self.rows, device=self.context.device) if self.has_last_stage else None
            with detect_peer_loss():
                self._schedule.step(*inputs, target=target, losses=losses)
            total += sum((loss.detach().double() for loss in losses), torch.zeros_like(total))
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                parameter.grad /= len(batch.indices)
        return torch.stack([total, self._weight])

    def _loss(self, outputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The sum of the losses of a micro-batch. `rows` are its positions among the samples. Positions from `_real` on are padding."""
        count = int((rows < self._real).sum())
        if not count:
            return outputs.sum() * 0.0
        samples = tree_map(lambda tensor: tensor[rows[:count]], self._samples)
        loss, weight = self.objective.loss_sum(outputs[:count], samples, np.ones(count, dtype=np.float32), of=self._step_size)
        self._weight = self._weight + weight.double()
        return loss
