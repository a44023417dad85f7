"""The task's loss and metrics, summed over samples, and the check that these sums may be computed in parts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from muster_contract.errors import TrainerError, UserError
from muster_trainer.pytorch import precision
from muster_trainer.pytorch.compat import tree_leaves, tree_map
from muster_trainer.tasks.averages import (
    NO_ROWS,
    TOLERANCE,
    TOLERANCE_IN_HALF,
    WEIGHT,
    are_joined,
    check,
    is_check_due,
    samples_checked,
    values_and_weights,
)
from muster_trainer.tasks.module import Task


class Objective:
    """Sums the results of the task's functions. Weights have the shape (n,): 1 for a sample, and 0 for padding."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self.task, self.device = task, device
        self.is_weighted = False
        """Whether the task has returned a loss with weights."""
        self._tolerance = TOLERANCE_IN_HALF if task.config.precision == "BFloat16" else TOLERANCE
        self._is_due = task.is_checked
        self._checked: Any = None
        """The outputs and the batch of earlier micro-batches, which are too few for the check."""

    def start_step(self, step: int) -> None:
        """The first step of this process is checked, and those of `is_check_due`."""
        self._is_due = self._is_due or (self.task.is_checked and is_check_due(step))

    def loss_sum(self, outputs: Any, batch: Any, weights: np.ndarray, *, of: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of the losses, for the backward pass, and the sum of their weights, by which the whole step is divided.

        `of` is the number of samples of the whole step. Raises UserError.
        """
        outputs = precision.single(outputs)
        if self._is_due and len(weights) < of:
            self._check(tree_map(_detached, outputs), batch)
        total, weight = self._sums(self._losses(outputs, batch), weights, "loss")
        self.is_weighted = weight is not None
        return total, torch.tensor(weights.sum(), device=self.device) if weight is None else weight.detach()

    def metric_sums(self, outputs: Any, batch: Any, weights: np.ndarray) -> dict[str, float]:
        """The sums of loss and metrics by name, for `averages`. Raises UserError."""
        outputs = precision.single(outputs)
        return self._summed({"loss": self._losses(outputs, batch), **self.task.metrics(outputs, batch)}, weights)

    def _summed(self, results: Mapping[str, Any], weights: np.ndarray) -> dict[str, float]:
        sums: dict[str, float] = {}
        for name, result in results.items():
            total, weight = self._sums(result, weights, name)
            sums[name] = total.double().item()
            if weight is not None:
                sums[name + WEIGHT] = weight.double().item()
        return sums

    def _losses(self, outputs: Any, batch: Any) -> Any:
        """The losses times the weight of each sample, if the data set has weights."""
        values = self.task.loss(outputs, batch)
        return values if len(batch) == 2 else values * self.task.weights_for(values, batch)

    def _sums(self, result: Any, weights: np.ndarray, name: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        values, own = values_and_weights(result)
        if own is None:
            return self._sum(values, weights, name, of_scalar=weights.sum()), None
        sums = [self._sum(one, weights, part, of_scalar=weights.mean()) for part, one in ((name, values), (name + WEIGHT, own))]
        return sums[0], sums[1]

    def _sum(self, values: Any, weights: np.ndarray, name: str, *, of_scalar: float) -> torch.Tensor:
        """The weighted sum of `values`, which are one value per sample. A scalar counts as often as `of_scalar` says."""
        try:
            tensor: torch.Tensor = torch.as_tensor(values, device=self.device)
        except (TypeError, ValueError, RuntimeError):
            raise UserError(f"{self.task.title}: {name} must return a tensor; it returned a {type(values).__name__}") from None
        if name == "loss" and torch.is_grad_enabled() and not tensor.requires_grad:
            raise UserError(
                f"{self.task.title}: no gradient flows back from the result of loss; compute it from outputs, without detach() or item()"
            )
        if tensor.dim() == 0:
            return tensor * float(of_scalar)
        if tensor.shape != weights.shape:
            raise UserError(
                f"{self.task.title}: {name} must have the shape ({len(weights)},), a value per sample, or () for their "
                f"mean; it has {tuple(tensor.shape)}"
            )
        return (tensor * torch.as_tensor(weights, device=self.device)).sum()

    # the check

    def _check(self, outputs: Any, batch: Any) -> None:
        """Checks the loss and the metrics of a micro-batch, with those before it until there are enough samples. It changes no state of
        the training, and draws no random numbers of the step."""
        outputs, batch = self._checked = _joined(self._checked, (outputs, batch))
        rows = _rows_in(batch)
        if rows == 1:
            return
        of_rows = [one for one in tree_leaves(outputs) if _has_rows(one, rows)]
        if not of_rows:
            raise UserError(f"{self.task.title}: {NO_ROWS}")
        enough = samples_checked(sum(one.numel() for one in of_rows) // rows)
        if rows >= enough:
            self._checked, self._is_due = None, False
            outputs, batch = _rows((outputs, batch), slice(0, enough), of=rows)
            rows = enough
        with _random_numbers_kept(self.device), torch.enable_grad():
            self._check_results("loss", lambda part: self._of_loss(*_rows((outputs, batch), part, of=rows)), rows)
            if self.task.test is not None:
                self._check_metrics(outputs, batch, rows)

    def _check_metrics(self, outputs: Any, batch: Any, rows: int) -> None:
        def sums(part: slice) -> dict[str, float]:
            with torch.no_grad():
                own = _rows((outputs, batch), part, of=rows)
                return self._summed(self.task.metrics(*own), np.ones(part.stop - part.start, dtype=np.float32))

        try:
            if are_joined(lambda part: [np.asarray(one) for one in sums(part).values()], rows=rows, tolerance=self._tolerance):
                return
            names = list(sums(slice(0, rows)))
        except TrainerError:
            return  # the evaluation reports it
        for name in names:
            self._check_results(name, lambda part, name=name: [np.asarray(sums(part)[name])], rows)

    def _check_results(self, name: str, results: Any, rows: int) -> None:
        check(self.task.title, name, results, rows=rows, tolerance=self._tolerance)

    def _of_loss(self, outputs: Any, batch: Any) -> Sequence[np.ndarray]:
        """The sum of weights, and the gradients of the sum of losses by the outputs, which show weights that the values hide."""
        outputs, rows = tree_map(_detached, outputs), _rows_in(batch)
        leaves = [one for one in tree_leaves(outputs) if _has_rows(one, rows) and one.requires_grad]
        total, weight = self._sums(self._losses(outputs, batch), np.ones(rows, dtype=np.float32), "loss")
        found = torch.autograd.grad(total, leaves, allow_unused=True)
        gradients = [torch.zeros_like(leaf) if one is None else one for one, leaf in zip(found, leaves, strict=True)]
        return [np.asarray(rows if weight is None else weight.item()), *(one.cpu().double().numpy() for one in gradients)]


def _detached(one: Any) -> Any:
    return one.detach().requires_grad_(one.is_floating_point()) if isinstance(one, torch.Tensor) else one


def _rows_in(batch: Any) -> int:
    return len(tree_leaves(batch)[0])


def _has_rows(one: Any, rows: int) -> bool:
    return isinstance(one, torch.Tensor) and one.dim() > 0 and len(one) == rows


def _rows(nested: Any, part: slice, *, of: int) -> Any:
    return tree_map(lambda one: one[part] if _has_rows(one, of) else one, nested)


def _joined(one: Any, other: Any) -> Any:
    """Two batches as one. If samples differ in their shapes, it is the second batch twice."""
    if one is None:
        return other
    first, second = tree_leaves(one), tree_leaves(other)
    of = len(second[-1]), len(first[-1])
    are_alike = all(_shape(a, of[1]) == _shape(b, of[0]) for a, b in zip(first, second, strict=True))
    before = iter(first if are_alike else second)
    with torch.no_grad():
        return tree_map(lambda leaf: torch.cat([next(before), leaf]) if _has_rows(leaf, of[0]) else (next(before), leaf)[1], other)


def _shape(one: Any, rows: int) -> Any:
    return one.shape[1:] if _has_rows(one, rows) else None


@contextmanager
def _random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Restores the states of the random number generators at the end of the block."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
