"""The engine of the evaluator: only the model, on one device."""

from __future__ import annotations

from pathlib import Path
from typing import final

from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.tasks.module import Task
from muster_trainer.tensorflow.engine import KerasEngine
from muster_trainer.tensorflow.machine import one_device
from muster_trainer.tensorflow.state import load_model
from muster_trainer.training.engine import EvaluationEngine


@final
class Evaluation(KerasEngine, EvaluationEngine):
    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        super().__init__(task, spec, join=one_device)

    def load(self, directory: Path) -> None:
        load_model(self.model, directory)
