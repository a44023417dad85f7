"""A parameter server of the RPC strategy. It holds a part of the parameters, and updates them with gradients."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import nn

from muster_trainer.pytorch.optimizers import set_rates


class ParameterServer:
    """A part of the model with its optimizer, which is None if the part has no parameters. Several threads call the methods.

    `version` counts updates since this process started.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self.parameters = dict(model.named_parameters())
        self.optimizer = optimizer
        self.version = 0
        self._sent: dict[int, Mapping[str, torch.Tensor]] = {}
        self._lock = threading.RLock()

    def pull(self) -> tuple[int, dict[str, torch.Tensor]]:
        """The version, and a copy of the parameters at that version."""
        with self._lock:
            return self.version, {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    def push(self, worker: int, version: int, gradients: Mapping[str, torch.Tensor], *, update: bool, rate: float) -> int:
        """Takes the gradients of a worker, which it computed with the parameters of `version`. Updates at once if `update` is True.

        Returns the number of updates since that version. `rate` is the factor of the learning rate.
        """
        with self._lock:
            stale = self.version - version
            self._sent[worker] = gradients
            if update:
                self.update(1.0, rate=rate)
            return stale

    def square(self) -> float:
        """The square of the norm of the sum of all gradients that workers have sent."""
        with self._lock:
            self._add_up()
            return sum(one.grad.double().square().sum().item() for one in self.parameters.values() if one.grad is not None)

    def update(self, factor: float | None, *, rate: float) -> None:
        """Updates with the sum of the gradients that workers have sent, times `factor`. Drops them if `factor` is None."""
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
        """Sums the gradients in the order of workers, so that the sum is bitwise the same for any order of arrival."""
        for name, parameter in self.parameters.items():
            parts = [self._sent[worker][name] for worker in sorted(self._sent) if name in self._sent[worker]]
            parameter.grad = torch.stack(parts).sum(dim=0) if parts else None


def assign_parameters(sizes: Mapping[str, int], servers: Sequence[int]) -> dict[str, int]:
    """The server of each parameter. Each parameter, the largest first, goes to the server with the least (Graham, 1969: longest processing
    time)."""
    sizes_by_server = dict.fromkeys(servers, 0)
    owners: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        server = min(servers, key=lambda one: sizes_by_server[one])
        owners[name] = server
        sizes_by_server[server] += sizes[name]
    return owners


def keep_parameters(model: nn.Module, names: Collection[str]) -> nn.Module:
    """Removes all parameters but `names` from the model. The names of the remaining ones do not change."""
    for name, _ in list(model.named_parameters(remove_duplicate=False)):
        if name not in names:
            path, _, leaf = name.rpartition(".")
            model.get_submodule(path).register_parameter(leaf, None)
    return model
