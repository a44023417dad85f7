"""Supervised fine-tuning of a language model with TRL: adapters (LoRA) by default, all weights with `--all-weights`.

The model, the tokenizer and the conversations are made in tiny.py. What all methods share is in tuning.py.
"""

import sys

from tiny import answers, model_and_tokenizer
from trl import SFTConfig, SFTTrainer
from tuning import SETTINGS, adapters, train

import muster_training as muster

if __name__ == "__main__":
    model, tokenizer = model_and_tokenizer()
    config = SFTConfig("sft", learning_rate=0.01, **SETTINGS)
    train(
        SFTTrainer(
            model=model,
            args=config,
            train_dataset=answers(),
            processing_class=tokenizer,
            peft_config=adapters(sys.argv),
            callbacks=[muster.transformers_callback()],
        )
    )
