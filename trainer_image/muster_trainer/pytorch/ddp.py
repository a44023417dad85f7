"""PyTorch DistributedDataParallel."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from muster_trainer.contract import TrainerSpec, UserError
from muster_trainer.data import portions, weighted_share
from muster_trainer.engine import StepOutcome, scaled_learning_rate
from muster_trainer.pytorch import state
from muster_trainer.pytorch.world import backend_of, join, peers
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.config import Config
from muster_trainer.tasks.module import Task


class Ddp:
    """One rank of a DDP world, on one device: CUDA device LOCAL_RANK, or the CPU."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        backend = backend_of(spec.communication)
        self.task = task
        self.accumulation = spec.batch.accumulation_steps
        self.device = _device(backend)
        _fix(task.config)
        join(backend)
        self.rank = dist.get_rank()
        self.world = self.devices = dist.get_world_size()
        self.learning_rate = scaled_learning_rate(spec, task.config.learningRate, devices=self.devices)
        self._seed(0)
        self.model = task.build_model(task.config)
        if not isinstance(self.model, nn.Module):
            raise UserError(f"{task.title}: build_model must give a torch.nn.Module; it gave {type(self.model).__name__}")
        self.model.to(self.device)
        with peers(self.rank):
            self.parallel = DistributedDataParallel(self.model)
        config = task.config.replaced(learningRate=self.learning_rate)
        self.optimizer = task.optimizer(self.model, config) if task.optimizer else _optimizer(self.model, config)

    def fingerprint(self) -> Mapping[str, Any]:
        cuda = self.device.type == "cuda"
        return {
            "framework": "torch",
            "version": torch.__version__,
            "libraries": {"numpy": np.__version__} | ({"cuda": torch.version.cuda} if cuda else {}),
            "devices": [torch.cuda.get_device_name(self.device) if cuda else "cpu"],
            "threads": torch.get_num_threads(),
        }

    def broadcast(self, text: str) -> str:
        message = [text]
        with peers(self.rank):
            dist.broadcast_object_list(message, src=0, device=self.device)
        return message[0]

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool) -> StepOutcome:
        self._seed(step)
        self.parallel.train()
        self.optimizer.zero_grad(set_to_none=True)
        share, weights = weighted_share(indices, self.devices, self.rank)
        pieces = portions(np.arange(len(share)), min(self.accumulation, len(share)))
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        # DDP divides the sum of gradients by the world size; what is wanted is the sum over samples by their number.
        scale = self.world / len(indices)
        for number, piece in enumerate(pieces, 1):
            with nullcontext() if number == len(pieces) else self.parallel.no_sync():
                batch = self._read(self.task.train, share[piece])
                with peers(self.rank):
                    outputs = self.parallel(batch[0])
                loss = self._sum(self.task.loss(outputs, batch), weights[piece], "loss")
                with peers(self.rank):
                    (loss * scale).backward()
                total += loss.detach().double()
        tally = torch.stack([total, *torch.tensor([stop, save], dtype=torch.float64, device=self.device)])
        with peers(self.rank):
            dist.all_reduce(tally)
        self.optimizer.step()
        loss_sum, stops, saves = tally.tolist()
        return StepOutcome(loss=loss_sum / len(indices), stop=stops > 0, save=saves > 0)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        self.parallel.eval()
        sums: dict[str, torch.Tensor] = {}
        count = 0
        for indices in batches:
            count += len(indices)
            share, weights = weighted_share(indices, self.devices, self.rank)
            batch = self._read(self.task.test, share)
            outputs = self.model(batch[0])
            values = {"loss": self.task.loss(outputs, batch), **self.task.metrics(outputs, batch)}
            for name, value in values.items():
                sums[name] = sums.get(name, 0) + self._sum(value, weights, name).double()
        tally = torch.stack(list(sums.values()))
        with peers(self.rank):
            dist.all_reduce(tally)
        return dict(zip(sums, (tally / count).tolist(), strict=True))

    def save(self, directory: Path) -> None:
        with peers(self.rank):
            state.save(directory, self.model, self.optimizer)

    def load(self, directory: Path) -> None:
        with peers(self.rank):
            state.load(directory, self.model, self.optimizer)

    def close(self) -> None:
        dist.destroy_process_group()

    def _seed(self, step: int) -> None:
        """Random numbers are a function of (seed, step, rank): nothing of them is saved. SeedSequence mixes the three."""
        words = np.random.SeedSequence([self.task.config.seed, step, self.rank]).generate_state(2, np.uint32)
        torch.manual_seed(int(words[0]))
        random.seed(int(words[1]))
        np.random.seed(int(words[1]))

    def _read(self, data: Any, indices: np.ndarray) -> Any:
        batch = read_batch(self.task, data, indices)
        return pytree.tree_map(lambda one: torch.as_tensor(one, device=self.device), batch)

    def _sum(self, values: Any, weights: np.ndarray, name: str) -> torch.Tensor:
        """The sum over the samples that count, of a value per sample or of their mean."""
        values = torch.as_tensor(values, device=self.device)
        if values.dim() == 0:
            return values * float(weights.sum())
        if values.shape != weights.shape:
            raise UserError(
                f"{self.task.title}: {name} must have the shape ({len(weights)},), a value per sample, or () for their "
                f"mean; it has {tuple(values.shape)}"
            )
        return (values * torch.as_tensor(weights, device=self.device)).sum()


def _device(backend: str) -> torch.device:
    if backend == "nccl" or torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def _fix(config: Config) -> None:
    """Deterministic kernels and a fixed number of threads: both decide the order in which floats are added."""
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))


def _optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    parameters = model.parameters()
    rate, decay = config.learningRate, config.weightDecay
    if config.optimizer == "SGD":
        return torch.optim.SGD(parameters, lr=rate, momentum=config.momentum, weight_decay=decay)
    kind = torch.optim.AdamW if config.optimizer == "AdamW" else torch.optim.Adam
    return kind(parameters, lr=rate, weight_decay=decay)
