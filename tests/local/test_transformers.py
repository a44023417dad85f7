"""Hugging Face `Trainer` under `muster run`: a small model from a config and tokens from a seed, so nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.local_jobs import LocalJob, job

UNMODIFIED = '''
"""A script of a user who does not know Muster."""
import sys, time
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(float(sys.argv[1]))
        tokens = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}

model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
arguments = TrainingArguments("out", max_steps=12, per_device_train_batch_size=4, logging_steps=2, save_strategy="no")
Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
'''


@pytest.mark.torch
def test_an_unmodified_trainer_shows_step_total_time_and_loss(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNMODIFIED)
    local_job = LocalJob(tmp_path)
    local_job.write(job(trainer={"script": "train.py 0.2"}, replicas=1))  # posts come every 5 s at most
    code, output = local_job.muster_run("job.yaml", seconds=300)
    assert code == 0, output
    progress = local_job.status["progress"]
    assert (progress["step"], progress["totalSteps"], progress["percent"]) == (12, 12, 100)
    assert float(progress["loss"]) > 0
    assert {"grad_norm", "learning_rate"} <= set(progress["metrics"])
    steps = local_job.events("step")
    assert steps[0]["step"] < 12, "no post came during the training"
    assert all(step["rank"] == 0 and step["totalSteps"] == 12 for step in steps)
    assert any(step.get("remainingSeconds") is not None for step in steps)
