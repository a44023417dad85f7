"""The states of the random generators of a process: Python's, NumPy's and PyTorch's, and those that a DataLoader has of its own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

States = dict[str, Any]
"""The states by generator. It has only tensors and numbers, so PyTorch reads it with `weights_only`."""


def read_states(generators: list[torch.Generator]) -> States:
    """The states of the global generators and of `generators`."""
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "own": [each.get_state() for each in generators],
    }


def set_states(states: States, generators: list[torch.Generator]) -> None:
    """Puts the generators into the states that `read_states` has returned for as many `generators`."""
    random.setstate(states["python"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["cpu"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    for generator, state in zip(generators, states["own"], strict=False):
        generator.set_state(state)


def generators_of(loader: object) -> list[torch.Generator]:
    """The generators that a DataLoader, its samplers and its data set have of their own."""
    found: dict[int, torch.Generator] = {}
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (batch_sampler, getattr(batch_sampler, "sampler", None), getattr(loader, "sampler", None))
    places = (loader, *samplers, getattr(loader, "dataset", None))
    for place in places:
        found |= {id(value): value for value in getattr(place, "__dict__", {}).values() if isinstance(value, torch.Generator)}
    return list(found.values())
