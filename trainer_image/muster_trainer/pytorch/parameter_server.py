"""What a parameter server of the RPC strategy does: it holds a part of the parameters, and updates them with gradients."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import nn

from muster_trainer.pytorch.rates import set_rates


class ParameterServer:
    """A part of the model with its optimizer (None where there is nothing to hold). Calls come from several threads.

    `version` counts updates since this process started.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self.parameters = dict(model.named_parameters())
        self.optimizer = optimizer
        self.version = 0
        self._sent: dict[int, Mapping[str, torch.Tensor]] = {}
        self._lock = threading.RLock()

    def pull(self) -> tuple[int, dict[str, torch.Tensor]]:
        """The version and a copy of the parameters of just that version."""
        with self._lock:
            return self.version, {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    def push(self, worker: int, version: int, gradients: Mapping[str, torch.Tensor], *, update: bool, rate: float) -> int:
        """Takes a worker's gradients, computed with `version`, and uses them at once where `update` says so; gives the
        updates that there have been since that version. `rate` is the share of the learning rate."""
        with self._lock:
            stale = self.version - version
            self._sent[worker] = gradients
            if update:
                self.update(1.0, rate=rate)
            return stale

    def square(self) -> float:
        """The square of the norm of all gradients that were sent."""
        with self._lock:
            self._add_up()
            return sum(one.grad.double().square().sum().item() for one in self.parameters.values() if one.grad is not None)

    def update(self, factor: float | None, *, rate: float) -> None:
        """One update with the sum of the gradients that were sent, times `factor`; None: they are dropped."""
        with self._lock:
            self._add_up()
            self._sent.clear()
            if factor is None or self.optimizer is None:
                return
            for parameter in self.parameters.values():
                if parameter.grad is not None:
                    parameter.grad *= factor
            set_rates(self.optimizer, rate)
            self.optimizer.step()
            self.version += 1

    def _add_up(self) -> None:
        """In the order of workers, whatever order they sent in: so that the sum is the same to the bit each time."""
        for name, parameter in self.parameters.items():
            parts = [self._sent[worker][name] for worker in sorted(self._sent) if name in self._sent[worker]]
            parameter.grad = torch.stack(parts).sum(dim=0) if parts else None


def place(sizes: Mapping[str, int], servers: Sequence[int]) -> dict[str, int]:
    """Which server holds each parameter: the largest first, each to the server that holds least (longest processing time
    first; Graham, 1969)."""
    held = dict.fromkeys(servers, 0)
    owners: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        server = min(servers, key=lambda one: held[one])
        owners[name] = server
        held[server] += sizes[name]
    return owners


def keep(model: nn.Module, names: Collection[str]) -> nn.Module:
    """The model without its other parameters; those that stay keep their names."""
    for name, _ in list(model.named_parameters(remove_duplicate=False)):
        if name not in names:
            path, _, leaf = name.rpartition(".")
            model.get_submodule(path).register_parameter(leaf, None)
    return model
