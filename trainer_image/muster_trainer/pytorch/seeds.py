"""Seeds random numbers. They are a function of (seed, step, position), so that checkpoints need no state of generators."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_all(seed: int, step: int, position: int) -> None:
    """Seeds torch, numpy and Python. SeedSequence mixes the three numbers."""
    words = np.random.SeedSequence([seed, step, position]).generate_state(2, np.uint32)
    # Not torch.manual_seed, because it records a stack for each kind of unused device, which takes a third of a millisecond.
    torch.default_generator.manual_seed(int(words[0]))
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(int(words[0]))
    random.seed(int(words[1]))
    np.random.seed(int(words[1]))
