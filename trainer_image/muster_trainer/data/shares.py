"""How the samples of a step are shared out over devices: as evenly as possible, the first devices get one more."""

from __future__ import annotations

import numpy as np


def portions(indices: np.ndarray, parts: int) -> list[np.ndarray]:
    """`indices` in `parts` consecutive pieces whose lengths differ by one at most; the last ones may be empty."""
    return np.array_split(indices, parts)


def weighted_share(indices: np.ndarray, devices: int, position: int) -> tuple[np.ndarray, np.ndarray]:
    """The piece of device `position` with its weights, never empty: (indices, float32 weights), both of shape (n >= 1,).

    A device with nothing to do takes the step's first sample with weight 0, so that it takes part in the collectives
    and no layer meets a batch of no samples.
    """
    share = portions(indices, devices)[position]
    if len(share):
        return share, np.ones(len(share), dtype=np.float32)
    return indices[:1], np.zeros(1, dtype=np.float32)
