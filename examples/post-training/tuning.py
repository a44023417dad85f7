"""What all methods of post-training share: settings of Trainer, adapters, and a run that `muster_training` saves and resumes."""

import os
from typing import Any

import torch
from peft import LoraConfig

import muster_training as muster

STEPS, BATCH = 60, 8
SETTINGS: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": BATCH // int(os.environ.get("WORLD_SIZE", 1)),
    "max_length": 64,
    "gradient_checkpointing": False,
    "use_cpu": not torch.cuda.is_available(),
    "bf16": torch.cuda.is_available(),
    "logging_steps": 1,
    "save_steps": 20,  # into Trainer's own folder; Muster copies each checkpoint to the checkpoint storage of the job
    "save_total_limit": 1,
    "disable_tqdm": True,
    "report_to": [],
}


def adapters(arguments: list[str]) -> LoraConfig | None:
    """The adapters to train. None for all weights."""
    if "--all-weights" in arguments:
        return None
    return LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM")


def train(trainer: Any) -> None:
    """Trains from the newest checkpoint of the job to the last step."""
    newest = muster.latest()
    if newest is None or newest.step < STEPS:  # if all steps are done, Trainer may do one more
        trainer.train(resume_from_checkpoint=str(newest.folder) if newest else None)
