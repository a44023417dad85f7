"""Exports the trained model as a state dict in one file, which `torch.load(path, weights_only=True)` reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from muster_trainer.pytorch import state
from muster_trainer.pytorch.compat import tree_map
from muster_trainer.pytorch.objective import Objective
from muster_trainer.tasks.averages import averages
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import Task

FILE = "model.pt"


def write(task: Task, checkpoint: Path, directory: Path) -> list[str]:
    """Writes the export in this process, on the CPU. Any world may have written the checkpoint."""
    model: nn.Module = task.build_model(task.config)
    state.load(checkpoint, model, None)
    save(model.state_dict(), directory / FILE)
    return []


def save(table: Mapping[str, torch.Tensor], path: Path) -> None:
    """Writes the state dict. Raises OSError if that fails, because PyTorch's own error hides the cause."""
    try:
        with path.open("wb") as file:
            torch.save(table, file)
    except RuntimeError as error:
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None


@torch.no_grad()
def measure(task: Task, directory: Path, data: Any, indices: np.ndarray) -> dict[str, dict[str, float]]:
    model: nn.Module = task.build_model(task.config)
    model.load_state_dict(torch.load(directory / FILE, map_location="cpu", weights_only=True))
    model.eval()
    batch = tree_map(torch.as_tensor, read_batch(task, data, indices))
    outputs = model(batch[0])
    sums = Objective(task, torch.device("cpu")).metric_sums(outputs, batch, np.ones(len(indices), dtype=np.float32))
    return {FILE: averages(sums, len(indices))}
