"""PipeDream's asynchronous 1F1B with weight stashing (Narayanan et al., 2019, section 3.3).

Each stage updates its weights after each micro-batch, and begins the next ones before its gradients have come back: no stage waits for
the pipeline to empty. A micro-batch's backward pass uses the weights of its forward pass, which the stage stashes meanwhile; its gradient
is then applied to newer ones. In a stage with k stages after it, a gradient is thus k updates old: the losses are not those of
synchronous training. They are the same each time, for the order of passes is fixed.

The pipeline is emptied before a save and an evaluation. Between steps it stays full, but that all ranks meet for their votes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.func import functional_call
from torch.utils import _pytree as pytree

from muster_trainer.contract import BadConfiguration, TrainerSpec
from muster_trainer.engine import Part, StepOutcome, rate_share
from muster_trainer.pytorch.pipeline import FIELD, Pipeline
from muster_trainer.pytorch.rates import set_rates
from muster_trainer.pytorch.world import peers
from muster_trainer.tasks.config import Config
from muster_trainer.tasks.module import Task


@dataclass(frozen=True)
class _Flight:
    """A micro-batch between its passes in this stage: what came in, what went out (the loss, in the last stage), and the weights it saw."""

    step: int
    inputs: torch.Tensor
    outputs: torch.Tensor
    weights: Mapping[str, torch.Tensor]


class PipeDream(Pipeline):
    """One stage; `lag` is the number of stages after it, and of micro-batches that it is ahead of its own backward passes."""

    refuses = frozenset({"gradientClipNorm", "nanLoss: Skip"})

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        super().__init__(task, spec)
        self.flights: deque[_Flight] = deque()
        self.sent: deque[tuple[torch.Tensor, list[dist.Work]]] = deque()
        self.stash: Mapping[str, torch.Tensor] | None = None

    def _prepare(self) -> None:
        refuse(self.spec, self.task.config, ways=self.ways)
        (self.part,) = self.parts
        self.lag = self.stages - 1 - self.place

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool, busy: bool) -> StepOutcome:
        self.current = step
        outcome = super().step(indices, step=step, stop=stop, save=save, busy=busy)
        return replace(outcome, staleness=self.stages - 1)

    def _differentiate(self, indices: np.ndarray, samples: Any) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        pieces = list(self._micro_batches(indices, samples))
        incoming = self._exchange(None, receive=self.place > 0, distance=-1)
        for number, (batch, real) in enumerate(pieces):
            inputs = batch[0] if self.place == 0 else incoming.requires_grad_()
            flight, loss = self._forward_pass(inputs, batch, real)
            total += loss
            self.flights.append(flight)
            returns = len(self.flights) > self.lag
            gradient = self._exchange(flight.outputs, receive=returns, distance=1)
            back = self._backward_pass(gradient) if returns else None
            incoming = self._exchange(back, receive=self.place > 0 and number + 1 < len(pieces), distance=-1)
        return total

    def _micro_batches(self, indices: np.ndarray, samples: Any) -> Iterator[tuple[Any, int]]:
        """Those with samples that count, and how many these are: they come first."""
        ((batch, weights),) = self._pieces(indices, samples)
        size = self.rows // self.micro_batches
        for first in range(0, self.rows, size):
            if real := int(weights[first : first + size].sum()):
                yield pytree.tree_map(lambda one, first=first: one[first : first + size], batch), real

    def _forward_pass(self, inputs: torch.Tensor, batch: Any, real: int) -> tuple[_Flight, torch.Tensor]:
        """The micro-batch on its way, and the sum of its losses (0 but in the last stage)."""
        weights = {name: weight.detach().requires_grad_() for name, weight in self._stashed().items()}
        with peers(self.rank):
            outputs = functional_call(self.part, dict(weights), (inputs,))
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        if self.counts:
            counted = pytree.tree_map(lambda one: one[:real], batch)
            outputs = self._sum(self._losses(outputs[:real], counted), np.ones(real, dtype=np.float32), "loss")
            loss, outputs = outputs.detach().double(), outputs / real
        return _Flight(self.current, inputs, outputs, weights), loss

    def _stashed(self) -> Mapping[str, torch.Tensor]:
        """The weights of now: a copy that updates leave alone, which all micro-batches share that see no update between them."""
        if self.stash is None:
            now = {name: weight for name, weight in self.part.named_parameters() if weight.requires_grad}
            self.stash = now if self.lag == 0 else {name: weight.detach().clone() for name, weight in now.items()}
        return self.stash

    def _backward_pass(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Of the oldest micro-batch, with an update; gives the gradient of what came in."""
        flight = self.flights.popleft()
        flight.outputs.backward(gradient)
        for name, parameter in self.part.named_parameters():
            parameter.grad = flight.weights[name].grad if name in flight.weights else None
        set_rates(self.optimizer, rate_share(self.task, flight.step))
        self.optimizer.step()
        self.stash = None
        return flight.inputs.grad

    def _exchange(self, tensor: torch.Tensor | None, *, receive: bool, distance: int) -> Any:
        """Sends to the next stage (`distance` 1) or the one before (-1), and receives from it what it sends in return, in one operation:
        NCCL runs what two ranks do with each other one after the other.

        Sends are not waited for, since who receives may be in the middle of its vote; but for the oldest, which has been used long since.
        """
        if not 0 <= self.place + distance < self.stages:
            return None
        ops = [] if tensor is None else [dist.P2POp(dist.isend, tensor, self._neighbour(distance), self.stage_group)]
        if receive:
            buffer = torch.empty_like(self.shapes_between[self.place + (distance > 0)], device=self.device)
            ops.append(dist.P2POp(dist.irecv, buffer, self._neighbour(distance), self.stage_group))
        with peers(self.rank):
            works = dist.batch_isend_irecv(ops) if ops else []
            if tensor is not None:
                self.sent.append((tensor, works[:1]))
            self._await_sends(2 * (self.stages + 1))
            if receive:
                works[-1].wait()
        return buffer if receive else None

    def _await_sends(self, most: int) -> None:
        """Until `most` are left."""
        while len(self.sent) > most:
            for work in self.sent.popleft()[1]:
                work.wait()

    def _drain(self) -> None:
        """Empties the pipeline: what is saved or evaluated next has the updates of all steps done."""
        with torch.enable_grad():
            while self.flights:
                gradient = self._exchange(None, receive=True, distance=1)
                self._exchange(self._backward_pass(gradient), receive=False, distance=-1)
        with peers(self.rank):
            self._await_sends(0)

    def _update(self, step: int) -> None:
        """Each micro-batch has had its own."""

    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        self._drain()
        return super().evaluate(batches)

    def snapshot(self, directory: Path, *, room: int) -> Part:
        self._drain()
        return super().snapshot(directory, room=room)


def refuse(spec: TrainerSpec, config: Config, *, ways: int) -> None:
    """Raises BadConfiguration for what needs the gradient of a whole step, which there never is."""
    for field, given, remedy in (
        ("spec.options.mesh.data", ways > 1, "write 1"),
        ("spec.batch.accumulationSteps", spec.batch.accumulation_steps > 1, "write 1, and more microBatches"),
        ("spec.trainer.config.gradientClipNorm", bool(config.gradientClipNorm), "leave it out"),
        ("spec.trainer.config.nanLoss", config.nanLoss == "Skip", "write Stop or Continue"),
    ):
        if given:
            message = f"PipeDream updates each stage by itself, after each micro-batch; {remedy}, or {FIELD}.schedule: 1F1B"
            raise BadConfiguration(f"{field}: {message}")


def pipeline(task: Task, spec: TrainerSpec) -> Pipeline:
    """The engine of the schedule that the job asks for."""
    options = spec.options.get("pipeline") or {}
    return (PipeDream if options.get("schedule") == "PipeDream" else Pipeline)(task, spec)
