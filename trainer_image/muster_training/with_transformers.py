"""The callback for the Trainer of Hugging Face transformers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from muster_contract.errors import BadConfiguration
from muster_contract.events import Activity
from muster_training.session import checkpoint_copy, environment, phase, report, report_metrics, should_stop


class MusterCallback(TrainerCallback):
    """Reports each step of the optimizer, and commits what Trainer has saved."""

    def __init__(self) -> None:
        self._saved: int | None = None
        self._stopping = False
        self._began = 0.0
        self._activity = Activity.TRAINING

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._saved = state.global_step
        if not environment().inside:
            return
        if args.save_only_model:
            raise BadConfiguration("save_only_model: a checkpoint without the optimizer cannot be resumed; leave the argument out")
        if args.enable_jit_checkpoint:
            raise BadConfiguration("enable_jit_checkpoint: Muster's callback saves at a stop, on all ranks; leave the argument out")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not control.should_log:  # otherwise `on_log` reports the step with its loss
            report(step=state.global_step, total=state.max_steps)
        if should_stop():
            self._stopping = True
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False  # an evaluation may take longer than the grace period
        self._expect(control)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if "loss" in logs:
            report(step=state.global_step, total=state.max_steps, loss=logs["loss"])
        report_metrics(state.global_step, {name: value for name, value in logs.items() if name not in ("loss", "epoch")})

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._expect(control)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._stopping:  # the step has been saved already
            control.should_save = control.should_evaluate = False
        self._expect(control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._saved != state.global_step:
            source = Path(args.output_dir or "") / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            checkpoint_copy(state.global_step, source, seconds=time.monotonic() - self._began)
            self._saved = state.global_step
        self._expect(control)

    def _expect(self, control: TrainerControl) -> None:
        """Reports what Trainer does next, because each activity has a time limit of its own."""
        self._began = time.monotonic()
        others = Activity.SAVING if control.should_save else Activity.TRAINING
        expected = Activity.EVALUATING if control.should_evaluate else others
        if expected is not self._activity:
            self._activity = expected
            phase(expected)
