"""A model in parallel: the part of this rank, and the passes and updates that the ranks do together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.data import weighted_share
from muster_trainer.pytorch import gradients, precision
from muster_trainer.pytorch.compat import tree_map, wait_for_collectives
from muster_trainer.pytorch.device import to_device
from muster_trainer.pytorch.objective import Objective
from muster_trainer.pytorch.optimizers import build_optimizer, set_rates
from muster_trainer.pytorch.seeds import seed_all
from muster_trainer.pytorch.world import detect_peer_loss
from muster_trainer.tasks.module import Task
from muster_trainer.training.engine import rate_share


@dataclass(frozen=True)
class Context:
    """The facts from which a strategy lays out a model. `max_samples` is the most samples that a rank puts through the model at once."""

    task: Task
    spec: TrainerSpec
    device: torch.device
    rank: int
    world_size: int
    max_samples: int
    cut: tuple[int, ...] = ()
    """Layers of each stage of a pipeline in an earlier attempt, if a snapshot in memory has them."""
    has_survivors: bool = False
    """Whether ranks of this world have the state of the previous world. No other rank may overwrite it."""

    def lower_precision(self, model: nn.Module) -> None:
        """Makes `model` compute in the precision of the job."""
        if precision.computes_in_bfloat16(self.task.config.precision, self.device):
            precision.lower(model, self.device)


@dataclass(frozen=True)
class Layout:
    """How the ranks share the batch and the model.

    A batch is split into `data_parallel_size` shares; this rank computes share `data_parallel_rank`, perhaps together with other ranks.
    Each sample counts once: the losses of a rank are added up only if `counts_losses`. `gradient_copies` ranks hold the same gradient of
    a parameter that is no DTensor.
    """

    data_parallel_size: int
    data_parallel_rank: int
    gradient_copies: int
    counts_losses: bool = True
    holds_whole_model: bool = False

    @classmethod
    def of(cls, data: DeviceMesh, context: Context, *, counts_losses: bool) -> Layout:
        """The layout of a mesh whose data-parallel dimension is `data`."""
        return cls(data.size(), data.get_local_rank(), gradient_copies=context.world_size, counts_losses=counts_losses)


@dataclass(frozen=True)
class Batch:
    """The batch of a step (or another number that random numbers are seeded from).

    `indices` are the samples of the whole world; `samples` is this rank's share of them, as CPU tensors.
    """

    step: int
    indices: np.ndarray
    samples: Any


@dataclass(frozen=True)
class BatchSplit:
    """Splits a batch into shares of ranks, and a share into micro-batches."""

    layout: Layout
    accumulation_steps: int
    max_samples: int
    device: torch.device

    def share(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The samples that this rank reads, and their weights (0 or 1): both of shape (n >= 1,)."""
        return weighted_share(indices, self.layout.data_parallel_size, self.layout.data_parallel_rank)

    def count(self, indices: np.ndarray) -> int:
        """The number of micro-batches, which is the same on all ranks, because each may need collectives."""
        share = -(-len(indices) // self.layout.data_parallel_size)
        return min(max(self.accumulation_steps, -(-share // self.max_samples)), share)

    def micro_batches(self, batch: Batch) -> Iterator[tuple[Any, np.ndarray]]:
        """The micro-batches of this rank's share, on the device, with the weights of their samples."""
        count = self.count(batch.indices)
        share = self.share(batch.indices)[1]
        for number in range(count):
            rows, weights = weighted_share(np.arange(len(share)), count, number)
            piece = slice(int(rows[0]), int(rows[-1]) + 1)
            yield to_device(tree_map(lambda tensor, piece=piece: tensor[piece], batch.samples), self.device), weights * share[rows]


class ParallelModel:
    """This rank's part of a model with its optimizer. Each strategy overrides some methods.

    `module` is what this rank trains and saves. `gradient_scale` is the factor of a local loss, so that gradients are those of the sum
    of losses once they have been reduced: the number of ranks, if the reduction averages. Gradients are summed over the group
    `reduces_over` after the passes; None if the passes do it.
    """

    refuses: frozenset[str] = frozenset()
    """See `training.engine.Engine.refuses`."""
    staleness: int | None = None
    """See `training.engine.StepOutcome.staleness`."""
    cut: tuple[int, ...] = ()
    """Layers of each stage, of a pipeline."""
    updates_within_passes: bool = False
    """Whether parameters change in the passes as well, and not only in `update`."""
    is_emptied_between_steps: bool = False
    """Whether `finish_updates` changes the losses of later steps."""
    rejoins: bool = False
    """Whether `rejoin` is implemented."""
    optimizer: torch.optim.Optimizer

    def __init__(
        self,
        context: Context,
        layout: Layout,
        module: nn.Module,
        *,
        split: BatchSplit | None = None,
        gradient_scale: int = 1,
        reduces_over: dist.ProcessGroup | None = None,
    ) -> None:
        self.context, self.layout, self.module = context, layout, module
        self.split = split or BatchSplit(layout, context.spec.batch.accumulation_steps, context.max_samples, context.device)
        self._gradient_scale, self._reduces_over = gradient_scale, reduces_over
        self.objective = Objective(context.task, context.device)

    def build_optimizer(self, learning_rate: float) -> None:
        self.optimizer = build_optimizer(self.context.task, self.module, learning_rate=learning_rate)

    @property
    def stored_optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer whose state is part of a snapshot. None: this rank updates no parameters."""
        return self.optimizer

    def seed(self, step: int) -> None:
        """Seeds the random numbers of a step. They differ between shares of a batch."""
        seed_all(self.context.task.config.seed, step, self.layout.data_parallel_rank)

    def rejoin(self) -> None:
        """Prepares for another world of the same shape, which this process has joined with its model and optimizer."""
        raise NotImplementedError

    # a step

    def start_step(self, batch: Batch) -> None:
        """Runs before the passes of a step, on all ranks."""

    def forward_backward(self, batch: Batch) -> torch.Tensor:
        """Computes this rank's part of the gradient of (sum of losses / number of samples). Returns its sum of losses, and the sum of their
        weights: float64, shape (2,). If the task's loss has weights, `divide_by_weight` follows."""
        scale = self._gradient_scale / len(batch.indices)
        sums = torch.zeros(2, dtype=torch.float64, device=self.context.device)
        last = self.split.count(batch.indices) - 1
        for number, (samples, weights) in enumerate(self.split.micro_batches(batch)):
            with self.micro_batch(last=number == last):
                with detect_peer_loss():
                    outputs = wait_for_collectives(self.forward(samples[0]))
                loss, weight = self.objective.loss_sum(outputs, samples, weights, of=len(batch.indices))
                with detect_peer_loss():
                    (loss * scale).backward()
                sums += torch.stack([loss.detach().double(), weight.double()])
        return sums

    def divide_by_weight(self, samples: int, weight: float) -> None:
        """Makes gradients those of (sum of losses / `weight`), with the weight of the whole batch, which has that many `samples`."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                gradients.local(parameter.grad).mul_(samples / weight if weight else math.nan)

    def forward(self, inputs: Any) -> Any:
        return self.module(inputs)

    def micro_batch(self, *, last: bool) -> AbstractContextManager[Any]:
        """The context for the passes of a micro-batch. The last one of a step may reduce gradients."""
        return nullcontext()

    def reduce_gradients(self) -> None:
        """Makes gradients those of the whole batch, after the last backward pass."""
        if self._reduces_over is not None and self.layout.data_parallel_size > 1:
            gradients.all_reduce(self.module.parameters(), self._reduces_over)

    def clip_gradients(self) -> None:
        """Clips the gradients of the whole batch. It runs before the votes, because it may need the other ranks."""
        if limit := self.context.task.config.gradientClipNorm:
            copies = None if self.layout.holds_whole_model else self.layout.gradient_copies
            gradients.clip(self.module.parameters(), limit, copies=copies)

    def finish_passes(self) -> None:
        """Runs after the passes of a step and before its votes, on all ranks. Buffers are sent here, so that no rank needs another one's
        between two steps."""
        self.sync_buffers()

    def gradients_ready_at(self) -> float:
        """The time (`time.monotonic`) at which this rank's gradients were ready. From then on it only waited for other ranks.

        0 if the strategy cannot measure it, because ranks wait for each other throughout the passes.
        """
        return 0.0

    def update(self, step: int) -> None:
        """Steps the optimizer."""
        set_rates(self.optimizer, rate_share(self.context.task, step))
        self.optimizer.step()

    # between steps

    def sync_buffers(self) -> None:
        """Copies the buffers (running averages, for instance) of the first rank that has them to all ranks."""
        for buffer in self.module.buffers():
            broadcast_tensor(buffer, source=0)

    def finish_updates(self) -> None:
        """Completes the updates of all steps, if some are under way between steps."""

    def test_share(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The share of a batch of the test set; see `BatchSplit.share`."""
        return self.split.share(indices)

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """The sums of loss and metrics over this rank's share of a batch of the test set."""
        samples = to_device(batch.samples, self.context.device)
        with detect_peer_loss():
            outputs = wait_for_collectives(self.module(samples[0]))
        return self.objective.metric_sums(outputs, samples, self.test_share(batch.indices)[1])


def broadcast_tensor(tensor: torch.Tensor, *, source: int, group: dist.ProcessGroup | None = None) -> None:
    """Copies `tensor` from rank `source`. A message must be contiguous, and a view may not be."""
    numbers = tensor.contiguous()
    dist.broadcast(numbers, src=source, group=group)
    if numbers is not tensor:
        tensor.copy_(numbers)


@torch.no_grad()
def broadcast_together(tensors: Iterable[torch.Tensor], *, source: int) -> None:
    """Copies `tensors` from rank `source`, in one message per type of number."""
    gradients.together(tensors, partial(dist.broadcast, src=source))


@torch.no_grad()
def restore_buffers(module: nn.Module, saved: list[torch.Tensor]) -> None:
    """Sets the buffers to copies that were made of them before, if there are any."""
    for buffer, copy in zip(module.buffers(), saved, strict=False):
        buffer.copy_(copy)
