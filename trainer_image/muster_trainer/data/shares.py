"""The distribution of a step's samples over devices: as even as possible, with one more for the first devices."""

from __future__ import annotations

import numpy as np


def weighted_share(indices: np.ndarray, devices: int, position: int) -> tuple[np.ndarray, np.ndarray]:
    """The piece of device `position` with its weights, never empty: (indices, float32 weights), both of shape (n >= 1,).

    A device with nothing to do takes the step's first sample with weight 0, so that it takes part in the collectives
    and no layer meets a batch of no samples.
    """
    share = np.array_split(indices, devices)[position]
    if len(share):
        return share, np.ones(len(share), dtype=np.float32)
    return indices[:1], np.zeros(1, dtype=np.float32)
