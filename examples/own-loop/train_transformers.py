"""A Trainer of Hugging Face transformers. The model is built from a config and the tokens are made here, so nothing is downloaded.

A callback of muster_training reports, makes each checkpoint of Trainer one of the job, and ends the training at a stop.
"""

import os
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import muster_training as muster

STEPS, SAVE_EVERY, BATCH = 60, 10, 8
PAUSE = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0  # seconds for each batch of a process, to have time to watch it
FSDP = "--fsdp" in sys.argv


class Sequences(torch.utils.data.Dataset):
    """Sequences of 16 tokens, each one more than the token before."""

    def __len__(self) -> int:
        return BATCH * STEPS // 3  # three epochs

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(PAUSE * int(os.environ.get("WORLD_SIZE", 1)) / BATCH)
        tokens = (torch.arange(16) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    arguments = TrainingArguments(
        "trainer",  # Trainer's own checkpoints; Muster copies each to the checkpoint storage of the job
        max_steps=STEPS,
        per_device_train_batch_size=BATCH // int(os.environ.get("WORLD_SIZE", 1)),
        learning_rate=0.01,
        logging_steps=1,
        save_steps=SAVE_EVERY,
        save_total_limit=1,
        use_cpu=not torch.cuda.is_available(),
        fsdp=FSDP,
        fsdp_config={"state_dict_type": "SHARDED_STATE_DICT"} if FSDP else None,  # every rank saves its own part
        disable_tqdm=True,
        report_to=[],
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Sequences(),
        callbacks=[muster.transformers_callback()],
    )
    newest = muster.latest()
    if newest is None or newest.step < STEPS:  # if all steps are done, Trainer may do one more
        trainer.train(resume_from_checkpoint=str(newest.folder) if newest else None)


if __name__ == "__main__":
    main()
