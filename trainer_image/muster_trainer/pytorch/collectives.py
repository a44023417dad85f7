"""The collectives of torch.distributed, for the task `collectives`, with the backend of the job: gloo or NCCL."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
import torch.distributed as dist

from muster_contract.options import GradientCompression
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.measure.collectives import Library
from muster_trainer.pytorch.device import device_of, fingerprint
from muster_trainer.pytorch.world import backend_of, detect_peer_loss, join


@dataclass(frozen=True)
class _Bucket:
    """A bucket of gradients, as DDP passes it to a communication hook."""

    numbers: torch.Tensor

    def buffer(self) -> torch.Tensor:
        return self.numbers


@final
class Collectives(Library):
    """One rank of the world; see `muster_trainer.measure.collectives.Library`."""

    def __init__(self, spec: TrainerSpec) -> None:
        backend = backend_of(spec.communication)
        self.device = device_of(backend)
        join(backend)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        compression = spec.options.gradient_compression
        self.own = "AllReduce" if compression is GradientCompression.NONE else f"AllReduce {compression}"

    def fingerprint(self) -> Mapping[str, Any]:
        return fingerprint(self.device)

    def operations(self, floats: int) -> Mapping[str, Callable[[], object]]:
        whole = torch.full((floats,), 0.0, device=self.device)
        part = torch.full((floats // self.world,), 0.0, device=self.device)

        def reduced_in_parts() -> None:
            dist.reduce_scatter_tensor(part, whole)
            dist.all_gather_into_tensor(whole, part)

        def reduced_by_one() -> None:
            dist.reduce(whole, 0)
            dist.broadcast(whole, 0)

        calls: dict[str, Callable[[], object]] = {
            "AllReduce": lambda: dist.all_reduce(whole),
            "AllReduce OneDevice": reduced_by_one,
            "AllReduce ScatterGather": reduced_in_parts,
            **self._compressed(whole),
            "Broadcast": lambda: dist.broadcast(whole, 0),
            "AllGather": lambda: dist.all_gather_into_tensor(whole, part),
            "ReduceScatter": lambda: dist.reduce_scatter_tensor(part, whole),
        }
        return {name: self._guarded(call) for name, call in calls.items()}

    def _compressed(self, whole: torch.Tensor) -> dict[str, Callable[[], object]]:
        """The communication hooks of `options.gradientCompression`, applied to a bucket of the numbers in `whole`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        bucket: Any = _Bucket(whole)
        world: Any = None  # makes the hooks use the whole world
        hooks: dict[str, Callable[[], Any]] = {"FP16": lambda: default_hooks.fp16_compress_hook(world, bucket)}
        if self.device.type == "cpu" or torch.cuda.is_bf16_supported():
            hooks["BF16"] = lambda: default_hooks.bf16_compress_hook(world, bucket)
        return {f"AllReduce {name}": partial(_wait, hook) for name, hook in hooks.items()}

    def _guarded(self, call: Callable[[], object]) -> Callable[[], object]:
        def guarded() -> object:
            with detect_peer_loss():
                return call()

        return guarded

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def meet(self) -> object:
        return self._guarded(dist.barrier)()

    def first(self, number: int) -> int:
        first = torch.tensor([number], device=self.device)
        with detect_peer_loss():
            dist.broadcast(first, 0)
        return int(first.item())

    def slowest(self, seconds: list[float]) -> list[float]:
        most = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        with detect_peer_loss():
            dist.all_reduce(most, dist.ReduceOp.MAX)
        return most.tolist()


def _wait(hook: Callable[[], Any]) -> object:
    return hook().wait()
