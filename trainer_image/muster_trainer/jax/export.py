"""Exports the trained parameters as a safetensors file with an index, by their names in the model (see `muster_trainer.export`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from muster_trainer.checkpoint import files, tensor_files
from muster_trainer.checkpoint.tensor_files import INDEX
from muster_trainer.jax import state
from muster_trainer.jax.model import Model
from muster_trainer.tasks.averages import averages
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import Task
from muster_trainer.training import tensor_table

FILE = "model.safetensors"


def write(task: Task, checkpoint: Path, directory: Path) -> list[str]:
    """Writes the export in this process. Any world may have written the checkpoint."""
    parameters = state.load(checkpoint, Model(task).first_parameters(), "model.")
    arrays = {name: np.asarray(one) for name, one in state.named_leaves(parameters, "").items()}
    own = dict(zip(state.boxes_of(arrays), arrays.values(), strict=True))
    part = tensor_table.part(directory, FILE, own, state.bytes_of, copied=True)
    part.finish([part.write()[1]])
    return []


def measure(task: Task, directory: Path, data: Any, indices: np.ndarray) -> dict[str, dict[str, float]]:
    model = Model(task)
    first = model.first_parameters()
    sizes = {FILE: files.size(directory / FILE)}
    content = files.read(directory / INDEX, limit=tensor_files.LARGEST_INDEX)
    stored = tensor_files.parse_index(content, sizes, dtypes=state.DTYPES, framework=state.FRAMEWORK)
    parameters = state.fill(first, state.read(directory, stored, state.table_of(first, "")))
    batch = jax.tree.map(np.asarray, read_batch(task, data, indices))
    sums = model.measure(model.outputs(parameters, batch[0], None), batch, jax.numpy.ones(len(indices)))
    return {FILE: averages({name: float(value) for name, value in sums.items()}, len(indices))}
