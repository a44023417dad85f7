"""Direct preference optimization (DPO) of a language model with TRL: adapters (LoRA) by default, all weights with `--all-weights`.

With adapters, the reference is the model without them. With all weights, it is a copy of the model.

The model, the tokenizer and the conversations are made in tiny.py. What all methods share is in tuning.py.
"""

import sys
from copy import deepcopy

from tiny import model_and_tokenizer, preferences
from trl import DPOConfig, DPOTrainer
from tuning import SETTINGS, adapters, train

import muster_training as muster

if __name__ == "__main__":
    model, tokenizer = model_and_tokenizer()
    peft_config = adapters(sys.argv)
    config = DPOConfig("dpo", learning_rate=0.001, **SETTINGS)
    train(
        DPOTrainer(
            model=model,
            ref_model=None if peft_config else deepcopy(model),
            args=config,
            train_dataset=preferences(),
            processing_class=tokenizer,
            peft_config=peft_config,
            callbacks=[muster.transformers_callback()],
        )
    )
