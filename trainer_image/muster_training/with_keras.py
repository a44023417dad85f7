"""The callback for Keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from muster_contract.errors import BadConfiguration
from muster_contract.events import Registered
from muster_training.saves import Checkpoint
from muster_training.session import checkpoint, current, environment, report, report_metrics, should_save, should_stop

WEIGHTS = "keras.weights.h5"
RANDOM = "keras.random.npz"


class MusterCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Reports and saves after steps of `fit`.

    It saves the state of random generators, such as those of Dropout, in a file of its own, because the weights that Keras saves include
    only the state of the optimizer.
    """

    def __init__(self, checkpoint: Checkpoint | None, every_steps: int) -> None:
        super().__init__()
        if every_steps < 1:
            raise BadConfiguration(f"keras_callback: every_steps is {every_steps}; write 1 or more")
        if environment().world > 1:
            raise BadConfiguration("keras_callback: fit() of Keras 3 cannot train with several processes; write a loop of your own")
        self._checkpoint = checkpoint
        self._every = every_steps
        self._step = self._saved = checkpoint.step if checkpoint else 0
        self._batch = -1
        self._stopping = False
        self._cut = False

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        if not self.params["steps"]:
            raise BadConfiguration("keras_callback: fit() needs steps_per_epoch, to know where in an epoch it resumes")
        if not self.model.built:
            raise BadConfiguration("keras_callback: build the model before fit(), for example with an Input layer")
        if self._checkpoint:
            self._restore(self._checkpoint)
        current().sender.send(Registered())

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._batch = -1

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._step += batch - self._batch  # more than 1 step with steps_per_execution
        self._batch = batch
        per_epoch = self.params["steps"]
        total = self.params["epochs"] * per_epoch
        metrics = dict(logs or {})
        report(step=self._step, total=total, loss=metrics.pop("loss", None))
        report_metrics(self._step, metrics)
        self._stopping = should_stop()
        is_due = self._step // self._every > self._saved // self._every or should_save()
        if self._stopping or is_due or self._step >= total:
            self._save()
        if self._stopping or self._step >= total:
            self.model.stop_training = True
        elif self._step % per_epoch == 0 and batch + 1 < per_epoch:
            self._cut = self.model.stop_training = True  # ends an epoch that is shorter because the run resumed within it

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        if self._stopping:
            self.model.stop_evaluating = True  # a validation may take longer than the grace period

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._cut:
            self._cut = self.model.stop_training = False
        if self._stopping and logs:  # figures of a part of the validation data, which must not make a model the best one
            for name in [name for name in logs if name.startswith("val_")]:
                logs.pop(name)

    def _save(self) -> None:
        with checkpoint(self._step) as folder:
            self.model.save_weights(folder / WEIGHTS)
            np.savez(folder / RANDOM, *(keras.ops.convert_to_numpy(each) for each in self._random_state()))
        self._saved = self._step

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.model.optimizer.build(self.model.trainable_variables)
        self.model.load_weights(checkpoint / WEIGHTS)
        with np.load(checkpoint / RANDOM) as values:
            for number, variable in enumerate(self._random_state()):
                variable.assign(values[f"arr_{number}"])

    def _random_state(self) -> list[Any]:
        """The variables that are not weights: mainly the state of random generators."""
        weights = {id(each) for each in self.model.weights}
        return [each for each in self.model.variables if id(each) not in weights]
