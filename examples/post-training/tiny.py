"""A tiny language model with a tokenizer, and conversations to train on. All of it is made here, so nothing is fetched.

For a model of your own, replace `model_and_tokenizer` by `from_pretrained` of a folder (docs/tasks/inputs.md).
"""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"


def questions() -> list[tuple[str, str, str]]:
    """Sums of two digits: the question, the right answer, and a wrong one."""
    pairs = [(a, b) for a in range(10) for b in range(10) if a + b < 10]
    return [(f"What is {WORDS[a]} plus {WORDS[b]}?", f"It is {WORDS[a + b]}.", f"It is {WORDS[(a + b + 3) % 10]}.") for a, b in pairs]


def _said(role: str, content: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def answers() -> Dataset:
    """Conversations for supervised fine-tuning: a prompt and its completion."""
    return Dataset.from_list([{"prompt": _said("user", each), "completion": _said("assistant", right)} for each, right, _ in questions()])


def preferences() -> Dataset:
    """Conversations for DPO: a prompt, the better answer, and the worse one."""
    rows = [
        {"prompt": _said("user", each), "chosen": _said("assistant", right), "rejected": _said("assistant", wrong)}
        for each, right, wrong in questions()
    ]
    return Dataset.from_list(rows)


def model_and_tokenizer() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """A Llama with random weights, the same on all ranks, and a tokenizer that is trained on the conversations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((text for row in questions() for text in row), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>", chat_template=TEMPLATE)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=0.2,
        pad_token_id=fast.pad_token_id,
        eos_token_id=fast.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config), fast
