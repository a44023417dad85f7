"""Exports the trained model as a SavedModel, which predicts without the user's code, and as a Keras file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from muster_contract.errors import StorageUnavailable
from muster_trainer.data import DataSet
from muster_trainer.tasks.averages import averages
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import Task, describe
from muster_trainer.tensorflow.objective import Objective
from muster_trainer.tensorflow.state import STORAGE_ERRORS, load_model
from muster_trainer.tensorflow.world import one_line

SAVED_MODEL = "saved_model"
KERAS = "model.keras"


def write(task: Task, checkpoint: Path, directory: Path) -> list[str]:
    """Writes the export on the CPU, from a model that is not under a strategy."""
    with tf.device("/CPU:0"):
        model = task.build_model(task.config)
        model(tf.nest.map_structure(tf.convert_to_tensor, read_batch(task, task.train, np.arange(1))[0]))
        load_model(model, checkpoint)
        try:
            model.export(directory / SAVED_MODEL, verbose=False)
            return _write_keras(model, directory / KERAS)
        except STORAGE_ERRORS as error:
            raise StorageUnavailable(f"export {directory}: {one_line(error)}") from error


def _write_keras(model: keras.Model, path: Path) -> list[str]:
    """Writes the Keras file. If Keras cannot, as for a class without get_config, returns a notice, because the SavedModel is enough."""
    try:
        model.save(path)
        keras.models.load_model(path, compile=False)
    except STORAGE_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001 (the user's classes can raise anything)
        path.unlink(missing_ok=True)
        return [f"{path.name} is left out of the export, because Keras cannot create the model again from it: {describe(error)[:300]}"]
    return []


def measure(task: Task, directory: Path, data: DataSet, indices: np.ndarray) -> dict[str, dict[str, float]]:
    with tf.device("/CPU:0"):
        batch = tf.nest.map_structure(tf.convert_to_tensor, read_batch(task, data, indices))
        served = tf.saved_model.load(str(directory / SAVED_MODEL))  # held in a name, because it owns the variables
        metrics = {SAVED_MODEL: _measure(task, served.serve(batch[0]), batch)}
        if (directory / KERAS).exists():
            model = keras.models.load_model(directory / KERAS, compile=False)
            metrics[KERAS] = _measure(task, model(batch[0], training=False), batch)
    return metrics


def _measure(task: Task, outputs: Any, batch: Any) -> dict[str, float]:
    rows = len(tf.nest.flatten(batch[1])[0])
    sums = Objective(task).metric_sums(outputs, batch, tf.ones(rows))
    return averages({name: float(value) for name, value in sums.items()}, rows)
