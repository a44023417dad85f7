"""PipeDream's asynchronous 1F1B with weight stashing (Narayanan et al., 2019, section 3.3).

Each stage updates its weights after each micro-batch. It starts the next micro-batches before the gradients of earlier ones come back, so
no stage waits until the pipeline is empty. The backward pass of a micro-batch uses the weights of its forward pass. The stage stashes
these weights in between, and applies the gradient to newer weights. In a stage with k stages after it, a gradient is k updates old. The
losses differ from those of synchronous training, but they are the same in each run, because the order of passes is fixed.

The pipeline is emptied before a save and an evaluation. It stays full between steps, while the ranks vote.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from muster_contract.errors import BadConfiguration
from muster_trainer.pytorch.compat import tree_map
from muster_trainer.pytorch.optimizers import set_rates
from muster_trainer.pytorch.parallel import Batch, Context
from muster_trainer.pytorch.pipeline_stages import FIELD, PipelineModel
from muster_trainer.pytorch.world import detect_peer_loss
from muster_trainer.tasks.config import Config
from muster_trainer.training.engine import rate_share


@dataclass(frozen=True)
class _Flight:
    """A micro-batch between its two passes in this stage: its inputs, its outputs (the loss, in the last stage), and its weights."""

    step: int
    inputs: torch.Tensor
    outputs: torch.Tensor
    weights: Mapping[str, torch.Tensor]


class PipeDreamModel(PipelineModel):
    """One stage. `lag` is the number of stages after it. It has begun `lag` more forward passes than backward passes."""

    refuses = frozenset({"gradientClipNorm", "nanLoss: Skip"})
    updates_within_passes = True
    is_emptied_between_steps = True

    def __init__(self, context: Context, model: nn.Module) -> None:
        super().__init__(context, model)
        refuse(context.task.config)
        self.staleness = self.stages - 1
        self.lag = self.stages - 1 - self.pipeline_rank
        self._flights: deque[_Flight] = deque()
        self._sent: deque[tuple[torch.Tensor, list[dist.Work]]] = deque()
        self._stash: Mapping[str, torch.Tensor] | None = None

    def forward_backward(self, batch: Batch) -> torch.Tensor:
        sums = torch.zeros(2, dtype=torch.float64, device=self.context.device)
        pieces = list(self._micro_batches(batch))
        incoming = self._exchange(None, receive=self.pipeline_rank > 0, distance=-1)
        for number, (samples, real) in enumerate(pieces):
            inputs = samples[0] if self.pipeline_rank == 0 else incoming.requires_grad_()
            flight, own = self._forward_pass(batch, inputs, samples, real=real)
            sums += own
            self._flights.append(flight)
            returns = len(self._flights) > self.lag
            gradient = self._exchange(flight.outputs, receive=returns, distance=1)
            back = self._backward_pass(gradient) if returns else None
            incoming = self._exchange(back, receive=self.pipeline_rank > 0 and number + 1 < len(pieces), distance=-1)
        return sums

    def _micro_batches(self, batch: Batch) -> Iterator[tuple[Any, int]]:
        """The micro-batches, and the number of samples in each before the padding at its end. Leaves out micro-batches of padding only."""
        ((samples, weights),) = self.split.micro_batches(batch)
        size = self.rows // self.micro_batch_count
        for first in range(0, self.rows, size):
            if real := int(weights[first : first + size].sum()):
                yield tree_map(lambda tensor, first=first: tensor[first : first + size], samples), real

    def _forward_pass(self, batch: Batch, inputs: torch.Tensor, samples: Any, *, real: int) -> tuple[_Flight, torch.Tensor]:
        """Starts a micro-batch. Returns it, and the sums of its losses and of their weights, which are 0 except in the last stage."""
        weights = {name: weight.detach().requires_grad_() for name, weight in self._stashed_weights().items()}
        with detect_peer_loss():
            outputs = functional_call(self.module, dict(weights), (inputs,))
        sums = torch.zeros(2, dtype=torch.float64, device=self.context.device)
        if self.has_last_stage:
            counted = tree_map(lambda tensor: tensor[:real], samples)
            loss, weight = self.objective.loss_sum(outputs[:real], counted, np.ones(real, dtype=np.float32), of=len(batch.indices))
            sums, outputs = torch.stack([loss.detach().double(), weight.double()]), loss / weight
        return _Flight(batch.step, inputs, outputs, weights), sums

    def _stashed_weights(self) -> Mapping[str, torch.Tensor]:
        """A copy of the current weights, which updates do not change. Micro-batches without an update between them share one copy."""
        if self._stash is None:
            current = {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}
            self._stash = current if self.lag == 0 else {name: weight.detach().clone() for name, weight in current.items()}
        return self._stash

    def _backward_pass(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Runs the backward pass of the oldest micro-batch, and updates. Returns the gradient of its inputs."""
        flight = self._flights.popleft()
        flight.outputs.backward(gradient)
        for name, parameter in self.module.named_parameters():
            parameter.grad = flight.weights[name].grad if name in flight.weights else None
        set_rates(self.optimizer, rate_share(self.context.task, flight.step))
        self.optimizer.step()
        self._stash = None
        return flight.inputs.grad

    def _exchange(self, tensor: torch.Tensor | None, *, receive: bool, distance: int) -> Any:
        """Sends to the next stage (`distance` 1) or the previous one (-1), and receives from it.

        Both are one operation, because NCCL runs separate operations between two ranks one after the other. It waits only for the oldest
        sends, because the receiver of a newer one may be in a vote. The receiver of the oldest has used it already.
        """
        if not 0 <= self.pipeline_rank + distance < self.stages:
            return None
        ops = [] if tensor is None else [dist.P2POp(dist.isend, tensor, self.neighbour(distance), self.stage_group)]
        if receive:
            buffer = torch.empty_like(self.shapes_between[self.pipeline_rank + (distance > 0)], device=self.context.device)
            ops.append(dist.P2POp(dist.irecv, buffer, self.neighbour(distance), self.stage_group))
        with detect_peer_loss():
            works = dist.batch_isend_irecv(ops) if ops else []
            if tensor is not None:
                self._sent.append((tensor, works[:1]))
            self._wait_for_sends(most_pending=2 * (self.stages + 1))
            if receive:
                works[-1].wait()
        return buffer if receive else None

    def _wait_for_sends(self, *, most_pending: int) -> None:
        while len(self._sent) > most_pending:
            for work in self._sent.popleft()[1]:
                work.wait()

    def finish_updates(self) -> None:
        """Empties the pipeline, so that the next save or evaluation includes the updates of all steps."""
        with torch.enable_grad():
            while self._flights:
                gradient = self._exchange(None, receive=True, distance=1)
                self._exchange(self._backward_pass(gradient), receive=False, distance=-1)
        with detect_peer_loss():
            self._wait_for_sends(most_pending=0)

    def divide_by_weight(self, samples: int, weight: float) -> None:
        """Does nothing, because each micro-batch has been divided by its own weight."""

    def update(self, step: int) -> None:
        """Does nothing, because each micro-batch has made its update already."""


def refuse(config: Config) -> None:
    """Raises BadConfiguration for settings that need the gradient of a whole step, because PipeDream never has one."""
    for field, is_set, remedy in (
        ("spec.trainer.config.gradientClipNorm", bool(config.gradientClipNorm), "leave it out"),
        ("spec.trainer.config.nanLoss", config.nanLoss == "Skip", "write Stop or Continue"),
    ):
        if is_set:
            message = f"PipeDream updates each stage by itself, after each micro-batch; {remedy}, or {FIELD}.schedule: 1F1B"
            raise BadConfiguration(f"{field}: {message}")
