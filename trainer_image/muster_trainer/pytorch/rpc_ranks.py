"""The steps of the chief and the workers of the RPC strategy."""

from __future__ import annotations

import copy
import math
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from muster_contract.environment import NAMES
from muster_contract.errors import BadConfiguration
from muster_trainer.data import Order
from muster_trainer.pytorch.device import to_device
from muster_trainer.pytorch.input import InputStream, read_in_line
from muster_trainer.pytorch.parallel import Batch, Context, Layout, ParallelModel
from muster_trainer.pytorch.parameter_server import ParameterServer, assign_parameters, keep_parameters
from muster_trainer.pytorch.rpc_calls import Future, call, call_all, result_of
from muster_trainer.pytorch.world import TIMEOUT
from muster_trainer.training.engine import rate_share


class RpcModel(ParallelModel):
    """The model on one rank. A server has its part of the parameters, and other ranks have none. The chief and the workers compute with
    `replica`, a whole model."""

    server: ParameterServer

    def __init__(self, context: Context, model: nn.Module) -> None:
        roles: list[str] = [""] * context.world_size
        dist.all_gather_object(roles, os.environ.get(NAMES["role"], ""))
        self.workers = [rank for rank, role in enumerate(roles) if role == "worker"]
        self.servers = [rank for rank, role in enumerate(roles) if role == "ps"]
        if roles[0] != "chief" or not self.workers or not self.servers:
            raise BadConfiguration(f"RPC needs a chief, which is rank 0, a worker and a ps; the ranks are {', '.join(roles)}")
        _refuse_buffers(model, title=context.task.title)
        self.is_synchronous = bool(context.spec.options.synchronous)
        shares = self.workers if self.is_synchronous else []
        position = shares.index(context.rank) if context.rank in shares else 0
        layout = Layout(len(shares) or 1, position, gradient_copies=1, counts_losses=context.rank == 0)
        self.replica = copy.deepcopy(model) if context.rank not in self.servers else model
        self.owners = assign_parameters({name: parameter.numel() for name, parameter in model.named_parameters()}, self.servers)
        context.lower_precision(self.replica)
        own = keep_parameters(model, [name for name, server in self.owners.items() if server == context.rank])
        super().__init__(context, layout, own)

    def build_optimizer(self, learning_rate: float) -> None:
        """Builds the optimizer of a server. On other ranks, the optimizer has no parameters of the model."""
        if self.context.rank in self.servers and any(True for _ in self.module.parameters()):
            super().build_optimizer(learning_rate)
            self.server = ParameterServer(self.module, self.optimizer)
        else:
            self.optimizer = torch.optim.SGD([torch.zeros(())], lr=learning_rate)
            self.server = ParameterServer(self.module, None)

    @property
    def stored_optimizer(self) -> torch.optim.Optimizer | None:
        return self.server.optimizer

    def forward(self, inputs: Any) -> Any:
        return self.replica(inputs)

    def sync_buffers(self) -> None:
        """Does nothing, because models with buffers in their state are refused."""

    @torch.no_grad()
    def fetch(self) -> dict[int, int]:
        """Fills the replica with the parameters of the servers. Returns the version of the parameters of each server."""
        pulled = dict(zip(self.servers, call_all(self.servers, "pull"), strict=True))
        parameters = dict(self.replica.named_parameters())
        for _, values in pulled.values():
            for name, value in values.items():
                parameters[name].copy_(value)
        return {server: version for server, (version, _) in pulled.items()}

    def test_share(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All samples on the chief, which evaluates alone. Other ranks get one sample, because a share must not be empty."""
        own = indices if self.context.rank == 0 else indices[:1]
        return own, np.ones(len(own), dtype=np.float32)

    def evaluate(self, batch: Batch) -> dict[str, float]:
        if self.context.rank != 0:
            return {}
        samples = to_device(batch.samples, self.context.device)
        return self.objective.metric_sums(self.replica(samples[0]), samples, self.test_share(batch.indices)[1])


def _refuse_buffers(model: nn.Module, *, title: str) -> None:
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    others = sorted(model.state_dict().keys() - parameters)
    if others:
        raise BadConfiguration(
            f"{title}: parameter servers hold only parameters, but the model has the buffer {others[0]}; use LayerNorm or "
            "GroupNorm in place of BatchNorm, or register it with persistent=False"
        )


class Chief:
    """Distributes batches to the workers. A step is a batch that is done. Its result is the loss, the staleness, and the seconds of waiting
    for samples."""

    def __init__(self, model: RpcModel) -> None:
        self._model, self._task, self._spec = model, model.context.task, model.context.spec
        self._next_step: int | None = None
        self._idle = list(model.workers)
        self._results: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()

    @property
    def in_flight(self) -> int:
        """The number of workers that are computing a batch."""
        return len(self._model.workers) - len(self._idle)

    def train_together(self, indices: np.ndarray, step: int) -> tuple[float, int, float]:
        """Trains on one batch that all workers share, with one update."""
        sums, weights, _, waits = zip(*call_all(self._model.workers, "train", indices, step), strict=True)
        loss = sum(sums) / sum(weights) if any(weights) else math.nan
        scale = len(indices) / sum(weights) if any(weights) else math.nan
        factor: float | None = scale
        limit = self._task.config.gradientClipNorm
        if not np.isfinite(loss) and self._task.config.nanLoss == "Skip":
            factor = None
        elif limit:
            norm = scale * sum(call_all(self._model.servers, "square")) ** 0.5
            factor = scale * limit / norm if norm > limit else scale
        call_all(self._model.servers, "update", factor, rate=rate_share(self._task, step))
        return loss, 0, max(waits)

    def train_next(self, step: int, order: Order, *, starts_more: bool) -> tuple[float, int, float]:
        """Gives the next batches to idle workers, if `starts_more` is True. Waits until any batch is done, and returns its result."""
        if self._next_step is None:
            self._next_step = step
        limit = order.boundary(step, self._spec.checkpoint.every_steps if self._spec.checkpoint else None)
        while self._idle and self._next_step < limit and starts_more:
            worker = self._idle.pop(0)
            future = call(worker, "train", order.batch_indices(self._next_step), self._next_step)
            future.add_done_callback(partial(self._finish, worker))
            self._next_step += 1
        worker, done = self._results.get(timeout=TIMEOUT.total_seconds())
        self._idle.append(worker)
        loss, weight, staleness, waited = result_of(done)
        return loss / weight if weight else math.nan, staleness, waited

    def _finish(self, worker: int, done: Future[Any]) -> None:
        self._results.put((worker, done))


class Worker:
    """Computes gradients with the servers' parameters, and sends them to the servers."""

    def __init__(self, model: RpcModel) -> None:
        self._model = model
        self._stream: InputStream | None = None
        self._is_ready = threading.Event()  # the chief's first call may arrive before `start`

    def start(self, stream: InputStream | None) -> None:
        """Allows calls of `train`. `stream` has the samples of all steps. If it is None, each call reads its samples itself."""
        self._stream = stream
        self._is_ready.set()

    def train(self, indices: np.ndarray, step: int) -> tuple[float, float, int, float]:
        """Computes a worker's part of a step. Returns the sum of losses, the sum of their weights, the staleness, and the seconds of
        waiting for samples."""
        model, config = self._model, self._model.context.task.config
        if config.deterministic:
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))  # holds for this thread only, and calls have several
        self._is_ready.wait(TIMEOUT.total_seconds())
        began = time.monotonic()
        batch = Batch(step, indices, next(self._stream.batches if self._stream else self._read(indices, step)))
        waited = time.monotonic() - began
        versions = model.fetch()
        model.seed(step)
        model.replica.train()
        model.replica.zero_grad(set_to_none=True)
        model.objective.start_step(step)
        total, weight = model.forward_backward(batch).tolist()
        gradients = {name: parameter.grad for name, parameter in model.replica.named_parameters() if parameter.grad is not None}
        if not model.is_synchronous:
            if model.objective.is_weighted:
                factor = len(indices) / weight if weight else math.nan
                gradients = {name: gradient * factor for name, gradient in gradients.items()}
            if config.nanLoss == "Skip" and not (weight and np.isfinite(total)):
                return total, weight, 0, waited
            _clip(gradients, config.gradientClipNorm)
        when = {"update": not model.is_synchronous, "rate": rate_share(model.context.task, step)}
        calls = []
        for server in model.servers:
            own = {name: gradient for name, gradient in gradients.items() if model.owners[name] == server}
            calls.append(call(server, "push", model.context.rank, versions[server], own, **when))
        return total, weight, max(result_of(one) for one in calls), waited

    def _read(self, indices: np.ndarray, step: int) -> Iterator[Any]:
        model = self._model
        task, samples = model.context.task, model.split.share(indices)[0]
        return read_in_line(task, task.train, [(step, samples)], position=model.layout.data_parallel_rank)


def _clip(gradients: Mapping[str, torch.Tensor], limit: float | None) -> None:
    """Scales the gradients of a worker so that their norm over the whole model is at most `limit`."""
    norm = sum(gradient.double().square().sum().item() for gradient in gradients.values()) ** 0.5
    if limit and norm > limit:
        for gradient in gradients.values():
            gradient.mul_(limit / norm)
