"""How a step's batch is shared out: the arithmetic that the trainer follows, so that any size of world trains the same.

Gradients are summed over all samples and divided by the global size, so that shares need not be equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from muster.api.spec import LearningRateScaling


def split(total: int, parts: int) -> tuple[int, ...]:
    """`total` samples in `parts` shares that differ by one at most; the first ones are the larger."""
    share, larger = divmod(total, parts)
    return tuple(share + (part < larger) for part in range(parts))


def device_shares(global_size: int, devices: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Samples per step of each device of each replica, for replicas with so many `devices` each.

    1024 over 4 replicas of 4 devices: 64 a device, so 256 a replica. The split is over all devices of the world at once, not first
    over replicas: replicas of different sizes then still give each device as much to do as the next.
    """
    shares = iter(split(global_size, sum(devices)))
    return tuple(tuple(next(shares) for _ in range(count)) for count in devices)


def learning_rate_scale(scaling: LearningRateScaling, devices: int) -> float:
    """The factor on the learning rate for a batch that grew with `devices`.

    Linear: Goyal et al. 2017, "Accurate, Large Minibatch SGD". Sqrt keeps the variance of the gradient estimate: Krizhevsky 2014,
    "One weird trick for parallelizing convolutional neural networks".
    """
    match scaling:
        case LearningRateScaling.LINEAR:
            return float(devices)
        case LearningRateScaling.SQRT:
            return math.sqrt(devices)
        case LearningRateScaling.NONE:
            return 1.0
