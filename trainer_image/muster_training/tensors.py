"""The parts of registered states that need PyTorch. Programs without PyTorch do not import this module."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from muster_contract.errors import UserError
from muster_trainer.checkpoint.tensor_files import ITEM_BYTES
from muster_training.parts import Changed, Copied, Part
from muster_training.trees import Packed, pack, unpack

_DTYPES = {name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def block_of(value: object, where: str) -> tuple[str, list[int], memoryview] | None:
    """The type, shape and bytes of a tensor; None if `value` is no tensor. Raises UserError for one that a file cannot hold."""
    if not isinstance(value, torch.Tensor):
        return None
    if hasattr(value, "to_local"):
        raise UserError(f"register: {where} is in shards (DTensor), which register cannot save; use muster.checkpoint")
    if value.layout is not torch.strided or value.dtype not in _NAMES:
        raise UserError(f"register: {where} is a tensor of {value.layout} and {value.dtype}, which cannot be saved")
    host = value.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    content = host.reshape(-1).view(torch.uint8).numpy().data if host.numel() else memoryview(b"")
    return _NAMES[value.dtype], list(value.shape), content


def tensor_of(dtype: str, shape: Sequence[int], content: bytes | memoryview) -> torch.Tensor:
    if not len(content):
        return torch.empty(tuple(shape), dtype=_DTYPES[dtype])
    return torch.frombuffer(bytearray(content), dtype=_DTYPES[dtype]).reshape(tuple(shape))


def recognized(name: str, value: object) -> Part | None:
    """The part of an object of PyTorch; None for other objects, and for those that a pair of `state_dict` and `load_state_dict` covers."""
    if isinstance(value, nn.parallel.DistributedDataParallel):
        return _Module(name, value.module)
    if isinstance(value, nn.Module):
        return _Module(name, value)
    if isinstance(value, torch.optim.Optimizer):
        return _Optimizer(name, _unwrapped(value))
    if isinstance(value, torch.Generator):
        return Copied(name, value.get_state, value.set_state)
    return None


def random_part() -> Part:
    """The default generators of PyTorch."""

    def save() -> dict[str, torch.Tensor | None]:
        return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None}

    def restore(state: dict[str, torch.Tensor | None]) -> None:
        assert state["cpu"] is not None
        torch.set_rng_state(state["cpu"])
        if state["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])

    return Copied("random.torch", save, restore)


def uncovered(parts: Sequence[Part]) -> list[str]:
    """What this process trains with, and has not registered."""
    optimizers = [each.value for each in parts if isinstance(each, _Optimizer)]
    covered = {id(parameter) for each in parts if isinstance(each, _Module) for parameter in each.value.parameters()}
    found = []
    if any(id(each) not in covered for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]):
        found.append("a module whose parameters the optimizer updates")
    registered = {id(each.value) for each in parts}
    registered |= {id(getattr(each.value, "scheduler", None)) for each in parts}  # Accelerate wraps schedulers
    kinds = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
    others = [each for each in gc.get_objects() if issubclass(type(each), kinds) and id(_unwrapped(each)) not in registered]
    return found + sorted({type(each).__name__ for each in others})


def _unwrapped(value: Any) -> Any:
    """The optimizer in one of Accelerate's."""
    inner = value.__dict__.get("optimizer")
    return inner if isinstance(value, torch.optim.Optimizer) and isinstance(inner, torch.optim.Optimizer) else value


class _Module(Part):
    """A module. Its parameters are those of the last step until an optimizer or the program changes them. Its buffers change in the forward
    pass, so they are copied."""

    def __init__(self, name: str, value: nn.Module) -> None:
        super().__init__(name, value)
        self.value: nn.Module = value
        self._version = 0
        self._buffers: list[torch.Tensor] = []

    def keep(self) -> None:
        self._version = self._current
        self._buffers = [each.detach().clone() for each in self.value.buffers()]

    def kept(self) -> Packed:
        if self._version != self._current:
            raise Changed(self.name)
        with torch.no_grad():
            for buffer, kept in zip(self.value.buffers(), self._buffers, strict=True):
                buffer.copy_(kept)
        return self.now()

    def now(self) -> Packed:
        return pack(self.value.state_dict(), self.name)

    def restore(self, state: Packed) -> None:
        self.value.load_state_dict(unpack(state))

    @property
    def _current(self) -> int:
        return sum(each._version for each in self.value.parameters())


class _Optimizer(Part):
    """An optimizer. Its state is that of the last step until its `step` changes it. A closure that `step` gets may lose a peer before."""

    def __init__(self, name: str, value: torch.optim.Optimizer) -> None:
        super().__init__(name, value)
        self.value: torch.optim.Optimizer = value
        self._has_changed = False
        self._version = 0
        value.register_step_pre_hook(self._begins)

    def _begins(self, _: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if (args[1:] or [kwargs.get("closure")])[0] is None:  # PyTorch includes the optimizer in `args`
            self._has_changed = True

    def keep(self) -> None:
        self._has_changed, self._version = False, self._current

    def kept(self) -> Packed:
        if self._has_changed or self._version != self._current:
            raise Changed(self.name)
        return self.now()

    @property
    def _current(self) -> int:
        parameters = [each for group in self.value.param_groups for each in group["params"]]
        moments = [each for state in self.value.state.values() for each in state.values() if isinstance(each, torch.Tensor)]
        return sum(each._version for each in [*parameters, *moments])

    def now(self) -> Packed:
        return pack(self.value.state_dict(), self.name)

    def restore(self, state: Packed) -> None:
        self.value.load_state_dict(unpack(state))
