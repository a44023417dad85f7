"""The task's loss and metrics, summed over samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from muster_contract.errors import UserError
from muster_trainer.pytorch import precision
from muster_trainer.tasks.module import Task


@dataclass(frozen=True)
class Objective:
    """Sums the results of the task's functions. Weights have the shape (n,): 1 for a sample, and 0 for padding."""

    task: Task
    device: torch.device

    def loss_sum(self, outputs: Any, batch: Any, weights: np.ndarray) -> torch.Tensor:
        """The sum of the losses, for the backward pass. Raises UserError."""
        return self._sum(self._losses(precision.single(outputs), batch), weights, "loss")

    def metric_sums(self, outputs: Any, batch: Any, weights: np.ndarray) -> dict[str, float]:
        """The sums of loss and metrics by name. Raises UserError."""
        outputs = precision.single(outputs)
        values = {"loss": self._losses(outputs, batch), **self.task.metrics(outputs, batch)}
        return {name: self._sum(value, weights, name).double().item() for name, value in values.items()}

    def _losses(self, outputs: Any, batch: Any) -> Any:
        """The losses times the weight of each sample, if the data set has weights."""
        values = self.task.loss(outputs, batch)
        return values if len(batch) == 2 else values * self.task.weights_for(values, batch)

    def _sum(self, values: Any, weights: np.ndarray, name: str) -> torch.Tensor:
        """The weighted sum of `values`, which are one value per sample or their mean."""
        try:
            tensor: torch.Tensor = torch.as_tensor(values, device=self.device)
        except (TypeError, ValueError, RuntimeError):
            raise UserError(f"{self.task.title}: {name} must return a tensor; it returned a {type(values).__name__}") from None
        if name == "loss" and torch.is_grad_enabled() and not tensor.requires_grad:
            raise UserError(
                f"{self.task.title}: no gradient flows back from the result of loss; compute it from outputs, without detach() or item()"
            )
        if tensor.dim() == 0:
            return tensor * float(weights.sum())
        if tensor.shape != weights.shape:
            raise UserError(
                f"{self.task.title}: {name} must have the shape ({len(weights)},), a value per sample, or () for their "
                f"mean; it has {tuple(tensor.shape)}"
            )
        return (tensor * torch.as_tensor(weights, device=self.device)).sum()
