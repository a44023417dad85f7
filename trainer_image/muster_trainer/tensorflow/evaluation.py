"""What the evaluator computes with: the model alone, on one device."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from muster_trainer.contract import BadConfiguration, TrainerSpec
from muster_trainer.tasks.module import Task
from muster_trainer.tensorflow.machine import one_device
from muster_trainer.tensorflow.snapshots import PREFIX
from muster_trainer.tensorflow.synchronous import Synchronous
from muster_trainer.tensorflow.world import one_line


class Evaluation(Synchronous):
    """Reads the model of a checkpoint and leaves the optimizer be: how that is laid out depends on the strategy."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        super().__init__(task, spec, join=one_device)

    def load(self, directory: Path) -> None:
        try:
            tf.train.Checkpoint(model=self.model).read(str(directory / PREFIX)).expect_partial().assert_existing_objects_matched()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise BadConfiguration(f"checkpoint {directory} does not fit the model: {one_line(error)}") from error
