"""Stacks samples of a map-style data set to a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from muster_contract.errors import TrainerError, UserError
from muster_trainer.data import DataSet
from muster_trainer.tasks.module import Task, describe


def read_batch(task: Task, data: DataSet, indices: np.ndarray) -> tuple[Any, ...]:
    """The batch of the samples `indices`: (inputs, targets) or (inputs, targets, weights). Each is an array, or nested arrays, with n rows.

    Raises UserError if the data set fails.
    """
    try:
        if hasattr(data, "batch"):
            batch = tuple(data.batch(indices))
        else:
            samples = [data[int(index)] for index in indices]
            batch = tuple(stack(column) for column in zip(*samples, strict=True))
        if len(batch) not in (2, 3):
            raise ValueError(f"a sample has {len(batch)} parts; give (inputs, targets) or (inputs, targets, weight)")
        return batch
    except TrainerError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{task.title}: reading samples of the data set failed: {describe(error)}") from error


def stack(samples: Any) -> Any:
    """Stacks n samples to a batch with n rows. A sample is an array or a number, or a dict, list or tuple of these. All samples must have
    the same structure."""
    first = samples[0]
    if isinstance(first, dict):
        return {name: stack([sample[name] for sample in samples]) for name in first}
    if isinstance(first, list | tuple):
        return tuple(stack(column) for column in zip(*samples, strict=True))
    arrays = [np.asarray(sample) for sample in samples]
    if len(shapes := {array.shape for array in arrays}) > 1:
        raise ValueError(f"samples of one batch have the shapes {' and '.join(map(str, sorted(shapes)))}; give all one shape")
    return np.stack(arrays)
