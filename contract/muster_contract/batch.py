"""Divides the batch of a step, so that a world of any size trains the same.

Gradients are summed over all samples and divided by the global size, so shares need not be equal.
"""

from __future__ import annotations

import math
from enum import StrEnum


class LearningRateScaling(StrEnum):
    NONE = "None"
    LINEAR = "Linear"
    SQRT = "Sqrt"


def split(total: int, parts: int) -> tuple[int, ...]:
    """`total` samples in `parts` shares that differ by at most one. The first shares are the larger ones."""
    share, larger = divmod(total, parts)
    return tuple(share + (part < larger) for part in range(parts))


def learning_rate_factor(scaling: LearningRateScaling, devices: int) -> float:
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


def largest_portion(global_size: int, *, processes: int, accumulation_steps: int) -> int:
    """Samples that a process of the whole world computes at once. A smaller world uses more portions of this size."""
    return math.ceil(global_size / (processes * accumulation_steps))
