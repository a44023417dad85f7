"""Measures how long something takes, in the same way for all figures of the trainer.

Clocks and devices are warmed up first. The result is the median with its confidence interval, because a mean would follow a single
outlier.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

CONFIDENCE = 0.95


def nothing() -> None:
    """For calls that are complete when they return, and calls that need no preparation."""


def alone(count: int) -> int:
    """For a process that measures by itself."""
    return count


@dataclass(frozen=True)
class Timing:
    """The median of `count` durations, in seconds, and the interval in which the true median lies with 95 % confidence.

    The interval is between two of the sorted durations, by the sign test: each duration is below the true median with probability 1/2,
    for any distribution. For fewer than six durations it is between the shortest and the longest.
    """

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, durations: Sequence[float]) -> Timing:
        """Of at least one duration in seconds."""
        ordered = sorted(durations)
        cut = _beyond(len(ordered))
        return cls(median(ordered), ordered[cut], ordered[-1 - cut], len(ordered))

    def fields(self) -> dict[str, Any]:
        """The fields of an event, to four digits."""
        return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in asdict(self).items()}


def _beyond(count: int) -> int:
    """How many of `count` ordered durations lie beyond the interval at each of its ends."""
    tail = 1 / 2**count  # how likely none of them is below the true median
    beyond = 0
    while (tail := tail + math.comb(count, beyond + 1) / 2**count) <= (1 - CONFIDENCE) / 2:
        beyond += 1
    return beyond


def durations(
    call: Callable[[], object],
    *,
    synchronise: Callable[[], object] = nothing,
    prepare: Callable[[], object] = nothing,
    agree: Callable[[int], int] = alone,
    warm_up: int = 2,
    least: int = 7,
    most: int = 200,
    seconds: float = 0.5,
) -> list[float]:
    """The duration of each call, in seconds: as many calls as fit into about `seconds`, but `least` to `most`, after `warm_up` calls (at
    least 1) that do not count.

    `synchronise` waits until the device is done. `prepare` is called before each call, and its time does not count. If several ranks
    call something together, `agree` returns the number of calls of one rank on all of them.
    """

    def once() -> float:
        prepare()
        synchronise()
        began = time.perf_counter()
        call()
        synchronise()
        return time.perf_counter() - began

    for _ in range(warm_up):
        began = time.perf_counter()
        once()
    each = time.perf_counter() - began
    count = agree(int(min(max(seconds / max(each, 1e-9), least), most)))
    return [once() for _ in range(count)]


def timed(call: Callable[[], object], **how: Any) -> Timing:
    """How long a call takes; `how` is what `durations` takes."""
    return Timing.of(durations(call, **how))
