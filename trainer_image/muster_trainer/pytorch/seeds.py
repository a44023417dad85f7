"""Random numbers are a function of (seed, step, place): nothing of them is saved."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_all(seed: int, step: int, place: int) -> None:
    """Seeds torch, numpy and Python; SeedSequence mixes the three numbers."""
    words = np.random.SeedSequence([seed, step, place]).generate_state(2, np.uint32)
    # not torch.manual_seed, which writes down a stack for each kind of device that is not in use: a third of a millisecond in every step
    torch.default_generator.manual_seed(int(words[0]))
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(int(words[0]))
    random.seed(int(words[1]))
    np.random.seed(int(words[1]))
