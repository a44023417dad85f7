"""The callback for the Trainer of Hugging Face transformers."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_pt_utils import safe_globals
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy, SaveStrategy
from transformers.utils import SAFE_WEIGHTS_NAME

from muster_contract.errors import BadConfiguration
from muster_contract.events import Activity
from muster_training.generators import States, read_states, set_states
from muster_training.parts import Part, part_of, random_parts
from muster_training.protection import Protection
from muster_training.session import (
    checkpoint_copy,
    current,
    environment,
    phase,
    report,
    report_metrics,
    resumed_from,
    should_save,
    should_stop,
)


class MusterCallback(TrainerCallback):
    """Reports each step of the optimizer, and commits what Trainer has saved.

    A stop leaves out an evaluation that is due at its step, because it may take longer than the grace period. The resumed run makes it up
    before its first step, with what Trainer does after an evaluation.
    """

    def __init__(self) -> None:
        self._saved: int | None = None
        self._stopping = False
        self._began = 0.0
        self._activity = Activity.TRAINING
        self._makes_up = False
        self._figures: dict[str, float] = {}
        self._states: States | None = None
        self._protection: Protection | None = None
        self._random: dict[str, Any] = {}
        self._tokens_seen = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._saved = state.global_step
        if not environment().inside:
            return
        if args.save_only_model:
            raise BadConfiguration("save_only_model: a checkpoint without the optimizer cannot be resumed; leave the argument out")
        if args.enable_jit_checkpoint:
            raise BadConfiguration("enable_jit_checkpoint: Muster's callback saves at a stop, on all ranks; leave the argument out")
        if self._saved and _lacks_evaluation(args, state):
            self._makes_up = True
            self._evaluates_on_start, args.eval_on_start = args.eval_on_start, True
            phase(Activity.EVALUATING)
            _set_saved_states(args, state.global_step)
        save = functools.partial(self._save_alone, args, state, kwargs)
        self._protection = Protection("transformers_callback", current(), _parts(args, kwargs), save)
        self._protection.begin(state.global_step)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._makes_up:
            self._makes_up = False
            args.eval_on_start = self._evaluates_on_start
            self._states = read_states([])
            _judge(args, state, self._figures)
            if isinstance(scheduler := kwargs["lr_scheduler"], torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step(self._figures[_metric(args)])

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._states:  # Trainer has set the states of before the evaluation
            set_states({**self._states, "cuda": None}, [])
            self._states = None
            if _is_between_epochs(state) and getattr(kwargs["train_dataloader"], "generator", None) is None:
                torch.empty((), dtype=torch.int64).random_()  # the seed of the epoch's workers, which DataLoader has drawn

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._finish(args, state)
        if self._protection and _is_replicated(args):
            self._protection.follow()
        if not control.should_log:  # otherwise `on_log` reports the step with its loss
            report(step=state.global_step, total=state.max_steps)
        if should_stop():
            self._stopping = True
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False  # an evaluation may take longer than the grace period
        elif should_save():
            control.should_save = True
        self._expect(control)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if "loss" in logs:
            report(step=state.global_step, total=state.max_steps, loss=logs["loss"])
        report_metrics(state.global_step, {name: value for name, value in logs.items() if name not in ("loss", "epoch")})

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._figures = kwargs["metrics"]
        if self._protection and self._protection.step == state.global_step:
            self._finish(args, state)  # the evaluation may have drawn random numbers
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
            if self._protection and _is_replicated(args) and self._protection.step == state.global_step:
                self._protection.follow(time.monotonic() - self._began)
        self._expect(control)

    def _finish(self, args: TrainingArguments, state: TrainerState) -> None:
        """Keeps what a rescue saves of this step, apart from weights and moments, which stay until the next step of the optimizer."""
        if self._protection and _is_replicated(args):
            self._random, self._tokens_seen = _random_states(), state.num_input_tokens_seen
            self._protection.finish(state.global_step)

    def _save_alone(
        self, args: TrainingArguments, state: TrainerState, objects: dict[str, Any], folder: Path, states: Mapping[str, object]
    ) -> None:
        """Writes a checkpoint of Trainer without a collective. `Trainer._save_checkpoint` has the files that it needs."""
        model = getattr(objects["model"], "module", objects["model"])
        if hasattr(model, "save_pretrained"):
            model.should_save_on_this_rank = lambda is_main_process: True  # otherwise transformers writes nothing on ranks other than 0
            model.save_pretrained(folder)
        else:
            save_file(model.state_dict(), folder / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})
        torch.save(objects["optimizer"].state_dict(), folder / OPTIMIZER_NAME)
        torch.save(objects["lr_scheduler"].state_dict(), folder / SCHEDULER_NAME)
        for rank in range(args.world_size):
            torch.save(self._random, folder / _random_file(rank, args.world_size))
        replace(state, num_input_tokens_seen=self._tokens_seen).save_to_json(str(folder / TRAINER_STATE_NAME))

    def _expect(self, control: TrainerControl) -> None:
        """Reports what Trainer does next, because each activity has a time limit of its own."""
        self._began = time.monotonic()
        others = Activity.SAVING if control.should_save else Activity.TRAINING
        expected = Activity.EVALUATING if control.should_evaluate else others
        if expected is not self._activity:
            self._activity = expected
            phase(expected)


def _lacks_evaluation(args: TrainingArguments, state: TrainerState) -> bool:
    """Whether an evaluation was due at the step of the checkpoint, and was left out."""
    if any(entry.get("step") == state.global_step and "eval_runtime" in entry for entry in state.log_history):
        return False
    if args.eval_strategy == IntervalStrategy.EPOCH:
        return _is_between_epochs(state) and args.eval_delay <= (state.epoch or 0)
    if args.eval_strategy == IntervalStrategy.STEPS:
        return state.global_step % state.eval_steps == 0 and args.eval_delay <= state.global_step
    return False


def _is_between_epochs(state: TrainerState) -> bool:
    return float(state.epoch or 0).is_integer()


def _set_saved_states(args: TrainingArguments, step: int) -> None:
    """Puts the random generators into the states that Trainer has saved. It sets them only after the evaluation."""
    newest = resumed_from()
    name = _random_file(args.process_index, args.world_size)
    if newest and newest.step == step and (newest / name).is_file():
        with safe_globals():  # type: ignore[no-untyped-call]
            saved = torch.load(newest / name, weights_only=True)
        kind, keys, *rest = saved["numpy"]
        keys = torch.from_numpy(np.asarray(keys, dtype=np.int64))
        set_states({"python": saved["python"], "numpy": [kind, keys, *rest], "cpu": saved["cpu"], "cuda": None, "own": []}, [])


def _random_file(rank: int, world: int) -> str:
    return f"rng_state_{rank}.pth" if world > 1 else "rng_state.pth"


def _random_states() -> dict[str, Any]:
    """The states of the random generators of this process, as Trainer saves them."""
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
    return {**states, "cuda": torch.cuda.get_rng_state_all()} if torch.cuda.is_available() else states


def _is_replicated(args: TrainingArguments) -> bool:
    """Whether each rank has the whole state, and Muster knows its parts. It does not know the gradient scaler of fp16."""
    return args.world_size > 1 and not (args.fsdp or args.deepspeed or args.fp16)


def _parts(args: TrainingArguments, objects: dict[str, Any]) -> list[Part]:
    """What must be the same on all ranks, so that one of them can save it for all."""
    if not _is_replicated(args):
        return []
    return [*(part_of(name, objects[name]) for name in ("model", "optimizer")), *random_parts()]


def _judge(args: TrainingArguments, state: TrainerState, figures: dict[str, float]) -> None:
    """Updates the best figure, as Trainer does after an evaluation (`Trainer._determine_best_metric`)."""
    figure = figures.get(_metric(args))
    if figure is None:
        return
    best = state.best_metric
    if best is None or (figure > best if args.greater_is_better else figure < best):
        state.best_metric = figure
        if args.save_strategy != SaveStrategy.NO:
            state.best_global_step = state.global_step


def _metric(args: TrainingArguments) -> str:
    """The name of the figure that tells which model is best."""
    name = args.metric_for_best_model or ""
    return name if name.startswith("eval_") else f"eval_{name}"
