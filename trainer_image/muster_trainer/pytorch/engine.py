"""What all PyTorch strategies have in common: one process, one device, and a step over its share of the samples.

A strategy says how the model is laid out over the world (`_lay_out`), and how gradients and losses come together.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from muster_trainer.contract import TrainerSpec, UserError
from muster_trainer.data import portions, weighted_share
from muster_trainer.engine import StepOutcome, scaled_learning_rate
from muster_trainer.pytorch import gradients, state
from muster_trainer.pytorch.world import backend_of, join, peers, refused_together
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.config import Config
from muster_trainer.tasks.module import Task


class TorchEngine:
    """One rank, on one device: CUDA device LOCAL_RANK, or the CPU.

    `ways` is how many data-parallel parts a batch is cut into, and `position` which of them is this rank's: ranks that
    compute the same samples together share one. `counts` says whether this rank's losses count, so that each sample
    counts once. `shapes` has the shape of every tensor of the whole model by name.
    """

    data_group: dist.ProcessGroup | None = None
    """The ranks whose gradients are to be summed, where the strategy does not do it by itself."""
    averages_gradients = False
    """Whether the strategy's own reduction divides the sum of gradients by `ways`."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        backend = backend_of(spec.communication)
        self.task = task
        self.spec = spec
        self.accumulation = spec.batch.accumulation_steps
        self.device = _device(backend)
        _fix(task.config)
        join(backend)
        self.rank = dist.get_rank()
        self.world = self.ways = dist.get_world_size()
        self.position = self.rank
        self.counts = True
        with refused_together():
            model = self._build_model()
            self.shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
            with peers(self.rank):
                self.model = self._lay_out(model)
        self.devices = self.ways
        self.learning_rate = scaled_learning_rate(spec, task.config.learningRate, devices=self.devices)
        self.optimizer = self._optimizer()

    # what a strategy says

    def _lay_out(self, model: nn.Module) -> nn.Module:
        """This rank's part of `model`, which is the same on all ranks; may set `ways`, `position` and `counts`."""
        raise NotImplementedError

    def _forward(self, inputs: Any) -> Any:
        return self.model(inputs)

    def _reducing(self, last: bool) -> AbstractContextManager[Any]:
        """Entered around the forward and backward pass of a portion; the last one of a step reduces gradients."""
        return nullcontext()

    def _reduce_gradients(self) -> None:
        """After the last backward pass: makes the gradients those of the whole batch, where that is not done already."""
        if self.data_group is not None and self.ways > 1:
            gradients.all_reduce(self.model.parameters(), self.data_group)

    def _share_buffers(self) -> None:
        """Before a step: gives every rank the buffers (running averages, say) of the first one that holds them."""
        for buffer in self.model.buffers():
            dist.broadcast(buffer, src=0)

    # the engine

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
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        with peers(self.rank):
            self._share_buffers()
        total = self._differentiate(indices)
        with peers(self.rank):
            self._reduce_gradients()
        counted = total if self.counts else torch.zeros_like(total)
        tally = torch.stack([counted, *torch.tensor([stop, save], dtype=torch.float64, device=self.device)])
        with peers(self.rank):
            dist.all_reduce(tally)
        loss_sum, stops, saves = tally.tolist()
        if np.isfinite(loss_sum) or self.task.config.nanLoss != "Skip":
            self._update()
        return StepOutcome(loss=loss_sum / len(indices), stop=stops > 0, save=saves > 0)

    def _update(self) -> None:
        if self.task.config.gradientClipNorm:
            with peers(self.rank):
                gradients.clip(self.model.parameters(), self.task.config.gradientClipNorm, copies=self._copies())
        self.optimizer.step()

    def _copies(self) -> int:
        """How many ranks hold the same gradient of a parameter that is no DTensor."""
        return self.world

    def _differentiate(self, indices: np.ndarray) -> torch.Tensor:
        """Leaves this rank's part of the gradient of (sum of losses / number of samples); gives its sum of losses.

        Every rank computes the same number of portions, since each may take collectives.
        """
        share = portions(indices, self.ways)[self.position]
        count = min(self.accumulation, -(-len(indices) // self.ways))
        scale = (self.ways if self.averages_gradients else 1) / len(indices)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for number in range(count):
            piece, weights = weighted_share(share if len(share) else indices[:1], count, number)
            weights = weights if len(share) else np.zeros_like(weights)
            with self._reducing(number == count - 1):
                batch = self._read(self.task.train, piece)
                with peers(self.rank):
                    outputs = settled(self._forward(batch[0]))
                loss = self._sum(self.task.loss(outputs, batch), weights, "loss")
                with peers(self.rank):
                    (loss * scale).backward()
                total += loss.detach().double()
        return total

    @torch.no_grad()
    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        self.model.eval()
        sums: dict[str, float] = {}
        count = 0
        for indices in batches:
            count += len(indices)
            for name, value in self._evaluate_batch(indices).items():
                sums[name] = sums.get(name, 0.0) + value
        return {name: total / count for name, total in self._sum_over_ranks(sums).items()}

    def _evaluate_batch(self, indices: np.ndarray) -> dict[str, float]:
        """Sums of loss and metrics over this rank's share."""
        share, weights = weighted_share(indices, self.ways, self.position)
        batch = self._read(self.task.test, share)
        with peers(self.rank):
            outputs = settled(self.model(batch[0]))
        return self._measure(outputs, batch, weights)

    def _measure(self, outputs: Any, batch: Any, weights: np.ndarray) -> dict[str, float]:
        values = {"loss": self.task.loss(outputs, batch), **self.task.metrics(outputs, batch)}
        return {name: self._sum(value, weights, name).double().item() for name, value in values.items()}

    def _sum_over_ranks(self, sums: dict[str, float]) -> dict[str, float]:
        """The sums of all ranks whose losses count; in the order of ranks, so that they are the same each time."""
        gathered: list[dict[str, float]] = [{}] * self.world
        with peers(self.rank):
            dist.all_gather_object(gathered, sums if self.counts else {})
        whole: dict[str, float] = {}
        for part in gathered:
            for name, value in part.items():
                whole[name] = whole.get(name, 0.0) + value
        return whole

    def save(self, directory: Path) -> None:
        with peers(self.rank):
            state.save(directory, self.model, self.optimizer)

    def load(self, directory: Path) -> None:
        with peers(self.rank):
            state.load(directory, self.model, self.optimizer, self.shapes)

    def close(self) -> None:
        """NCCL wants to be told. Gloo's groups are left to the end of the process: torch 2.6 takes them down by joining
        their threads with the GIL in hand, for which these may be waiting."""
        if self.device.type == "cuda":
            dist.destroy_process_group()

    # parts

    def _build_model(self) -> nn.Module:
        """The whole model, with rank 0's numbers on every rank."""
        self._seed(0, position=0)
        model = self.task.build_model(self.task.config)
        if not isinstance(model, nn.Module):
            raise UserError(f"{self.task.title}: build_model must give a torch.nn.Module; it gave {type(model).__name__}")
        model.to(self.device)
        with peers(self.rank):
            for tensor in model.state_dict().values():
                numbers = tensor.contiguous()
                dist.broadcast(numbers, src=0)
                tensor.copy_(numbers)
        return model

    def _optimizer(self) -> torch.optim.Optimizer:
        config = self.task.config.replaced(learningRate=self.learning_rate)
        make: Callable[[nn.Module, Config], torch.optim.Optimizer] = self.task.optimizer or default_optimizer
        return make(self.model, config)

    def _seed(self, step: int, *, position: int | None = None) -> None:
        """Random numbers are a function of (seed, step, position): nothing of them is saved. SeedSequence mixes the three."""
        place = self.position if position is None else position
        words = np.random.SeedSequence([self.task.config.seed, step, place]).generate_state(2, np.uint32)
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


def settled(outputs: Any) -> Any:
    """The same, once the collectives that make it are through (DTensor's run on by themselves): a lost peer must show
    here, and not in the user's loss."""
    for tensor in pytree.tree_leaves(outputs):
        if hasattr(tensor, "wait"):
            tensor.wait()
    return outputs


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
        torch.set_deterministic_debug_mode("error")  # as use_deterministic_algorithms, which imports a compiler for seconds
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))


def default_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """What the config's keys say: optimizer, learningRate, momentum (of SGD), weightDecay."""
    parameters = model.parameters()
    rate, decay = config.learningRate, config.weightDecay
    if config.optimizer == "SGD":
        return torch.optim.SGD(parameters, lr=rate, momentum=config.momentum, weight_decay=decay)
    kind = torch.optim.AdamW if config.optimizer == "AdamW" else torch.optim.Adam
    return kind(parameters, lr=rate, weight_decay=decay)
