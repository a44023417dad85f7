"""The distribution of a step's samples over devices. It is as even as possible, and the first devices may get one more sample."""

from __future__ import annotations

import numpy as np


def weighted_share(indices: np.ndarray, devices: int, position: int) -> tuple[np.ndarray, np.ndarray]:
    """The samples of device `position` and their weights: (indices, float32 weights), both of shape (n,), n >= 1.

    A device that would get no sample gets the first sample of the step with weight 0. So it takes part in the collectives, and no
    layer gets an empty batch.
    """
    share = np.array_split(indices, devices)[position]
    if len(share):
        return share, np.ones(len(share), dtype=np.float32)
    return indices[:1], np.zeros(1, dtype=np.float32)
