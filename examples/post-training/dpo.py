"""Direct preference optimization (DPO) of a language model with TRL: adapters (LoRA) by default, all weights with `--all-weights`.

With adapters, the reference is the model without them. With all weights, it is a copy of the model.

`muster_training` saves and resumes. The model, the tokenizer and the conversations are made in tiny.py.
"""

import os
import sys

import torch
from peft import LoraConfig
from tiny import model_and_tokenizer, preferences
from trl import DPOConfig, DPOTrainer

import muster_training as muster

STEPS, BATCH = 60, 8


def main(arguments: list[str]) -> None:
    model, tokenizer = model_and_tokenizer()
    config = DPOConfig(
        "dpo",  # the folder of Trainer's own checkpoints; Muster copies each to the checkpoint storage of the job
        max_steps=STEPS,
        per_device_train_batch_size=BATCH // int(os.environ.get("WORLD_SIZE", 1)),
        learning_rate=0.001,
        max_length=64,
        gradient_checkpointing=False,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        logging_steps=1,
        save_steps=20,
        save_total_limit=1,
        disable_tqdm=True,
        report_to=[],
    )
    adapters = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = DPOTrainer(
        model=model,
        args=config,
        train_dataset=preferences(),
        processing_class=tokenizer,
        peft_config=None if "--all-weights" in arguments else adapters,
        callbacks=[muster.transformers_callback()],
    )
    newest = muster.latest()
    if newest is None or newest.step < STEPS:  # if all steps are done, Trainer may do one more
        trainer.train(resume_from_checkpoint=str(newest.folder) if newest else None)


if __name__ == "__main__":
    main(sys.argv[1:])
