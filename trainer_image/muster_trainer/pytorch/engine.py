"""What all PyTorch strategies have in common: one process, one device, and a step over its share of the samples.

A strategy says how the model is laid out over the world (`_lay_out`), and how gradients and losses come together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from muster_trainer.contract import TrainerSpec, UserError
from muster_trainer.data import Order, weighted_share
from muster_trainer.engine import Part, StepOutcome, rate_share, scaled_learning_rate
from muster_trainer.pytorch import gradients, precision, state
from muster_trainer.pytorch.input import Coming, Request, batches_of
from muster_trainer.pytorch.rates import set_rates
from muster_trainer.pytorch.seeds import seed_all
from muster_trainer.pytorch.world import backend_of, join, peers, refused_together
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
    shares_buffers = False
    """Whether the strategy's own forward pass begins with `_share_buffers`."""
    averages_gradients = False
    """Whether the strategy's own reduction divides the sum of gradients by `ways`."""
    refuses: frozenset[str] = frozenset()
    whole = False
    """Whether each rank holds the whole model."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        backend = backend_of(spec.communication)
        self.task = task
        self.spec = spec
        self.accumulation = spec.batch.accumulation_steps
        self.device = device_of(backend)
        _fix(task.config)
        join(backend)
        self.rank = dist.get_rank()
        self.world = self.ways = dist.get_world_size()
        self.position = self.rank
        # a kernel of NCCL whose peer is gone holds up the device
        self.rescues = self.whole and self.world > 1 and backend == "gloo" and spec.checkpoint is not None
        self.counts = True
        self.most_at_once = self._least(spec.batch.most_at_once or spec.batch.global_size)
        with refused_together():
            model = self._build_model()
            self.shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
            with peers(self.rank):
                self.model = self._lay_out(model)
        self.devices = self.ways
        self.learning_rate = scaled_learning_rate(spec, task.config.learningRate, devices=self.devices)
        self.optimizer = self._optimizer()
        self.given = state.numbers_of(self.optimizer)
        self.updating = False
        self.buffers_before: list[torch.Tensor] = []

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
        """Gives every rank the buffers (running averages, say) of the first one that holds them: before a step, and before what they are
        now is measured or kept."""
        for buffer in self.model.buffers():
            share(buffer, source=0)

    # the engine

    def fingerprint(self) -> Mapping[str, Any]:
        return fingerprint(self.device)

    def weigh(self) -> tuple[int, int]:
        """Bytes of the gradients, and of all that training keeps from step to step: weights, gradients, state of the optimizer."""
        trained = [one for one in self.model.parameters() if one.requires_grad]
        kept = [*self.model.state_dict().values(), *pytree.tree_leaves(list(self.optimizer.state.values()))]
        gradients = sum(map(_bytes, trained))
        return gradients, gradients + sum(_bytes(one) for one in kept if isinstance(one, torch.Tensor))

    def broadcast(self, text: str) -> str:
        message = [text]
        with peers(self.rank):
            dist.broadcast_object_list(message, src=0, device=self.device)
        return message[0]

    def gather(self, text: str) -> list[str]:
        texts = [""] * self.world
        with peers(self.rank):
            dist.all_gather_object(texts, text)
        return texts

    def expect(self, order: Order, steps: range) -> None:
        self.model.train()
        self.coming = self._reading(self.task.train, ((step, self._share(order.batch_indices(step))[0]) for step in steps))

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool, busy: bool) -> StepOutcome:
        with peers(self.rank):
            samples = self.coming.take()
        together = time.monotonic()
        self._seed(step)
        self.optimizer.zero_grad(set_to_none=True)
        if not self.shares_buffers:
            with peers(self.rank):
                self._share_buffers()
        self._settle(indices, samples, step)
        if self.rescues and self.rank == 0:
            self.buffers_before = [buffer.clone() for buffer in self.model.buffers()]
        total = self._differentiate(indices, samples)
        with peers(self.rank):
            self._reduce_gradients()
        counted = total if self.counts else torch.zeros_like(total)
        asked = torch.tensor([stop, save, busy, *self.coming.read()], dtype=torch.float64, device=self.device)
        tally = torch.cat([counted[None], asked])
        with peers(self.rank):
            met = dist.all_reduce(tally, async_op=True)
            if self.task.config.nanLoss == "Skip":
                met.wait()
        updating, self.updating = time.monotonic(), True
        if self.task.config.nanLoss != "Skip" or np.isfinite(tally[0].item()):
            self._update(step)
        updating = time.monotonic() - updating
        with peers(self.rank):
            met.wait()
            loss_sum, *votes = tally[:4].tolist()
        self.updating, self.buffers_before = False, []
        self.coming.heard(tally[4:].tolist())
        waited, read = self.coming.waits()
        stops, saves, works = (count > 0 for count in votes)
        ready = self._ready()
        own = None if self.device.type == "cuda" else read + max(0.0, ready - together) + updating
        loss = loss_sum / len(indices)
        tells = ready > 0
        return StepOutcome(loss=loss, stop=stops, save=saves, busy=works, input_seconds=waited, own_seconds=own, tells_passes=tells)

    def _settle(self, indices: np.ndarray, samples: Any, step: int) -> None:
        """Before each step, with what it will take: what a strategy has to do before its first one."""

    @torch.no_grad()
    def _put_back(self, buffers: list[torch.Tensor]) -> None:
        """The buffers as they were, where there are such."""
        for buffer, before in zip(self.model.buffers(), buffers, strict=False):
            buffer.copy_(before)

    def _ready(self) -> float:
        """When (`time.monotonic`) this rank's gradients were ready, and only those of others awaited; 0: it cannot tell, for ranks wait
        for each other all through the passes."""
        return 0.0

    def _update(self, step: int) -> None:
        if self.task.config.gradientClipNorm:
            with peers(self.rank):
                gradients.clip(self.model.parameters(), self.task.config.gradientClipNorm, copies=self._copies())
        set_rates(self.optimizer, rate_share(self.task, step))
        self.optimizer.step()

    def _copies(self) -> int:
        """How many ranks hold the same gradient of a parameter that is no DTensor."""
        return self.world

    def _share(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What this rank reads of a batch, and which of it counts (weights 0 or 1): both of shape (n >= 1,)."""
        return weighted_share(indices, self.ways, self.position)

    def _pieces(self, indices: np.ndarray, samples: Any) -> Iterator[tuple[Any, np.ndarray]]:
        """This rank's share, which `samples` are, in portions on the device, with the weights of their samples.

        Every rank has the same number of portions, since each may take collectives.
        """
        count = self._count(indices)
        share = self._share(indices)[1]
        for number in range(count):
            rows, weights = weighted_share(np.arange(len(share)), count, number)
            piece = slice(int(rows[0]), int(rows[-1]) + 1)
            yield self._on_device(pytree.tree_map(lambda one, piece=piece: one[piece], samples)), weights * share[rows]

    def _count(self, indices: np.ndarray) -> int:
        share = -(-len(indices) // self.ways)
        return min(max(self.accumulation, -(-share // self.most_at_once)), share)

    def _least(self, number: int) -> int:
        """The least that any rank has. Pods may have been made before and after the job was given another number of workers."""
        least = torch.tensor(number, device=self.device)
        with peers(self.rank):
            dist.all_reduce(least, dist.ReduceOp.MIN)
        return int(least.item())

    def _differentiate(self, indices: np.ndarray, samples: Any) -> torch.Tensor:
        """Leaves this rank's part of the gradient of (sum of losses / number of samples); gives its sum of losses."""
        scale = (self.ways if self.averages_gradients else 1) / len(indices)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        last = self._count(indices) - 1
        for number, (batch, weights) in enumerate(self._pieces(indices, samples)):
            with self._reducing(number == last):
                with peers(self.rank):
                    outputs = settled(self._forward(batch[0]))
                loss = self._sum(self._losses(outputs, batch), weights, "loss")
                with peers(self.rank):
                    (loss * scale).backward()
                total += loss.detach().double()
        return total

    def _losses(self, outputs: Any, batch: Any) -> Any:
        """What the task's loss gives, times the weight of each sample where the data set gives one."""
        values = self.task.loss(precision.single(outputs), batch)
        return values if len(batch) == 2 else values * self.task.weights_for(values, batch)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        with peers(self.rank):
            self._share_buffers()
        self.model.eval()
        sums: dict[str, float] = {}
        steps = list(batches)
        coming = self._reading(self.task.test, ((step, self._test_share(indices)[0]) for step, indices in enumerate(steps)))
        for indices in steps:
            with peers(self.rank):
                samples = coming.take()
            for name, value in self._evaluate_batch(indices, samples).items():
                sums[name] = sums.get(name, 0.0) + value
        self.model.train()
        return {name: total / sum(map(len, steps)) for name, total in self._sum_over_ranks(sums).items()}

    def _evaluate_batch(self, indices: np.ndarray, samples: Any) -> dict[str, float]:
        """Sums of loss and metrics over this rank's share."""
        batch = self._on_device(samples)
        with peers(self.rank):
            outputs = settled(self.model(batch[0]))
        return self._measure(outputs, batch, self._test_share(indices)[1])

    def _test_share(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `_share`, of a batch of the test set."""
        return self._share(indices)

    def _measure(self, outputs: Any, batch: Any, weights: np.ndarray) -> dict[str, float]:
        outputs = precision.single(outputs)
        values = {"loss": self._losses(outputs, batch), **self.task.metrics(outputs, batch)}
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

    def snapshot(self, directory: Path, *, room: int) -> Part:
        with peers(self.rank):
            self._share_buffers()
            return state.snapshot(directory, self.model, self.optimizer, given=self.given, room=room)

    def rescue(self, directory: Path) -> Part | None:
        if not self.rescues or self.updating:
            return None
        self._put_back(self.buffers_before)
        return state.snapshot(directory, self.model, self.optimizer, given=self.given, room=0, alone=True)

    def load(self, directory: Path) -> None:
        with peers(self.rank):
            state.load(directory, self.model, self.optimizer, self.shapes)

    def close(self) -> None:
        """NCCL wants to be told. Gloo's groups are left to the end of the process: torch 2.6 takes them down by joining
        their threads with the GIL in hand, for which these may be waiting."""
        if self.device.type == "cuda":
            dist.destroy_process_group()

    # parts

    def _lower(self, model: nn.Module) -> None:
        """Makes `model` compute in the job's precision."""
        if precision.computes_in_bfloat16(self.task.config.precision, self.device):
            precision.lower(model, self.device)

    def _build_model(self) -> nn.Module:
        """The whole model, with rank 0's numbers on every rank."""
        self._seed(0, position=0)
        model = self.task.build_model(self.task.config)
        if not isinstance(model, nn.Module):
            raise UserError(f"{self.task.title}: build_model must give a torch.nn.Module; it gave {type(model).__name__}")
        model.to(self.device)
        with peers(self.rank):
            for tensor in model.state_dict().values():
                share(tensor, source=0)
        return model

    def _optimizer(self) -> torch.optim.Optimizer:
        config = self.task.config.replaced(learningRate=self.learning_rate)
        make: Callable[[nn.Module, Config], torch.optim.Optimizer] = self.task.optimizer or default_optimizer
        return make(self.model, config)

    def _seed(self, step: int, *, position: int | None = None) -> None:
        seed_all(self.task.config.seed, step, self.position if position is None else position)

    def _reading(self, data: Any, requests: Iterable[Request]) -> Coming:
        pinned = self.device.type == "cuda"
        batches = batches_of(self.task, data, requests, spec=self.spec.input, position=self.position, pinned=pinned)
        return Coming(batches, self.device)

    def _on_device(self, batch: Any) -> Any:
        return pytree.tree_map(lambda one: one.to(self.device, non_blocking=True), batch)

    def _sum(self, values: Any, weights: np.ndarray, name: str) -> torch.Tensor:
        """The sum over the samples that count, of a value per sample or of their mean."""
        try:
            values = torch.as_tensor(values, device=self.device)
        except (TypeError, ValueError, RuntimeError):
            raise UserError(f"{self.task.title}: {name} must give a tensor; it gave a {type(values).__name__}") from None
        if name == "loss" and torch.is_grad_enabled() and not values.requires_grad:
            raise UserError(
                f"{self.task.title}: no gradient flows back from what loss gives; it must come of the outputs, without detach() or item()"
            )
        if values.dim() == 0:
            return values * float(weights.sum())
        if values.shape != weights.shape:
            raise UserError(
                f"{self.task.title}: {name} must have the shape ({len(weights)},), a value per sample, or () for their "
                f"mean; it has {tuple(values.shape)}"
            )
        return (values * torch.as_tensor(weights, device=self.device)).sum()


def share(tensor: torch.Tensor, *, source: int, group: dist.ProcessGroup | None = None) -> None:
    """Gives `tensor` the numbers of rank `source`. A view need not be contiguous, and what is sent must be."""
    numbers = tensor.contiguous()
    dist.broadcast(numbers, src=source, group=group)
    if numbers is not tensor:
        tensor.copy_(numbers)


def settled(outputs: Any) -> Any:
    """The same, once the collectives that make it are through (DTensor's run on by themselves): a lost peer must show
    here, and not in the user's loss."""
    for tensor in pytree.tree_leaves(outputs):
        if hasattr(tensor, "wait"):
            tensor.wait()
    return outputs


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def fingerprint(device: torch.device) -> Mapping[str, Any]:
    """What this process computes with, as the contract's event tells it."""
    cuda = device.type == "cuda"
    return {
        "framework": "torch",
        "version": torch.__version__,
        "libraries": {"numpy": np.__version__} | ({"cuda": torch.version.cuda} if cuda else {}),
        "devices": [torch.cuda.get_device_name(device) if cuda else "cpu"],
        "threads": torch.get_num_threads(),
    }


def device_of(backend: str) -> torch.device:
    """CUDA device LOCAL_RANK, which becomes the current one, or the CPU."""
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
